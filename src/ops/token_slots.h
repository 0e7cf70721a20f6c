// Where the rows of tokens are among the slots of their experts, for kernels of host and device.
#pragma once
#include <cstdint>

#include "lancet/base/hd.h"
#include "lancet/ops/kernel.h"

namespace lancet::ops {

inline constexpr std::int32_t dropped = -1;  // the slot of a choice that found none

// A gate's operand `expert` may say of a choice that the token does not go there, by a negative number: such a skipped
// choice gets no slot and counts in no load.
LANCET_HD bool is_skipped(std::int32_t expert) { return expert < 0; }
// A skipped choice of an expert counts towards the expert's capacity, like one that the expert keeps; one of `experts`,
// which is the number of an expert that does not exist, counts nowhere.
LANCET_HD std::int32_t skipped_choice(std::int32_t expert) { return ~expert; }
// The expert towards whose capacity an entry counts; the number of experts: none.
LANCET_HD std::int32_t counted_expert(std::int32_t expert) { return expert < 0 ? ~expert : expert; }

// expert i32[T,K] and slot i32[T,K] of T tokens with K choices each, and the slots [E,C,D] of the experts: of all, or
// of a rank's share, which are those from number E * place on.
struct TokenSlots {
  std::int64_t tokens, choices, first, experts, capacity;
  const std::int32_t *expert, *slot;

  TokenSlots(const TensorView& of_expert, const TensorView& of_slot, const TensorView& slots, Share share)
      : tokens(of_expert.shape()[0]),
        choices(of_expert.shape()[1]),
        first(slots.shape()[0] * share.place),
        experts(slots.shape()[0]),
        capacity(slots.shape()[1]),
        expert(of_expert.as<std::int32_t>()),
        slot(of_slot.as<std::int32_t>()) {}

  // The row of [E*C] that holds token t for its k-th choice; -1 if the choice was dropped, or another rank has its
  // expert.
  LANCET_HD std::int64_t row(std::int64_t t, std::int64_t k) const {
    const std::int64_t i = t * choices + k, e = expert[i] - first;
    return slot[i] == dropped || e < 0 || e >= experts ? -1 : e * capacity + slot[i];
  }
  // The first choice from k on that has a row; `choices` if none has.
  LANCET_HD std::int64_t next(std::int64_t t, std::int64_t k) const {
    while (k < choices && row(t, k) < 0) ++k;
    return k;
  }
};

}  // namespace lancet::ops
