#include "numbers.h"

#include <fmt/format.h>

#include <charconv>
#include <limits>

#include "lancet/base/shown.h"

namespace lancet::cli {
namespace {

// Parses a text that must be one number as a whole.
template <class T>
bool parse(const std::string& text, T& number) {
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, number);
  return error == std::errc() && end == last;
}

template <class Number>
CLI::Validator in_range(Number least, Number most, const char* kind) {
  const auto wrong = [=](const std::string& text) -> std::string {
    Number number = 0;
    if (parse(text, number) && number >= least && number <= most) return {};
    return fmt::format("expected {} from {} to {}, found {}", kind, least, most, shown(text));
  };
  return CLI::Validator(wrong, fmt::format("{} to {}", least, most));
}

}  // namespace

CLI::Option* add_seed_option(CLI::App& command, std::uint64_t& seed, const std::string& help) {
  constexpr std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
  return command.add_option("--seed", seed, help)
      ->capture_default_str()
      ->check(in_range<std::uint64_t>(0, most, "a whole number").description(""));
}

CLI::Validator between(double least, double most) { return in_range(least, most, "a number"); }
CLI::Validator whole_between(std::int64_t least, std::int64_t most) { return in_range(least, most, "a whole number"); }

}  // namespace lancet::cli
