// Two ranks with tensors on a GPU send and sum, and check the received values.
#pragma once
#include <vector>

#include "lancet/backend/device.h"
#include "lancet/comm/device_communicator.h"

namespace lancet::test {

// Returns the first wrong value that a rank finds; success if all are right.
inline Status check_values(backend::Device& device, backend::Stream& stream, comm::DeviceCommunicator& ranks) {
  constexpr std::size_t count = 1 << 18;  // floats to each rank
  const std::size_t bytes = 2 * count * sizeof(float);
  LANCET_ASSIGN(std::byte* const out, device.allocate(bytes));
  LANCET_ASSIGN(std::byte* const in, device.allocate(bytes));
  LANCET_ASSIGN(std::byte* const page, device.allocate_host(bytes));
  auto* host = reinterpret_cast<float*>(page);
  for (std::size_t i = 0; i < 2 * count; ++i) host[i] = float(100 * ranks.rank()) + float(i / count);
  LANCET_TRY(stream.copy(out, host, bytes));
  std::vector<comm::Segment> sends, receives;
  for (int peer = 0; peer < 2; ++peer) {
    const auto at = static_cast<std::size_t>(peer) * count * sizeof(float);
    sends.push_back({peer, out + at, count * sizeof(float)});
    receives.push_back({peer, in + at, count * sizeof(float)});
  }
  LANCET_TRY(ranks.send_receive(stream, sends, receives));
  LANCET_TRY(stream.copy(host, in, bytes));
  LANCET_TRY(stream.synchronize());
  for (std::size_t i = 0; i < 2 * count; ++i)
    if (host[i] != float(100 * (i / count)) + float(ranks.rank())) return internal_error("the received values differ");
  LANCET_TRY(ranks.all_reduce_sum(stream, {reinterpret_cast<float*>(out), 2 * count}));
  LANCET_TRY(stream.copy(host, out, bytes));
  LANCET_TRY(stream.synchronize());
  for (std::size_t i = 0; i < 2 * count; ++i)
    if (host[i] != 100 + 2 * float(i / count)) return internal_error("a sum differs");
  device.free(out);
  device.free(in);
  device.free_host(page);
  return ranks.check();
}

}  // namespace lancet::test
