// UTF-8: validity, and where a text may be cut.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "lancet/base/result.h"

namespace lancet::data {

// The offset of the first byte that is not part of a valid character (no overlong forms, surrogates or code points
// above U+10FFFF); text.size() where all is valid.
std::size_t first_invalid_utf8(std::string_view text);

// The data error of that byte; first_byte is the place of text in its source.
Error not_utf8(std::string_view text, std::size_t invalid, std::uint64_t first_byte = 0);

// The last place p > 0 with a character that is no white space before it and ASCII white space after it; 0: none.
// No pre-token of GPT-2's pattern spans such a place, and no match looks across it (pretokens.h), so the parts' ids,
// one after the other, are the whole's.
std::size_t last_safe_cut(std::string_view text);

}  // namespace lancet::data
