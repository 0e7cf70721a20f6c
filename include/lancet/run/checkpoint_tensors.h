// Maps the tensors of a rank to those of a checkpoint, which have global names and are f32 whatever the run computes
// in. For a bf16 weight the checkpoint holds its f32 master, and loading rounds it to the weight again; for a bf16
// weight without a master it holds the weight itself.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lancet/base/flat_shard.h"
#include "lancet/checkpoint/background_writer.h"
#include "lancet/checkpoint/checkpoint.h"
#include "lancet/comm/communicator.h"
#include "lancet/runtime/tensor_store.h"

namespace lancet::run {

// True for a parameter whose dimension 0 are experts, each of which is a tensor of its own in checkpoints, and for its
// states.
bool holds_experts(std::string_view name);
// "h.0.moe.experts.c_fc.weight.m", 3 -> "h.0.moe.experts.3.c_fc.weight.m"
std::string expert_name(std::string_view name, std::int64_t expert);

// Where the values of a checkpoint's tensor come from: elements of a tensor in the stores of one rank or several.
struct Source {
  std::string name;
  FlatRange elements = {};                     // of the whole tensor
  std::uint64_t at = 0, bytes = 0;             // offset in the writer's store and size, in bytes of f32
  std::optional<std::uint64_t> gathered = {};  // instead of `at`, if ranks have parts: in what gather_parts() returns
};

// Fills `to` with the f32 values of a tensor of f32 or bf16, from byte `at` (counted in f32) on.
Status read_f32(const runtime::TensorStore& store, const runtime::NamedTensor& tensor, std::uint64_t at,
                std::span<std::byte> to);

// The tensors that one rank writes: its share of those that it holds with others, and its own.
struct RankShare {
  std::vector<checkpoint::Shard> shards;  // one of weights, one of optimizer states
  std::vector<Source> sources;            // of the shards' tensors, in their order
  std::uint64_t bytes = 0, gathered_bytes = 0;
};
// By rank of the store's mesh; the same on all ranks.
std::vector<RankShare> shares_of(const runtime::TensorStore& store);

// Collective over the world, whose ranks have the places of the store's mesh. The sources of this rank's share of which
// ranks have parts (flat shards of ZeRO-1, shards of split tensors), whole, one after the other: a checkpoint holds
// whole tensors, so that runs on any mesh can load it. shares: shares_of(store). Error: the communication fails, or a
// rank cannot read its store.
Result<std::vector<std::byte>> gather_parts(const runtime::TensorStore& store, std::span<const RankShare> shares,
                                            comm::Communicator& world);

// Fills `to` with elements of a whole parameter. step: the caller needs row 0, step, 2 step and so on of the range; the
// others may be left as they are.
using ReadParameter = std::function<Status(const std::string& parameter, const FlatRange& elements, std::span<float> to,
                                           std::int64_t step)>;

// Fills what the store's rank holds of a parameter, and of its master, block by block.
Status fill_parameter(runtime::TensorStore& store, const std::string& name, const ReadParameter& read);

enum class LoadScope { all, weights };

// Reads the parameters of a checkpoint without a store, for programs that need one tensor at a time.
class ParameterReader {
 public:
  // checkpoint: outlives the reader.
  explicit ParameterReader(const checkpoint::Checkpoint& checkpoint) : checkpoint_(checkpoint) {}
  // Reads no values; read() finds damage. store: of the whole model; its values are not used. Data errors: a tensor
  // that is missing, unknown, or of another shape or type.
  Status check(const runtime::TensorStore& store) const;
  // Fills `to` with elements of a parameter, of one expert if it has experts. Data error: a damaged file.
  Status read(const std::string& parameter, const FlatRange& elements, std::span<float> to);

 private:
  const checkpoint::Checkpoint& checkpoint_;
  std::string kept_;  // the tensor that was read last
  std::vector<float> values_;
};

// Fills the store with what its rank holds of the tensors of a checkpoint of any mesh. Config errors: a tensor that
// only the model or only the checkpoint has, or whose shapes differ. Data errors: those of Checkpoint::load.
Status load_tensors(runtime::TensorStore& store, const checkpoint::Checkpoint& checkpoint, LoadScope scope);

}  // namespace lancet::run
