#include "lancet/base/utf8.h"

#include <cstdint>
#include <cstring>

namespace lancet {
namespace {

bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0u) == 0x80u; }

// The length in bytes of a character, by its first byte; 0 if that byte cannot begin one.
int length_by_lead(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead < 0xC2) return 0;  // a continuation, or an overlong form of ASCII
  if (lead < 0xE0) return 2;
  if (lead < 0xF0) return 3;
  return lead < 0xF5 ? 4 : 0;
}

// True if the second byte keeps the character in range.
bool second_in_range(unsigned char lead, unsigned char second) {
  if (lead == 0xE0) return second >= 0xA0;  // overlong
  if (lead == 0xED) return second < 0xA0;   // surrogates
  if (lead == 0xF0) return second >= 0x90;  // overlong
  return lead != 0xF4 || second < 0x90;     // above U+10FFFF
}

}  // namespace

std::size_t first_invalid_utf8(std::string_view text) {
  const std::size_t n = text.size();
  std::size_t i = 0;
  while (i < n) {
    while (i + 8 <= n) {  // runs of ASCII, 8 bytes at a time
      std::uint64_t word;
      std::memcpy(&word, text.data() + i, 8);
      if (word & 0x8080808080808080u) break;
      i += 8;
    }
    if (i == n) break;
    const auto lead = static_cast<unsigned char>(text[i]);
    const int length = length_by_lead(lead);
    if (length == 0 || n - i < static_cast<std::size_t>(length)) return i;
    if (length > 1 && !second_in_range(lead, static_cast<unsigned char>(text[i + 1]))) return i;
    for (int k = 1; k < length; ++k)
      if (!is_continuation(text[i + static_cast<std::size_t>(k)])) return i;
    i += static_cast<std::size_t>(length);
  }
  return n;
}

void append_utf8(std::string& text, char32_t c) {
  const auto push = [&](char32_t byte) { text.push_back(static_cast<char>(static_cast<unsigned char>(byte))); };
  const int more = c < 0x80 ? 0 : c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
  push(more == 0 ? c : (0xFF00u >> (more + 1) & 0xFFu) | c >> (6 * more));
  for (int i = more; i-- > 0;) push(0x80 | (c >> (6 * i) & 0x3F));
}

std::string replace_invalid_utf8(std::string_view bytes, const std::function<std::string(unsigned char)>& replacement) {
  std::string text;
  while (!bytes.empty()) {
    const std::size_t valid = first_invalid_utf8(bytes);
    text += bytes.substr(0, valid);
    bytes.remove_prefix(valid);
    if (bytes.empty()) break;
    text += replacement(static_cast<unsigned char>(bytes.front()));
    bytes.remove_prefix(1);
  }
  return text;
}

std::string replace_invalid_utf8(std::string_view bytes) {
  return replace_invalid_utf8(bytes, [](unsigned char) { return "\xEF\xBF\xBD"; });
}

std::size_t complete_utf8(std::string_view bytes) {
  const std::size_t n = bytes.size();
  for (std::size_t back = 1; back <= 3 && back <= n; ++back) {
    const char c = bytes[n - back];
    if (is_continuation(c)) continue;
    const int length = length_by_lead(static_cast<unsigned char>(c));
    return static_cast<std::size_t>(length) > back ? n - back : n;
  }
  return n;
}

}  // namespace lancet
