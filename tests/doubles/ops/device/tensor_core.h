// The tensor core instructions of src/ops/device/tensor_core.h, whose place this header takes in the tests: each is
// emulated thread by thread, as the PTX document specifies it, so that tests without a GPU check layouts and waits.
#pragma once
#include <cstdint>
#include <cstring>
#include <vector>

#include "lancet/base/dtype.h"
#include "ops/device/launch.h"

namespace lancet::ops::device {
namespace emulated {

// Time of an asynchronous copy: as late as the waits allow, or (false) at once. Kernels must be right with both.
inline thread_local bool late_copies = true;

inline float half_of(std::uint32_t pair, int upper) { return to_f32(bf16{std::uint16_t(pair >> (16 * upper))}); }

}  // namespace emulated

using SharedAddress = std::uintptr_t;
inline SharedAddress shared_address(const void* p) { return reinterpret_cast<SharedAddress>(p); }

template <bool Transposed, class Block>
LANCET_DEVICE void load_matrices(Block& block, std::uint32_t (&out)[4], SharedAddress row) {
  LANCET_CHECK(row % 16 == 0, "ldmatrix: a row that is not aligned to 16 bytes");
  const std::uint64_t* rows = block.gather(row);
  const int g = block.warp_lane() / 4, t = block.warp_lane() % 4;
  for (int i = 0; i < 4; ++i) {
    out[i] = 0;
    for (int half = 0; half < 2; ++half) {
      const int of = Transposed ? 2 * t + half : g, element = Transposed ? g : 2 * t + half;
      const std::uint16_t bits = reinterpret_cast<const bf16*>(rows[8 * i + of])[element].bits;
      out[i] |= std::uint32_t(bits) << (16 * half);
    }
  }
}

template <class Block>
LANCET_DEVICE void multiply(Block& block, float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t* b) {
  struct Fragments {
    const std::uint32_t *a, *b;
  };
  const Fragments mine{a, b};
  const std::uint64_t* threads = block.gather(reinterpret_cast<std::uint64_t>(&mine));
  auto of = [&](int thread) -> const Fragments& { return *reinterpret_cast<const Fragments*>(threads[thread]); };
  const int g = block.warp_lane() / 4, t = block.warp_lane() % 4;
  for (int k = 0; k < 16; ++k) {
    const int owner = k % 8 / 2, high = k / 8, half = k % 2;
    for (int e = 0; e < 4; ++e) {
      const float x = emulated::half_of(of(4 * g + owner).a[2 * high + e / 2], half);
      const float y = emulated::half_of(of(4 * (2 * t + e % 2) + owner).b[high], half);
      c[e] += x * y;
    }
  }
  block.sync_warp();  // all threads have read the fragments
}

class Copies {
 public:
  void start(SharedAddress shared, const void* global, bool there) {
    LANCET_CHECK((shared | (there ? reinterpret_cast<std::uintptr_t>(global) : 0)) % 16 == 0,
                 "cp.async: an address that is not aligned to 16 bytes");
    pending_.push_back({reinterpret_cast<void*>(shared), there ? global : nullptr});
    if (!emulated::late_copies) carry_out(pending_.size());
  }
  void end_group() { ends_.push_back(pending_.size()); }
  template <int Pending>
  void wait() {
    if (ends_.size() > Pending) carry_out(ends_[ends_.size() - Pending - 1]);
  }

 private:
  struct Copy {
    void* to;
    const void* from;
  };
  void carry_out(std::size_t end) {
    for (; done_ < end; ++done_) {
      const Copy& copy = pending_[done_];
      if (copy.from)
        std::memcpy(copy.to, copy.from, 16);
      else
        std::memset(copy.to, 0, 16);
    }
  }
  std::vector<Copy> pending_;
  std::vector<std::size_t> ends_;  // number of copies started when each group ended
  std::size_t done_ = 0;
};

}  // namespace lancet::ops::device
