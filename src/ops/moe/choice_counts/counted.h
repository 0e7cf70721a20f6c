// Which of an op's numbers counts a choice, for kernels of host and device.
#pragma once
#include <cstdint>

#include "lancet/base/check.h"
#include "lancet/base/hd.h"
#include "lancet/ops/kernel.h"

namespace lancet::ops::choice_counts {

// Entry i = t * K + k is the k-th choice of token t. Runs of `of_load` entries have numbers of their own: one of each
// expert or, where first choices are counted apart, one of its first and one of its other choices.
struct Counted {
  const std::int32_t* expert;         // [T*K]
  std::int64_t loads, of_load, bins;  // bins: numbers of a load
  std::int32_t choices, experts;      // K, E
  bool first_apart;

  // The bin of entry i of a load.
  LANCET_HD std::int32_t bin(std::int64_t load, std::int64_t i) const {
    const bool other = first_apart && std::int32_t(i) % choices != 0;  // 64 bits would need a stack on a GPU
    return (other ? experts : 0) + expert[load * of_load + i];
  }
};

inline Counted counted_of(const KernelArgs& args, bool first_apart) {
  const TensorView &expert = args.operands[0], &counts = args.results[0];
  LANCET_CHECK(expert.elements() < std::int64_t{1} << 24, "up to 2^24 choices are counted, found {}",
               expert.elements());
  const std::int64_t experts = counts.shape().back(), bins = first_apart ? 2 * experts : experts;
  const std::int64_t loads = counts.elements() / bins;
  return {expert.as<std::int32_t>(), loads,      expert.elements() / loads, bins, std::int32_t(expert.shape()[1]),
          std::int32_t(experts),     first_apart};
}

}  // namespace lancet::ops::choice_counts
