// 64-bit XXH3 hashes that identify texts, plans, tokenizers and files (not for security).
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace lancet {

std::uint64_t hash64(std::string_view text);
std::uint64_t hash64(std::span<const std::byte> bytes);
std::string hex(std::uint64_t hash);  // 16 digits

// Computes the same hash of bytes that arrive in several calls.
class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(Hasher&&) noexcept;
  Hasher& operator=(Hasher&&) noexcept;
  void update(std::span<const std::byte> bytes);
  std::uint64_t digest() const;  // of all bytes given to update()

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lancet
