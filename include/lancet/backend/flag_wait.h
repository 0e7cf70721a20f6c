// The wait of a host thread for a flag that a device stream sets.
#pragma once
#include <atomic>
#include <chrono>
#include <thread>

#include "lancet/backend/device.h"

namespace lancet::backend {

// Blocks the stream's thread until the flag is set; an error of stream.watch() ends the wait and is returned. The
// device may idle until the thread continues, so it first spins for as long as short work takes: a sleep lasts some
// 70 us.
inline Status wait_for_flag(Flag* flag, Stream& stream) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::microseconds spin(200), pause(20);
  const auto start = Clock::now();
  while (std::atomic_ref(*flag).load(std::memory_order_acquire) == 0) {
    if (Clock::now() - start < spin) continue;
    std::this_thread::sleep_for(pause);
    LANCET_TRY(stream.watch());
  }
  return {};
}

}  // namespace lancet::backend
