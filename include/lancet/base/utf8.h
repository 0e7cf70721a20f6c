// UTF-8: finds what is none, and makes bytes printable.
#pragma once
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace lancet {

// The offset of the first byte that is not part of a valid character (no overlong forms, surrogates or code points
// above U+10FFFF); text.size() if all are valid.
std::size_t first_invalid_utf8(std::string_view text);
// The character that begins at `at` of valid UTF-8; moves `at` behind it, never behind the text.
inline char32_t next_character(std::string_view text, std::size_t& at) {
  const auto lead = static_cast<unsigned char>(text[at++]);
  if (lead < 0x80) return lead;
  const int more = lead < 0xE0 ? 1 : lead < 0xF0 ? 2 : 3;
  char32_t c = lead & (0x3Fu >> more);
  for (int i = 0; i < more && at < text.size(); ++i) c = c << 6 | (static_cast<unsigned char>(text[at++]) & 0x3Fu);
  return c;
}
void append_utf8(std::string& text, char32_t character);
// The length of the longest prefix of `bytes` that does not end inside a UTF-8 character: generated text can be printed
// up to there.
std::size_t complete_utf8(std::string_view bytes);
// Replaces each byte that is not part of a valid character by what `replacement` makes of it, or by U+FFFD.
std::string replace_invalid_utf8(std::string_view bytes, const std::function<std::string(unsigned char)>& replacement);
std::string replace_invalid_utf8(std::string_view bytes);

}  // namespace lancet
