// The ranks of a mesh in lock step: each instruction of the rank's Program on all of them, by its reference in double;
// changes of sharding by definition. Tensors in one memory are one value: an update in place is seen by all readers.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "lancet/ops/catalogue.h"
#include "ops/references/harness.h"
#include "passes/shards.h"

namespace lancet::test {

// The step that an instruction is, if it changes a sharding.
inline std::optional<passes::Reshard> reshard_of(const ir::Program& program, const ir::Instruction& at,
                                                 const ir::Mesh& mesh) {
  using Kind = passes::Reshard::Kind;
  for (const Kind kind : {Kind::take_shard, Kind::one_summand, Kind::swap_shards, Kind::reduce_scatter,
                          Kind::sum_shards, Kind::all_gather}) {
    if (name(kind) != at.op) continue;
    passes::Reshard step{.kind = kind, .axes = ir::group_of(at, mesh)};
    step.ranks = mesh.size(step.axes);
    step.before = program.type(at.operands[0]);
    step.after = program.type(at.results[0]);
    const bool gathers = kind == Kind::all_gather, swaps = kind == Kind::swap_shards;
    (gathers ? step.from : step.to) = int(at.attributes.integer("axis", -1));
    (gathers ? step.from_blocks : step.to_blocks) = at.attributes.blocks("blocks");
    if (swaps) {
      step.from = int(at.attributes.integer("from"));
      step.from_blocks = at.attributes.blocks("from_blocks");
      step.to = int(at.attributes.integer("to"));
      step.to_blocks = at.attributes.blocks("to_blocks");
    }
    return step;
  }
  return std::nullopt;
}

class LockStep {
 public:
  LockStep(const ir::Program& program, const ir::Mesh& mesh) : program_(program), mesh_(mesh) {}

  // Fills an input, a parameter or a state.
  void set(const std::string& name, const DoubleTensor& whole, const ir::Sharding& sharding) {
    of_memory(program_.find(name)) = spread(whole, passes::restrict(sharding, mesh_.wide()), mesh_);
  }

  void run() {
    for (const ir::Instruction& at : program_.instructions)
      if (const auto step = reshard_of(program_, at, mesh_))
        of_memory(at.results[0]) = apply(*step, of(at.operands[0]), mesh_);
      else if (at.op == "permute_shards")
        permute(at);
      else if (at.op == "take_window" || at.op == "join_windows")
        copy_windows(at);
      else
        compute(at);
  }

  // What each rank holds.
  const std::vector<DoubleTensor>& of(ir::TensorId id) const { return values_.at(program_.root(id).value); }

 private:
  // Which share of the instruction a rank computes.
  ops::Share share_of(const ir::Instruction& at, int rank) const {
    if (!at.attributes.has(ir::axes_attribute)) return {};
    const ir::Axes axes = *ir::parse_axes(ir::axes_text(at));
    return {mesh_.place(rank, axes), mesh_.size(axes)};
  }

  std::vector<DoubleTensor>& of_memory(ir::TensorId id) { return values_[program_.root(id).value]; }

  // The rank that many places on in the instruction's group.
  int neighbour(const ir::Instruction& at, int rank, std::int64_t places) const {
    const ir::Axes axes = ir::group_of(at, mesh_);
    const std::vector<int> group = mesh_.group(rank, axes);
    const auto size = std::int64_t(group.size());
    return group[std::size_t(((mesh_.place(rank, axes) + places) % size + size) % size)];
  }

  void permute(const ir::Instruction& at) {
    const std::int64_t shift = at.attributes.integer("shift");
    for (std::size_t i = 0; i < at.operands.size(); ++i) {
      const std::vector<DoubleTensor> sent = of(at.operands[i]);
      std::vector<DoubleTensor>& received = of_memory(at.results[i]) = sent;
      for (int rank = 0; rank < mesh_.ranks(); ++rank)
        received[std::size_t(rank)] = sent[std::size_t(neighbour(at, rank, i == 0 ? shift : -shift))];
    }
  }

  // take_window and join_windows: window w is the shard of the rank w places on.
  void copy_windows(const ir::Instruction& at) {
    const bool joins = at.op == "join_windows";
    const ir::TensorType &whole = program_.type((joins ? at.results : at.operands)[0]),
                         &window = program_.type((joins ? at.operands : at.results)[0]);
    const ir::Axes axes = ir::group_of(at, mesh_);
    const auto dimension = std::size_t(at.attributes.integer("axis"));
    const std::int64_t shards = at.attributes.integer("shards");
    const ir::Blocks blocks = at.attributes.blocks("blocks");
    std::vector<DoubleTensor> made(std::size_t(mesh_.ranks()), DoubleTensor{joins ? whole : window, {}});
    for (int rank = 0; rank < mesh_.ranks(); ++rank) {
      std::vector<double>& values = made[std::size_t(rank)].values;
      values.resize(std::size_t(made[std::size_t(rank)].type.shape.elements()));
      for (std::size_t w = 0; w < (joins ? at.operands.size() : 1); ++w) {
        const std::int64_t number = joins ? std::int64_t(w) : at.attributes.integer("part");
        const std::int64_t place = mesh_.place(neighbour(at, rank, number), axes);
        const DoubleTensor& from = of(at.operands[w])[std::size_t(rank)];
        for_each_index(window.shape, [&](std::vector<std::int64_t> index) {
          const std::size_t in_window = offset_of(window.shape, index);
          index[dimension] = in_whole(index[dimension], whole.shape[int(dimension)], shards, place, blocks);
          const std::size_t in_all = offset_of(whole.shape, index);
          values[joins ? in_all : in_window] = from.values[joins ? in_window : in_all];
        });
      }
    }
    of_memory(at.results[0]) = std::move(made);
  }

  void compute(const ir::Instruction& at) {
    for (int rank = 0; rank < mesh_.ranks(); ++rank) {
      std::vector<DoubleTensor> operands;
      for (const ir::TensorId id : at.operands) operands.push_back(of(id)[std::size_t(rank)]);
      const ReferenceCall call = run_reference(ops::op(at.op), std::move(operands), at.attributes, share_of(at, rank));
      auto set = [&](ir::TensorId id, const DoubleTensor& value) {
        of_memory(id).resize(std::size_t(mesh_.ranks()));
        of_memory(id)[std::size_t(rank)] = value;
      };
      for (std::size_t i = 0; i < at.operands.size(); ++i)
        if (at.writes_operand(at.operands[i])) set(at.operands[i], call.operands[i]);
      for (std::size_t r = 0; r < at.results.size(); ++r) set(at.results[r], call.results[r]);
    }
  }

  const ir::Program& program_;
  ir::Mesh mesh_;
  std::map<std::int32_t, std::vector<DoubleTensor>> values_;  // by the tensor whose memory it is, and rank
};

}  // namespace lancet::test
