// Texts from files, for errors of one line.
#pragma once
#include <string>
#include <string_view>

namespace lancet {

// In quotes, on one line, cut where it is long.
inline std::string shown(std::string_view text) {
  constexpr std::size_t most = 80;
  std::string result = "'";
  for (const char c : text.substr(0, most)) {
    const auto byte = static_cast<unsigned char>(c);
    result += byte < 0x20 || byte == 0x7f ? '?' : c;
  }
  return result + (text.size() > most ? "...'" : "'");
}

}  // namespace lancet
