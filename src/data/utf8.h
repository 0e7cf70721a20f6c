// Checks that text is valid UTF-8, and finds positions at which it may be cut.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "lancet/base/result.h"

namespace lancet::data {

// The offset of the first byte that is not part of a valid character (no overlong forms, surrogates or code points
// above U+10FFFF); text.size() if all are valid.
std::size_t first_invalid_utf8(std::string_view text);

// The data error for that byte. first_byte: the offset of `text` in its source.
Error not_utf8(std::string_view text, std::size_t invalid, std::uint64_t first_byte = 0);

// The last position p > 0 that follows a character other than white space and precedes ASCII white space; 0 if none
// does. No pre-token of GPT-2's pattern spans such a position, and no match looks across it (pretokens.h), so the ids
// of the two parts, concatenated, are those of the whole.
std::size_t last_safe_cut(std::string_view text);

// GPT-2's byte letters: vocab.json and merges.txt write each byte of a token as one visible character. Visible Latin-1
// bytes are written as themselves; the other 68 as U+0100, U+0101, ... in the order of the bytes.

// The 256 bytes in the order of GPT-2's first 256 ids: those written as themselves, then the rest.
const std::array<std::uint8_t, 256>& byte_order();

std::string to_letters(std::string_view bytes);
std::optional<std::string> from_letters(std::string_view letters);  // nullopt: a character that is not a byte letter

}  // namespace lancet::data
