// From one sharding of a tensor to another: the collectives that it takes (GShard, section 3.3; table in
// docs/architecture.md).
//
//     partial -> whole             sum_shards          all-reduce
//     partial -> split             reduce_scatter
//     split -> whole               all_gather
//     split moves to another dim.  swap_shards         all-to-all
//     whole -> split               take_shard          local: each rank keeps its shard
//     whole -> partial             one_summand         local: one rank of the group keeps it, the others have zeros
#pragma once
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "lancet/ir/program.h"
#include "lancet/ir/sharding.h"

namespace lancet::passes {

// The axes of a sharding that are among `axes`; those of one coordinate (all but Mesh::wide()) split nothing.
ir::Sharding restrict(ir::Sharding sharding, ir::Axes axes);

// Success if ranks of the mesh can hold the tensor so. Errors (ExitCode::config): those of ir::shard_shape(), with
// dimension, axes and numbers; a sharding over pipeline stages, which share no tensor.
Status check_sharding(const ir::TensorType& type, const ir::Sharding& sharding, const ir::Mesh& mesh);

struct Reshard {
  enum class Kind : std::uint8_t { take_shard, one_summand, swap_shards, reduce_scatter, sum_shards, all_gather };
  Kind kind = Kind::take_shard;
  ir::Axes axes = {};  // the groups of ranks that it is over
  int ranks = 1;       // of one group
  int from = -1;       // the dimension that becomes longer: all_gather, swap_shards
  int to = -1;         // the dimension that becomes shorter: take_shard, swap_shards, reduce_scatter
  ir::Blocks from_blocks = {}, to_blocks = {};
  ir::TensorType before = {}, after = {};  // of one rank's tensor
  ir::Sharding sharding = {};              // of the tensor, after this step
};

std::string_view name(Reshard::Kind kind);  // also the name of the op
inline bool is_local(Reshard::Kind kind) {
  return kind == Reshard::Kind::take_shard || kind == Reshard::Kind::one_summand;
}
// The attributes of the op. A collective over all ranks names no group.
ir::Attributes attributes(const Reshard& step, const ir::Mesh& mesh);

// What one step costs, at least 0; in any unit, the same for all. It is asked for every step that a search may take, so
// it is a cheap function of the step alone.
using ReshardCost = std::function<double(const Reshard&)>;
// The bytes that one rank sends, for planning without a network in mind.
double bytes_sent(const Reshard& step);

struct ReshardSteps {
  std::vector<Reshard> steps = {};  // in order; none if the shardings are equal
  double cost = 0;
  int collectives() const;
};
// The order in which ways are preferred: less cost, then fewer collectives, then fewer steps.
bool is_less(const ReshardSteps& a, const ReshardSteps& b);

// The cheapest way from one sharding of a tensor to another, of equal ones that of fewest steps. Shardings on the way
// split each dimension by the outermost of the axes that one of the two has there: a slice of another dimension, taken
// back later, could make a sum cheaper, and is not tried. type: of the whole tensor. Both shardings fit the type and
// name axes of several coordinates only (ir::shard_shape checks the former).
ReshardSteps reshard_steps(const ir::TensorType& type, const ir::Sharding& from, const ir::Sharding& to,
                           const ir::Mesh& mesh, const ReshardCost& cost);

}  // namespace lancet::passes
