// Texts and values from files, and numbers, for errors of one line.
#pragma once
#include <cmath>
#include <string>
#include <string_view>
#include <utility>

namespace lancet {

// The front of a text, on one line; where it is longer than `most` bytes it ends in "...", and never inside a
// character.
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

// In quotes, on one line, cut where it is long.
inline std::string shown(std::string_view text) { return "'" + cut(text, 80) + "'"; }

namespace detail {

// Stops at `most` bytes, which bounds its depth, too: a file's nesting may not become the stack's.
template <class Json>
void write_front(const Json& value, std::size_t most, std::string& text) {
  const auto leaf = [](const Json& x) { return x.dump(-1, ' ', false, Json::error_handler_t::replace); };
  if (!value.is_structured()) {
    text += leaf(value);
    return;
  }
  const bool object = value.is_object();
  text += object ? '{' : '[';
  bool first = true;
  for (auto it = value.begin(); it != value.end() && text.size() <= most; ++it) {
    if (!std::exchange(first, false)) text += ',';
    if (object) text += leaf(Json(it.key())) + ":";
    write_front(*it, most, text);
  }
  text += object ? '}' : ']';
}

}  // namespace detail

// A JSON value (nlohmann's) as its file has it, cut where it is long.
template <class Json>
requires requires { typename Json::error_handler_t; }
std::string shown(const Json& value) {
  constexpr std::size_t most = 60;
  std::string text;
  detail::write_front(value, most, text);
  return cut(text, most);
}

// A number that is printed as "nan" where it is none, never as "-nan": that sign says nothing.
inline double unsigned_nan(double value) { return std::isnan(value) ? std::fabs(value) : value; }

}  // namespace lancet
