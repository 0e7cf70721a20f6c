#include "lancet/base/hash.h"

#include <fmt/format.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace lancet {

std::uint64_t hash64(std::string_view text) { return XXH3_64bits(text.data(), text.size()); }
std::uint64_t hash64(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }
std::string hex(std::uint64_t hash) { return fmt::format("{:016x}", hash); }

}  // namespace lancet
