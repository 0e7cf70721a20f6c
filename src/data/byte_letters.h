// GPT-2's byte letters: vocab.json and merges.txt write each byte of a token as one visible character. Visible Latin-1
// bytes are written as themselves; the other 68 as U+0100, U+0101, ... in the order of the bytes.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lancet::data {

// The 256 bytes in the order of GPT-2's first 256 ids: those written as themselves, then the rest.
const std::array<std::uint8_t, 256>& byte_order();

std::string to_letters(std::string_view bytes);
std::optional<std::string> from_letters(std::string_view letters);  // nullopt: a character that is not a byte letter

}  // namespace lancet::data
