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
// The length of the longest prefix of `bytes` that does not end inside a UTF-8 character: generated text can be printed
// up to there.
std::size_t complete_utf8(std::string_view bytes);
// Replaces each byte that is not part of a valid character by what `replacement` makes of it, or by U+FFFD.
std::string replace_invalid_utf8(std::string_view bytes, const std::function<std::string(unsigned char)>& replacement);
std::string replace_invalid_utf8(std::string_view bytes);

}  // namespace lancet
