// XXH3, 64 bits: identity of texts, plans, tokenizers and files (not for security).
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

// The same hash of bytes that come in pieces.
class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(Hasher&&) noexcept;
  Hasher& operator=(Hasher&&) noexcept;
  void update(std::span<const std::byte> bytes);
  std::uint64_t digest() const;  // of all so far

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lancet
