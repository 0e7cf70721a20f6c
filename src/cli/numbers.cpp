#include "numbers.h"

#include <fmt/format.h>

#include <charconv>
#include <limits>

#include "lancet/base/shown.h"

namespace lancet::cli {
namespace {

// Whether the whole of a text is one number.
template <class T>
bool parse(const std::string& text, T& number) {
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, number);
  return error == std::errc() && end == last;
}

std::string wrong_seed(const std::string& text) {
  std::uint64_t seed = 0;
  if (parse(text, seed)) return {};
  return fmt::format("expected a whole number from 0 to {}, found {}", std::numeric_limits<std::uint64_t>::max(),
                     shown(text));
}

}  // namespace

CLI::Option* add_seed_option(CLI::App& command, std::uint64_t& seed, const std::string& help) {
  return command.add_option("--seed", seed, help)->capture_default_str()->check(wrong_seed);
}

CLI::Validator between(double least, double most) {
  const auto wrong = [=](const std::string& text) -> std::string {
    double number = 0;
    if (parse(text, number) && number >= least && number <= most) return {};
    return fmt::format("expected a number from {} to {}, found {}", least, most, shown(text));
  };
  return CLI::Validator(wrong, fmt::format("{} to {}", least, most));
}

}  // namespace lancet::cli
