// The draw that decides whether a token is sent to its second expert, which host and device make alike.
#pragma once
#include <cstdint>

#include "lancet/base/philox.h"
#include "ops/token_slots.h"

namespace lancet::ops::second_choice {

struct Draw {
  std::uint64_t seed;
  std::int64_t positions;        // tokens of a sequence
  const std::int32_t* expert;    // [T, 2]
  const float* weight;           // [T, 2]
  const std::int32_t* sequence;  // [B]
  std::int32_t* drawn;           // [T, 2]
  bool keep;                     // a skipped choice counts towards the expert's capacity
  std::int32_t experts;

  LANCET_HD void token(std::int64_t t) const {
    const auto b = std::int32_t(std::int32_t(t) / std::int32_t(positions));  // 64 bits would need a stack on a GPU
    const auto position = std::uint64_t(t - b * positions);
    const float number = uniform_of_word(philox_block(seed, std::uint32_t(sequence[b]), position).word[0]);
    const std::int32_t second = expert[2 * t + 1];
    drawn[2 * t] = expert[2 * t];
    drawn[2 * t + 1] = 2 * weight[2 * t + 1] > number ? second : skipped_choice(keep ? second : experts);
  }
};

inline Draw draw_of(const KernelArgs& args) {
  return {std::uint64_t(args.attributes.integer("seed")),
          args.operands[0].shape()[0] / args.operands[2].shape()[0],
          args.operands[0].as<std::int32_t>(),
          args.operands[1].as<float>(),
          args.operands[2].as<std::int32_t>(),
          args.results[0].as<std::int32_t>(),
          args.attributes.integer("keep") != 0,
          std::int32_t(args.attributes.integer("experts"))};
}

}  // namespace lancet::ops::second_choice
