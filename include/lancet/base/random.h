// Counter-based random numbers (Philox4x32-10; Salmon et al., SC'11): the value at (seed, stream, index) is a
// function of the three, so any rank can draw any element without drawing those before it.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace lancet {

class Philox {
 public:
  Philox(std::uint64_t seed, std::uint64_t stream) : seed_(seed), stream_(stream) {}
  std::array<std::uint32_t, 4> block(std::uint64_t index) const;  // four 32-bit words
  float uniform(std::uint64_t index) const;                       // [0, 1)
  float normal(std::uint64_t index) const;                        // mean 0, standard deviation 1 (Box-Muller)
  // values[i] = normal(first + i), bit for bit, in a few nanoseconds each.
  void normals(std::uint64_t first, std::span<float> values) const;
  std::uint64_t below(std::uint64_t index, std::uint64_t bound) const;  // [0, bound), bound > 0

 private:
  std::uint64_t seed_, stream_;
};

// The random stream of a name. Each tensor draws from the stream of its name, so its numbers do not depend on the other
// tensors.
std::uint64_t stream_of(std::string_view name);

}  // namespace lancet
