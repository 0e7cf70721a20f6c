// Formats texts, values from files, and numbers for one-line errors.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

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

// Levenshtein distance, with which errors find the known word nearest to an unknown one.

// The fewest insertions, deletions and replacements of a character that turn `a` into `b`.
inline std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row.back();
}

// Formats a duration for people.
std::string duration(double seconds);  // "1h 02m", "3m 20s", "12s"

}  // namespace lancet
