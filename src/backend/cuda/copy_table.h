// Copies of one launch, with the share of each thread. Plain code, so that tests run it on the host.
#pragma once
#include <cstddef>
#include <cstdint>

#include "lancet/backend/device.h"
#include "lancet/base/hd.h"

namespace lancet::backend::cuda {

struct CopyTable {
  static constexpr int most = 160;  // a launch takes 4 KB of parameters
  Copy copies[most];
  int count;

  // Moves the share of thread `thread` of `threads` in copy `number`: in units of 16 or 4 bytes, where both addresses
  // and the length are multiples of that.
  LANCET_HD void run(int number, std::size_t thread, std::size_t threads) const {
    const Copy& copy = copies[number];
    const auto bits = reinterpret_cast<std::uintptr_t>(copy.to) | reinterpret_cast<std::uintptr_t>(copy.from) |
                      std::uintptr_t(copy.bytes);
    if (bits % sizeof(Unit) == 0)
      move<Unit>(copy, thread, threads);
    else if (bits % sizeof(std::uint32_t) == 0)
      move<std::uint32_t>(copy, thread, threads);
    else
      move<std::byte>(copy, thread, threads);
  }

 private:
  struct alignas(16) Unit {
    std::uint32_t words[4];
  };

  template <class T>
  LANCET_HD static void move(const Copy& copy, std::size_t thread, std::size_t threads) {
    T* to = reinterpret_cast<T*>(copy.to);
    const T* from = reinterpret_cast<const T*>(copy.from);
    const std::size_t count = copy.bytes / sizeof(T);
    constexpr int ahead = 4;  // loads in flight at once
    std::size_t i = thread;
    for (; i + (ahead - 1) * threads < count; i += ahead * threads) {
      T some[ahead];
      for (int j = 0; j < ahead; ++j) some[j] = from[i + std::size_t(j) * threads];
      for (int j = 0; j < ahead; ++j) to[i + std::size_t(j) * threads] = some[j];
    }
    for (; i < count; i += threads) to[i] = from[i];
  }
};

}  // namespace lancet::backend::cuda
