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

// Relative differences that mixes may have. Those of 1,000 mixes in f32 came to 7e-7 in records, to 2.5e-6 in first
// moments and twice that in second ones, which are squares, and to 1.1e-5 in weights, of which Adam moves those with
// small gradients as far as others.
struct Bounds {
  double record = 3e-6, moment = 1e-5, weight = 3e-5;
};
inline Bounds bounds_of(const config::Config& config) {
  const bool is_loose = config.train.dtype != DType::f32 || config.train.reduce_dtype != DType::f32;
  return is_loose ? Bounds{.record = 5e-2, .moment = 0.3, .weight = 0.3} : Bounds();
}

// The largest differences that were found, over all mixes, by what was compared.
inline std::map<std::string, double> largest_found;

inline void hold(const std::string& kind, const std::string& what, double difference, double bound) {
  if (!(difference <= bound))
    throw Disagrees{fmt::format("{}: expected a difference of at most {:.0e}, found {:.2g}", what, bound, difference)};
  double& largest = largest_found[fmt::format("{} within {:.0e}", kind, bound)];
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
                            const Bounds& bounds) {
  const bool is_exact = bounds.record < 1e-3;
  for (std::size_t i = 0; i < expected.size(); ++i)
    for (const auto& [key, value] : expected[i].items()) {
      const bool is_sum = key == "loss" || key == "aux_loss" || key == "grad_norm" || key == "layer_z_loss" ||
                          key == "layer_router_entropy" || key == "lr";
      const bool is_count = key == "layer_expert_tokens" || key == "layer_drop_pct";
      if (!is_sum && !(is_count && is_exact)) continue;
      hold("records", fmt::format("{}: step {}: {}", what, i + 1, key),
           difference(found.at(i).value(key, Json()), value), bounds.record);
    }
}

// after: in words.
inline void compare_tensors(const std::string& after, const Tensors& found, const Tensors& expected,
                            const Bounds& bounds) {
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
    const std::string kind = name.ends_with(".m")   ? "first moments"
                             : name.ends_with(".v") ? "second moments"
                                                    : "weights";
    hold(kind, fmt::format("{}: {}", after, name), largest > 0 ? apart / largest : apart,
         kind == "weights" ? bounds.weight : bounds.moment);
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

inline void compare(const std::string& run, const Outcome& found, const Outcome& expected, const Bounds& bounds) {
  compare_records(run, found.records, expected.records, bounds);
  if (!found.interrupted.empty())
    compare_tensors(run + ": after the interruption", found.interrupted, expected.interrupted, bounds);
  compare_tensors(run + ": at the end", found.end, expected.end, bounds);
}

}  // namespace lancet::test
