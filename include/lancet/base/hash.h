// XXH3, 64 bits: identity of texts, plans, tokenizers and files (not for security).
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace lancet {

std::uint64_t hash64(std::string_view text);
std::uint64_t hash64(std::span<const std::byte> bytes);
std::string hex(std::uint64_t hash);  // 16 digits

}  // namespace lancet
