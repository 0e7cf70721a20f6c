// What a mix leaves, compared with its reference.
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lancet/config/config.h"

namespace lancet::test {

using Json = nlohmann::json;
using Tensors = std::map<std::string, std::vector<float>>;

// Values that are not those of the reference: rounding may be why.
struct Disagrees {
  std::string what;
};
// What no rounding explains.
struct Fails {
  std::string what;
};

// Relative differences: the largest that a mix may have, or has.
struct Differences {
  double record = 0, moment = 0, weight = 0;
};

// Those of 1,000 mixes in f32 came to 7e-7 in records, to 2.5e-6 in first moments and twice that in second ones, which
// are squares, and to 1.1e-5 in weights, of which Adam moves those with small gradients as far as others.
inline constexpr Differences bounds_of_f32{.record = 3e-6, .moment = 1e-5, .weight = 3e-5};
// In bf16 they depend on the mix, in which a rounding may send tokens to other experts. by_one: how far the reference
// gets from itself where each weight is moved once by the unit roundoff of bf16, 2^-8. A mix rounds in the forward and
// the backward pass of three steps, and its reference does so otherwise. These are 2 x 3 x 2 errors that do not know of
// each other, so they add up to sqrt(12), less than four times as much.
inline Differences bounds_of_bf16(const Differences& by_one) {
  return {.record = 4 * by_one.record, .moment = 4 * by_one.moment, .weight = 4 * by_one.weight};
}

inline constexpr Differences no_bounds{.record = HUGE_VAL, .moment = HUGE_VAL, .weight = HUGE_VAL};

inline bool within(const Differences& found, const Differences& bounds) {
  return found.record <= bounds.record && found.moment <= bounds.moment && found.weight <= bounds.weight;
}

inline void hold(const std::string& what, double difference, double bound, double& largest) {
  if (!(difference <= bound))
    throw Disagrees{fmt::format("{}: expected a difference of at most {:.2g}, found {:.2g}", what, bound, difference)};
  largest = std::max(largest, difference);
}

// Of JSON numbers, or lists of them, relative to the expected one. Infinity: another form.
inline double difference(const Json& found, const Json& expected) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  if (expected.is_array()) {
    if (!found.is_array() || found.size() != expected.size()) return infinity;
    double largest = 0;
    for (std::size_t i = 0; i < expected.size(); ++i) largest = std::max(largest, difference(found[i], expected[i]));
    return largest;
  }
  if (!expected.is_number() || !found.is_number()) return found == expected ? 0 : infinity;
  const double from = expected.get<double>(), apart = std::abs(found.get<double>() - from);
  return apart == 0 ? 0 : apart / std::max(std::abs(from), 1e-3);
}

inline void compare_records(const std::string& what, const std::vector<Json>& found, const std::vector<Json>& expected,
                            const Differences& bounds, Differences& largest) {
  const bool is_exact = bounds.record == bounds_of_f32.record;
  for (std::size_t i = 0; i < expected.size(); ++i)
    for (const auto& [key, value] : expected[i].items()) {
      const bool is_sum = key == "loss" || key == "aux_loss" || key == "grad_norm" || key == "layer_z_loss" ||
                          key == "layer_router_entropy" || key == "lr";
      const bool is_count = key == "layer_expert_tokens" || key == "layer_drop_pct";
      if (!is_sum && !(is_count && is_exact)) continue;
      hold(fmt::format("{}: step {}: {}", what, i + 1, key), difference(found.at(i).value(key, Json()), value),
           bounds.record, largest.record);
    }
}

// after: in words.
inline void compare_tensors(const std::string& after, const Tensors& found, const Tensors& expected,
                            const Differences& bounds, Differences& all) {
  if (found.size() != expected.size())
    throw Fails{fmt::format("{}: expected {} tensors, found {}", after, expected.size(), found.size())};
  for (const auto& [name, values] : expected) {
    const auto at = found.find(name);
    if (at == found.end() || at->second.size() != values.size())
      throw Fails{fmt::format("{}: {}: expected {} elements", after, name, values.size())};
    double largest = 0, apart = 0;
    for (const float value : values) largest = std::max(largest, std::abs(double(value)));
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double difference = std::abs(double(at->second[i]) - double(values[i]));
      apart = std::max(apart, std::isfinite(difference) ? difference : std::numeric_limits<double>::infinity());
    }
    const bool is_moment = name.ends_with(".m") || name.ends_with(".v");
    hold(fmt::format("{}: {}", after, name), largest > 0 ? apart / largest : apart,
         is_moment ? bounds.moment : bounds.weight, is_moment ? all.moment : all.weight);
  }
}

// Names the first tensor that is not the same.
inline std::string first_other(const Tensors& found, const Tensors& expected) {
  for (const auto& [name, values] : expected)
    if (const auto at = found.find(name); at == found.end() || at->second != values) return name;
  return found.size() == expected.size() ? "the headers" : "tensors that should not be there";
}

struct Outcome {
  std::vector<Json> records;
  Tensors interrupted, end;
};

// Adds to `largest` what it finds within the bounds.
inline void compare(const std::string& run, const Outcome& found, const Outcome& expected, const Differences& bounds,
                    Differences& largest) {
  compare_records(run, found.records, expected.records, bounds, largest);
  if (!found.interrupted.empty())
    compare_tensors(run + ": after the interruption", found.interrupted, expected.interrupted, bounds, largest);
  compare_tensors(run + ": at the end", found.end, expected.end, bounds, largest);
}

}  // namespace lancet::test
