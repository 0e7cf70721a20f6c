// The messages in which ranks send each other packed shards, and their memory, the same on all devices.
//
// The workspace has a message to each rank, and behind them one from each rank. A round handles the same positions of
// all shards, and bounds how long another stream waits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "lancet/base/check.h"
#include "lancet/base/flat_shard.h"
#include "lancet/comm/communicator.h"
#include "lancet/comm/mpi.h"
#include "lancet/ops/kernel.h"

namespace lancet::ops {

// The flat shards (base/flat_shard.h) of several tensors as one vector: position x of a rank's packed vector is an
// element of the rank's shard of one of the tensors. Positions are the same for all ranks, so that the ranks' messages
// have equal sizes; padding travels, too.

// Positions [at, end) are elements `begin` and following of each shard of this tensor: position x of rank q is element
// q * shard + begin + x - at of it, and padding if the tensor has no such element.
struct PackedTensor {
  void* data;
  std::int64_t elements, shard, begin, at, end;
};
using PackedTensors = std::vector<PackedTensor>;

inline std::int64_t length_of(const PackedTensors& tensors) { return tensors.empty() ? 0 : tensors.back().end; }

inline void append(PackedTensors& tensors, void* data, std::int64_t elements, std::int64_t shard, std::int64_t begin,
                   std::int64_t length) {
  const std::int64_t at = length_of(tensors);
  tensors.push_back({data, elements, shard, begin, at, at + length});
}

// The shards of these tensors; of each shard, the elements that the attributes begin and length choose, or all.
inline PackedTensors packed(const std::vector<TensorView>& tensors, const ir::Attributes& attributes) {
  const std::int64_t ranks = attributes.integer("shards");
  PackedTensors result;
  for (const TensorView& tensor : tensors) {
    const std::int64_t shard = flat_shard_elements(tensor.elements(), ranks);
    append(result, tensor.data, tensor.elements(), shard, attributes.integer("begin", 0),
           attributes.integer("length", shard));
  }
  return result;
}

// Tensors that are one rank's shards themselves, at the positions of packed(), as those of the rank at place 0.
inline PackedTensors packed_shards(const std::vector<TensorView>& shards) {
  PackedTensors result;
  for (const TensorView& shard : shards)
    append(result, shard.data, shard.elements(), shard.elements(), 0, shard.elements());
  return result;
}

// The type in which values travel: f32, or bf16 by the attribute `message`.
inline DType message_type(const ir::Attributes& attributes) {
  if (!attributes.has("message")) return DType::f32;
  LANCET_CHECK(attributes.text("message") == "bf16", "expected the attribute message=bf16, found {}",
               attributes.text("message"));
  return DType::bf16;
}

// Positions of a round, a multiple of flat_shard_step as lengths are: a rank sends at most round_bytes to all ranks
// together, `bytes` an element.
inline std::int64_t positions_of_round(std::int64_t length, std::int64_t ranks, std::int64_t bytes,
                                       std::int64_t round_bytes) {
  const auto shortest = std::int64_t(comm::shortest_piece * sizeof(float));
  const std::int64_t most = std::max(round_bytes / ranks, shortest) / bytes;
  return std::min(length, most / flat_shard_step * flat_shard_step);
}

// The ranks of the call. A kernel that is bound without communicator, as a sample is, serves one rank.
inline std::int64_t ranks_of_shards(const KernelArgs& args, bool has_communicator) {
  const std::int64_t planned = args.attributes.integer("shards");
  LANCET_CHECK(planned == 1 || (has_communicator && args.group.size == planned),
               "{} is planned for {} ranks, its group has {}", args.op, planned, args.group.size);
  return planned;
}

// Wire: the type in which values travel. round_bytes: what a rank sends at most in a round.
template <class Wire, std::int64_t round_bytes>
class ShardMessages {
 public:
  // workspace: workspace_bytes() of them. A single rank needs no group.
  ShardMessages(const comm::Group& group, std::int64_t ranks, std::int64_t length, std::byte* workspace)
      : place_(ranks > 1 ? group.place : 0),
        ranks_(int(ranks)),
        message_length_(positions(ranks, length)),
        length_(length),
        sent_(reinterpret_cast<Wire*>(workspace)),
        received_(sent_ + ranks * message_length_) {}

  static std::size_t workspace_bytes(std::int64_t ranks, std::int64_t length) {
    return std::size_t(2 * ranks * positions(ranks, length)) * sizeof(Wire);
  }

  int place() const { return place_; }

  // Calls body(from, to) for each round.
  template <class F>
  Status rounds(F body) const {
    for (std::int64_t from = 0; from < length_; from += message_length_)
      LANCET_TRY(body(from, std::min(from + message_length_, length_)));
    return {};
  }

 protected:
  Wire* sent_of(std::int64_t rank) const { return sent_ + rank * message_length_; }
  Wire* received_of(std::int64_t rank) const { return received_ + rank * message_length_; }

  // Calls send_receive(sends, receives) with the first `count` values of the messages to the other ranks. each: every
  // rank gets its own message; else all get message 0.
  template <class F>
  Status transfer(bool each, std::int64_t count, F send_receive) const {
    sends_.clear();
    receives_.clear();
    for (int peer = 0; peer < ranks_; ++peer) {
      if (peer == place_) continue;
      const std::size_t bytes = std::size_t(count) * sizeof(Wire);
      sends_.push_back({peer, reinterpret_cast<std::byte*>(sent_of(each ? peer : 0)), bytes});
      receives_.push_back({peer, reinterpret_cast<std::byte*>(received_of(peer)), bytes});
    }
    return send_receive(sends_, receives_);
  }

  int place_, ranks_;
  std::int64_t message_length_;  // elements of a message

 private:
  static std::int64_t positions(std::int64_t ranks, std::int64_t length) {
    return positions_of_round(length, ranks, sizeof(Wire), round_bytes);
  }

  std::int64_t length_;
  Wire *sent_, *received_;
  mutable std::vector<comm::Segment> sends_, receives_;  // kept, so that a step allocates nothing
};

}  // namespace lancet::ops
