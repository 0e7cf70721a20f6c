// Formats texts, values from files, and numbers for one-line errors.
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>

namespace lancet {

// The first `most` bytes of a text, followed by "..." if it is longer; never cut inside a UTF-8 character. Control
// characters become '?', so the result is one line.
inline std::string cut(std::string_view text, std::size_t most) {
  std::size_t end = text.size();
  if (end > most) {
    end = most;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  }
  std::string result;
  for (const char c : text.substr(0, end)) {
    const auto byte = static_cast<unsigned char>(c);
    result += byte < 0x20 || byte == 0x7f ? '?' : c;
  }
  return end < text.size() ? result + "..." : result;
}

// The text in quotes, on one line, cut after 80 bytes.
inline std::string shown(std::string_view text) { return "'" + cut(text, 80) + "'"; }

// A JSON value (nlohmann::json or nlohmann::ordered_json) as it is in its file, cut after 60 bytes.
template <class Json>
requires requires { typename Json::error_handler_t; }
std::string shown(const Json& value);

// The value with a NaN's sign removed, so that it prints as "nan", never as "-nan".
inline double unsigned_nan(double value) { return std::isnan(value) ? std::fabs(value) : value; }

// A duration for people: "1h 02m", "3m 20s", "12s".
inline std::string duration(double seconds) {
  const auto s = static_cast<long>(std::lround(std::max(seconds, 0.0)));
  if (s >= 3600) return fmt::format("{}h {:02}m", s / 3600, s % 3600 / 60);
  if (s >= 60) return fmt::format("{}m {:02}s", s / 60, s % 60);
  return fmt::format("{}s", s);
}

}  // namespace lancet
