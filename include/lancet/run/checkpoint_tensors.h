// Which tensors of a rank stand in a checkpoint, under which global names. Weights are f32, whatever they are computed
// in: of a bf16 weight the master is kept, and the weight is its rounding again; without a master, the weight itself.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lancet/checkpoint/background_writer.h"
#include "lancet/checkpoint/checkpoint.h"
#include "lancet/runtime/tensor_store.h"

namespace lancet::run {

// "h.0.moe.experts.c_fc.weight.m", 3 -> "h.0.moe.experts.3.c_fc.weight.m"
std::string expert_name(std::string_view name, std::int64_t expert);

bool is_saved(std::string_view name);  // whether a tensor of the store stands in checkpoints

// A stretch of a tensor in the store; at and bytes count f32, as checkpoints hold it.
struct Source {
  std::string name;
  std::uint64_t at = 0, bytes = 0;
};

// `to` of a tensor of f32 or bf16, as f32 from byte `at` (counted in f32) on.
Status read_f32(const runtime::TensorStore& store, const runtime::NamedTensor& tensor, std::uint64_t at,
                std::span<std::byte> to);

// What one rank writes: its experts, and its share of what all ranks hold.
struct RankShare {
  std::vector<checkpoint::Shard> shards;  // the weights' and the optimizer's
  std::vector<Source> sources;            // of the shards' tensors, in their order
  std::uint64_t bytes = 0;
};
RankShare share_of(const runtime::TensorStore& store, int rank, int ranks);

enum class LoadScope { all, weights };

// Fills the store of this rank from a checkpoint of any number of ranks. Config errors: a tensor that the model has and
// the checkpoint lacks, or the other way round, or of another shape. Data errors: Checkpoint::read.
Status load_tensors(runtime::TensorStore& store, const checkpoint::Checkpoint& checkpoint, int rank, int ranks,
                    LoadScope take);

}  // namespace lancet::run
