// The padded numbers of a layer's experts, for kernels of host and device.
#pragma once
#include <cstdint>

#include "lancet/base/hd.h"
#include "lancet/mesh/padded_experts.h"
#include "lancet/ops/kernel.h"

namespace lancet::ops {

struct PaddedNumbers {
  std::int64_t choices, padded;                         // T * K; E'
  const std::int32_t *expert, *filled;                  // [T*K]; [E, 2]
  std::int32_t *padded_expert, *padded_filled;          // [T*K]; [E', 2]
  std::int32_t room = 0;                                // of each rank
  std::int32_t end[mesh::PaddedExperts::most_ranks]{};  // of the experts up to the rank's last

  explicit PaddedNumbers(const KernelArgs& args)
      : choices(args.operands[0].elements()),
        padded(args.results[1].shape()[0]),
        expert(args.operands[0].as<std::int32_t>()),
        filled(args.operands[2].as<std::int32_t>()),
        padded_expert(args.results[0].as<std::int32_t>()),
        padded_filled(args.results[1].as<std::int32_t>()) {
    const auto experts = mesh::parse_padded_experts(args.attributes.text("counts"));
    LANCET_CHECK(experts, "{}: counts {}", args.op, args.attributes.text("counts"));
    room = std::int32_t(experts->on_rank());
    std::int32_t sum = 0;
    for (std::size_t rank = 0; rank < experts->counts().size(); ++rank)
      end[rank] = sum += std::int32_t(experts->counts()[rank]);
  }

  LANCET_HD std::int32_t begin(std::int32_t rank) const { return rank == 0 ? 0 : end[rank - 1]; }
  // Sets the number of choice i.
  LANCET_HD void set_choice(std::int64_t i) const {
    std::int32_t rank = 0;
    while (expert[i] >= end[rank]) ++rank;
    padded_expert[i] = rank * room + expert[i] - begin(rank);
  }
  // Sets the filled slots of padded number n.
  LANCET_HD void set_filled(std::int64_t n) const {
    const std::int32_t rank = std::int32_t(n) / room, e = begin(rank) + std::int32_t(n) % room;
    const bool is_padding = e >= end[rank];
    padded_filled[2 * n] = is_padding ? 0 : filled[2 * e];
    padded_filled[2 * n + 1] = is_padding ? 0 : filled[2 * e + 1];
  }
};

}  // namespace lancet::ops
