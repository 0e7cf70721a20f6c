// The transfer of packed shards among the ranks of a group, in rounds (messages.h).
//
// A round handles the same positions [from, to) of all shards. sum(): each rank packs, for each rank, the values at
// these positions of that rank's shards, sends one message to each other rank, and adds up what it got in the order of
// the ranks, as Communicator::all_reduce_sum does. gather(): each rank packs its own values, sends them to all others
// and unpacks what it got. Values travel as Wire, and sums are f32.
#pragma once
#include "messages.h"

namespace lancet::ops {

template <class Wire>
class CpuShardTransfer : public ShardMessages<Wire, comm::round_floats * sizeof(float)> {
  using Messages = ShardMessages<Wire, comm::round_floats * sizeof(float)>;
  using Messages::place_, Messages::ranks_, Messages::sent_of, Messages::received_of;

 public:
  CpuShardTransfer(const comm::Group& group, std::int64_t ranks, std::int64_t length, std::byte* workspace)
      : Messages(group, ranks, length, workspace), comm_(ranks > 1 ? group.comm : nullptr) {}

  // The sums over the ranks of the values f32 at [from, to) of this rank's shards of `values`, to the same positions of
  // the shards that `results` has for `result_rank`. rounded: each sum is rounded to Wire.
  Status sum(const PackedTensors& values, const PackedTensors& results, std::int64_t result_rank, bool rounded,
             std::int64_t from, std::int64_t to) const {
    const bool has_values = !comm_ || comm_->carries_values();
    for (std::int64_t q = 0; has_values && q < ranks_; ++q)
      pack<float>(values, q, from, to, q == place_ ? received_of(q) : sent_of(q));
    LANCET_TRY(send(true, to - from));
    if (!has_values) return {};
    walk(results, result_rank, from, to,
         [&](float* out, std::int64_t at, std::int64_t present, std::int64_t) { add_up(out, at, present, rounded); });
    return {};
  }

  // Completes `tensors`, of element type T, at [from, to) of all ranks' shards.
  template <class T>
  Status gather(const PackedTensors& tensors, std::int64_t from, std::int64_t to) const {
    const bool has_values = !comm_ || comm_->carries_values();
    if (has_values) pack<T>(tensors, place_, from, to, sent_of(0));
    LANCET_TRY(send(false, to - from));
    for (std::int64_t q = 0; has_values && q < ranks_; ++q)
      if (q != place_) unpack<T>(tensors, q, from, to, received_of(q));
    return {};
  }

 private:
  // Calls f(pointer to the first element, its position from `from` on, elements of the tensor, elements with padding)
  // for the run of each tensor in [from, to) of a rank's packed vector.
  template <class T = float, class F>
  static void walk(const PackedTensors& tensors, std::int64_t rank, std::int64_t from, std::int64_t to, F f) {
    auto tensor = std::ranges::upper_bound(tensors, from, {}, &PackedTensor::end);
    for (; tensor != tensors.end() && tensor->at < to; ++tensor) {
      const std::int64_t lo = std::max(from, tensor->at), hi = std::min(to, tensor->end);
      const std::int64_t first = rank * tensor->shard + tensor->begin + lo - tensor->at;
      const std::int64_t present = std::clamp<std::int64_t>(tensor->elements - first, 0, hi - lo);
      f(static_cast<T*>(tensor->data) + std::min(first, tensor->elements), lo - from, present, hi - lo);
    }
  }

  template <class T>
  static void pack(const PackedTensors& tensors, std::int64_t rank, std::int64_t from, std::int64_t to, Wire* to_wire) {
    walk<T>(tensors, rank, from, to, [&](const T* x, std::int64_t at, std::int64_t present, std::int64_t all) {
      for (std::int64_t i = 0; i < present; ++i) to_wire[at + i] = from_f32<Wire>(to_f32(x[i]));
      std::fill(to_wire + at + present, to_wire + at + all, from_f32<Wire>(0.f));
    });
  }

  template <class T>
  static void unpack(const PackedTensors& tensors, std::int64_t rank, std::int64_t from, std::int64_t to,
                     const Wire* from_wire) {
    walk<T>(tensors, rank, from, to, [&](T* x, std::int64_t at, std::int64_t present, std::int64_t) {
      for (std::int64_t i = 0; i < present; ++i) x[i] = from_f32<T>(to_f32(from_wire[at + i]));
    });
  }

  void add_up(float* out, std::int64_t at, std::int64_t count, bool rounded) const {
    for (std::int64_t i = 0; i < count; ++i) out[i] = to_f32(received_of(0)[at + i]);
    for (std::int64_t q = 1; q < ranks_; ++q) {
      const Wire* more = received_of(q) + at;
      for (std::int64_t i = 0; i < count; ++i) out[i] += to_f32(more[i]);
    }
    for (std::int64_t i = 0; rounded && i < count; ++i) out[i] = to_f32(from_f32<Wire>(out[i]));
  }

  Status send(bool each, std::int64_t count) const {
    if (!comm_) return {};
    return this->transfer(
        each, count, [this](const auto& sends, const auto& receives) { return comm_->send_receive(sends, receives); });
  }

  comm::Communicator* comm_;  // null: this rank is alone
};

}  // namespace lancet::ops
