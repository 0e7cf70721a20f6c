// What a window of experts' slots holds, for kernels of host and device.
#pragma once
#include <cstdint>

#include "lancet/base/hd.h"
#include "lancet/ops/kernel.h"
#include "ops/token_slots.h"

namespace lancet::ops {

// Window r has the slots [r * C, (r + 1) * C) of every expert, which it numbers from 0 on. r is read from `round`, or
// is 0 without it.
struct SlotWindow {
  std::int64_t choices, experts, capacity;  // T * K; E; C
  const std::int32_t *slot, *filled;        // [T*K]; [E, 2]
  const std::int32_t* round;                // of the window, or null: the first one
  std::int32_t *window_slot, *window_filled;

  // round_: null for the first window.
  SlotWindow(const KernelArgs& args, const TensorView& slot_, const TensorView& filled_, const TensorView* round_)
      : choices(slot_.elements()),
        experts(filled_.shape()[0]),
        capacity(args.attributes.integer("slots")),
        slot(slot_.as<std::int32_t>()),
        filled(filled_.as<std::int32_t>()),
        round(round_ ? round_->as<std::int32_t>() : nullptr),
        window_slot(args.results[0].as<std::int32_t>()),
        window_filled(args.results[1].as<std::int32_t>()) {}

  static SlotWindow first(const KernelArgs& args) { return {args, args.operands[1], args.operands[2], nullptr}; }
  static SlotWindow of_round(const KernelArgs& args) {
    return {args, args.operands[0], args.operands[1], &args.operands[2]};
  }

  LANCET_HD std::int64_t begin() const { return round ? *round * capacity : 0; }
  // Sets the slot of choice i in the window that begins at slot `begin`.
  LANCET_HD void set_slot(std::int64_t i, std::int64_t begin) const {
    const std::int64_t at = slot[i] - begin;
    window_slot[i] = slot[i] == dropped || at < 0 || at >= capacity ? dropped : std::int32_t(at);
  }
  // Sets entry i of filled, [E, 2].
  LANCET_HD void set_filled(std::int64_t i, std::int64_t begin) const {
    const std::int64_t at = filled[i] - begin;
    window_filled[i] = std::int32_t(at < 0 ? 0 : at < capacity ? at : capacity);
  }
  // The windows that hold the choices of expert e: at least 1.
  LANCET_HD std::int32_t windows(std::int64_t e) const {
    const std::int32_t end = filled[2 * e + 1], size = std::int32_t(capacity);
    return end <= size ? 1 : (end - 1) / size + 1;
  }
};

}  // namespace lancet::ops
