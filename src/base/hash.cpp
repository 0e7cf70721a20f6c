#include "lancet/base/hash.h"

#include <fmt/format.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace lancet {

std::uint64_t hash64(std::string_view text) { return XXH3_64bits(text.data(), text.size()); }
std::uint64_t hash64(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }
std::string hex(std::uint64_t hash) { return fmt::format("{:016x}", hash); }

struct Hasher::State {
  XXH3_state_t state;
};

Hasher::Hasher() : state_(std::make_unique<State>()) { XXH3_64bits_reset(&state_->state); }
Hasher::~Hasher() = default;
Hasher::Hasher(Hasher&&) noexcept = default;
Hasher& Hasher::operator=(Hasher&&) noexcept = default;
void Hasher::update(std::span<const std::byte> bytes) {
  XXH3_64bits_update(&state_->state, bytes.data(), bytes.size());
}
std::uint64_t Hasher::digest() const { return XXH3_64bits_digest(&state_->state); }

}  // namespace lancet
