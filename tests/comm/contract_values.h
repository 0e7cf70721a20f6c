// What the ranks of the contract's tests send and sum, and how they report what differs.
#pragma once
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lancet/comm/communicator.h"

#define EXPECT_THAT(condition, ...)                                                                \
  do {                                                                                             \
    if (!(condition))                                                                              \
      return ::lancet::internal_error(                                                             \
          fmt::format("{}:{}: {}: {}", __FILE__, __LINE__, #condition, fmt::format(__VA_ARGS__))); \
  } while (0)

namespace lancet::comm::contract {

using Bytes = std::vector<std::byte>;

inline std::uint32_t mix(std::uint32_t x) {
  x ^= x >> 16, x *= 0x7feb352du, x ^= x >> 15, x *= 0x846ca68bu;
  return x ^ (x >> 16);
}
// Byte i of message `salt` from one rank to another.
inline std::byte content(int from, int to, int salt, std::size_t i) {
  return static_cast<std::byte>(mix(static_cast<std::uint32_t>(from * 131 + to * 17 + salt * 7919) +
                                    static_cast<std::uint32_t>(i) * 2654435761u));
}
inline Bytes message(int from, int to, int salt, std::size_t bytes) {
  Bytes out(bytes);
  for (std::size_t i = 0; i < bytes; ++i) out[i] = content(from, to, salt, i);
  return out;
}

// Values of very different magnitude, so that another order of summation gives other bits.
inline float summand(int rank, std::size_t i) {
  const std::uint32_t h = mix(static_cast<std::uint32_t>(i) * 97u + static_cast<std::uint32_t>(rank) * 7u + 1u);
  const float value = static_cast<float>(static_cast<std::int32_t>(h >> 8) - (1 << 23));
  return (h & 1u) ? value : value * 1e-6f;
}

// Sends `size_of(from, to)` bytes between all pairs, each rank to itself included, and compares.
template <class SizeOf>
Status send_and_compare(Communicator& c, int salt, SizeOf size_of) {
  const int n = c.size(), me = c.rank();
  std::vector<Bytes> out, in;
  for (int peer = 0; peer < n; ++peer) {
    out.push_back(message(me, peer, salt, size_of(me, peer)));
    in.emplace_back(size_of(peer, me), std::byte{0xEE});
  }
  std::vector<Segment> sends, receives;
  for (int peer = 0; peer < n; ++peer) {
    sends.push_back({peer, out[std::size_t(peer)].data(), out[std::size_t(peer)].size()});
    receives.push_back({peer, in[std::size_t(peer)].data(), in[std::size_t(peer)].size()});
  }
  LANCET_TRY(c.send_receive(sends, receives));
  for (int peer = 0; peer < n; ++peer)
    EXPECT_THAT(in[std::size_t(peer)] == message(peer, me, salt, size_of(peer, me)), "rank {} from rank {}, salt {}",
                me, peer, salt);
  return {};
}

}  // namespace lancet::comm::contract
