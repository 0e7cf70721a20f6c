// The flat shards (base/flat_shard.h) of several tensors as one vector: position x of a rank's packed vector is an
// element of the rank's shard of one of the tensors. Positions are the same for all ranks, so that the ranks' messages
// have equal sizes; padding travels, too.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "lancet/base/check.h"
#include "lancet/base/flat_shard.h"
#include "lancet/comm/rounds.h"
#include "lancet/ops/kernel.h"

namespace lancet::ops {

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

}  // namespace lancet::ops
