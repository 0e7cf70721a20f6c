// Walks the logical Program and emits what one rank executes of each instruction. A tensor of it has several versions
// on the ranks, one for each sharding: the one that its maker made, the one with the sharding that the Program says,
// and those that readers took. Each is made once, when the first reader takes it or something that is made from it, and
// is kept for all later readers: a gather of the forward pass also serves the backward pass, at the price of its memory
// in between. choose_rows.h picks the row of the op table by which the ranks share an instruction, from the versions at
// hand to the sharding that the Program says of the results.
//
// An update in place changes one version of the tensor. The other versions of everything in that memory are stale then,
// and are dropped. What is in the memory of a parameter or a state is only updated there, never in a copy.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "choose_rows.h"
#include "lancet/base/check.h"
#include "lancet/ops/catalogue.h"
#include "lancet/passes/passes.h"

namespace lancet::passes {
namespace {

using ir::Instruction;
using ir::TensorId;
using mesh::Sharding;

class PartitionSpmd {
 public:
  PartitionSpmd(const ir::Program& logical, const mesh::Mesh& mesh, const ReshardCost& cost)
      : logical_(logical), mesh_(mesh), cost_(cost), rows_(mesh, cost) {}

  Result<ir::Program> run() {
    result_.name = logical_.name;
    result_.attributes = logical_.attributes;
    if (result_.attributes.has("ranks")) result_.attributes.set("ranks", std::int64_t(mesh_.ranks()));
    LANCET_TRY(read_shardings());
    find_readers();
    LANCET_TRY(read_outputs());
    versions_.resize(logical_.tensors.size());
    add_named();
    for (const Instruction& instruction : logical_.instructions) LANCET_TRY(add(instruction));
    add_outputs();
    return std::move(result_);
  }

 private:
  struct Version {
    Sharding sharding;
    TensorId id = {};  // in the rank's Program; invalid until a reader takes it
  };

  Status read_shardings() {
    for (std::size_t i = 0; i < logical_.tensors.size(); ++i) {
      const ir::Tensor& tensor = logical_.tensors[i];
      const std::string shown = logical_.display({std::int32_t(i)});
      LANCET_CHECK(tensor.sharding, "{} has no sharding", shown);
      LANCET_CHECK(tensor.kind != ir::TensorKind::view, "{} is a view", shown);
      shardings_.push_back(restrict(*tensor.sharding, mesh_.wide()));
      if (const Status status = check_sharding(tensor.type, *tensor.sharding, mesh_); !status.ok())
        return config_error(fmt::format("{}: {}", shown, status.error().message));
    }
    return {};
  }

  void find_readers() {
    is_read_.resize(logical_.tensors.size());
    makers_.resize(logical_.tensors.size());
    for (const Instruction& instruction : logical_.instructions) {
      for (const TensorId id : instruction.operands) is_read_[id.index()] = true;
      for (const TensorId id : instruction.results) makers_[id.index()] = &instruction;
    }
  }

  // A gradient leaves split as its parameter is, a loss whole; both as partial as they were made. Their makers' rows
  // are chosen as if the sums were made here.
  Status read_outputs() {
    leaving_.resize(logical_.tensors.size());
    for (const ir::Output& output : logical_.outputs) {
      const std::size_t at = output.tensor.index();
      if (ir::is_share(output.kind)) {
        leaving_[at] = Sharding::whole(shardings_[at].dimensions.size());
      } else if (output.kind == ir::OutputKind::gradient) {
        leaving_[at] = sharding(output.parameter);
        const Sharding wanted = left_partial(*leaving_[at], shardings_[at].partial);
        if (is_pinned(output.tensor) && wanted != shardings_[at])
          return config_error(
              fmt::format("{}: expected the sum of its gradients split like the parameter, {}, found {}",
                          logical_.display(output.parameter), shown(output.parameter, wanted),
                          shown(output.tensor, shardings_[at])));
        shardings_[at] = wanted;
      } else {
        is_read_[at] = true;
      }
    }
    return {};
  }

  // The sharding, partial over those of the axes that do not split it.
  static Sharding left_partial(Sharding sharding, mesh::Axes partial) {
    const mesh::Axes used = sharding.used();
    for (const mesh::Axis axis : mesh::all_axes)
      if (partial.has(axis) && !used.has(axis)) sharding.partial.add(axis);
    return sharding;
  }

  std::string shown(TensorId id, const Sharding& sharding) const {
    return mesh::to_string(logical_.type(id).shape, sharding);
  }

  const Sharding& sharding(TensorId id) const { return shardings_[id.index()]; }

  void add_named() {
    for (std::size_t i = 0; i < logical_.tensors.size(); ++i) {
      const ir::Tensor& tensor = logical_.tensors[i];
      if (tensor.number >= 0) continue;
      const Sharding& split = shardings_[i];
      const bool local = tensor.kind != ir::TensorKind::input && !split.is_whole();
      const Shape shape = *shard_shape(tensor.type.shape, split, mesh_);
      versions_[i] = {{split, result_.add_named(tensor.kind, tensor.name, {tensor.type.dtype, shape}, local)}};
    }
  }

  // True if the tensor is in the memory of a parameter or a state.
  bool is_pinned(TensorId id) const { return logical_[logical_.root(id)].number < 0; }

  // True if the version is in the memory of the parameter or state itself, not in that of a copy.
  bool is_in_place(TensorId id, const Version& version) const {
    return version.id.valid() && result_.root(version.id) == versions_[logical_.root(id).index()].front().id;
  }

  // Operands that the instruction updates in place.
  bool is_updated(const Instruction& instruction, TensorId operand) const {
    return instruction.writes_operand(operand) || std::ranges::any_of(instruction.results, [&](TensorId result) {
             return logical_[result].storage == operand;
           });
  }

  Status add(const Instruction& instruction) {
    ShardedInstruction at{instruction, {}, {}};
    for (const TensorId id : instruction.operands) {
      ShardedOperand operand{logical_.type(id), {}, is_pinned(id) && is_updated(instruction, id)};
      for (const Version& version : versions_[id.index()])
        if (!operand.pinned || is_in_place(id, version)) operand.shardings.push_back(version.sharding);
      at.operands.push_back(std::move(operand));
    }
    for (const TensorId id : instruction.results) {
      ShardedOperand result{logical_.type(id), {}, is_pinned(id)};
      if (is_read_[id.index()] || leaving_[id.index()] || result.pinned) result.shardings.push_back(sharding(id));
      at.results.push_back(std::move(result));
    }
    LANCET_ASSIGN(const Share share, rows_.choose(at));
    emit(instruction, share);
    return {};
  }

  void emit(const Instruction& instruction, const Share& share) {
    std::vector<TensorId> operands;
    for (std::size_t i = 0; i < instruction.operands.size(); ++i)
      operands.push_back(version(instruction.operands[i], share.operands[i], instruction.role, instruction.label));
    const auto results =
        ops::append(result_, instruction.op, operands, share.attributes, instruction.role, instruction.label);
    for (std::size_t i = 0; i < operands.size(); ++i)
      if (instruction.writes_operand(instruction.operands[i])) drop_copies(instruction.operands[i], operands[i]);
    for (std::size_t r = 0; r < results.size(); ++r) {
      const TensorId id = instruction.results[r];
      drop_copies(logical_[id].storage, results[r]);
      std::vector<Version>& versions = versions_[id.index()];
      versions = {{share.results[r], results[r]}};
      if (is_read_[id.index()] && share.results[r] != sharding(id)) versions.push_back({sharding(id)});
      if (const auto& leaving = leaving_[id.index()])
        version(id, left_partial(*leaving, share.results[r].partial), instruction.role, instruction.label);
    }
  }

  // Keeps, of a tensor of the logical Program and of those in whose memory it is, the versions in the memory that
  // `written`, of the rank's Program, has overwritten.
  void drop_copies(TensorId id, TensorId written) {
    const TensorId memory = result_.root(written);
    for (; id.valid(); id = logical_[id].storage)
      std::erase_if(versions_[id.index()],
                    [&](const Version& version) { return !version.id.valid() || result_.root(version.id) != memory; });
  }

  // The version of a tensor with that sharding, made from the nearest one if no reader took it before. The role and the
  // label are of the instruction, or output, that takes it.
  TensorId version(TensorId id, const Sharding& wanted, ir::Role role, const std::string& label) {
    std::vector<Version>& versions = versions_[id.index()];
    const auto there = std::ranges::find(versions, wanted, &Version::sharding);
    const bool is_said = there != versions.end();  // by the Program, unless it is made
    if (is_said && there->id.valid()) return there->id;
    const auto [from, way] = nearest(id, wanted);
    if (!from.id.valid()) {  // readers of what the Program says have been priced as if it were made
      version(id, from.sharding, role, label);
      return version(id, wanted, role, label);
    }
    if (is_said) versions.erase(there);
    const Instruction* maker = makers_[id.index()];
    TensorId made = from.id;
    for (const Reshard& step : way.steps) {
      made = ops::append(result_, name(step.kind), {made}, attributes(step), is_said && maker ? maker->role : role,
                         fmt::format("{}.{}", maker ? maker->label : label, name(step.kind)))[0];
      versions.push_back({step.sharding, made});
    }
    return made;
  }

  // The version at hand from which the steps to another sharding are least, and the steps.
  std::pair<Version, ReshardSteps> nearest(TensorId id, const Sharding& wanted) const {
    std::optional<std::pair<Version, ReshardSteps>> best;
    for (const Version& version : versions_[id.index()]) {
      if (version.sharding == wanted) continue;
      ReshardSteps found = reshard_steps(logical_.type(id), version.sharding, wanted, mesh_, cost_);
      if (!best || is_less(found, best->second)) best = {version, std::move(found)};
    }
    LANCET_CHECK(best, "{} is not at hand", logical_.display(id));
    return std::move(*best);
  }

  void add_outputs() {
    for (const ir::Output& output : logical_.outputs) {
      const Sharding& made = versions_[output.tensor.index()].front().sharding;
      const auto& leaving = leaving_[output.tensor.index()];
      const Sharding there = leaving ? left_partial(*leaving, made.partial) : sharding(output.tensor);
      const TensorId id = version(output.tensor, there, ir::Role::forward, output.name);
      if (!there.partial.empty())
        result_[id].sharding = left_partial(Sharding::whole(there.dimensions.size()), there.partial);
      result_.add_output(output.name, id);
    }
  }

  const ir::Program& logical_;
  const mesh::Mesh mesh_;
  const ReshardCost& cost_;
  RowChooser rows_;
  ir::Program result_;
  std::vector<Sharding> shardings_;  // by tensor of the logical Program, as those below
  std::vector<bool> is_read_;
  std::vector<std::optional<Sharding>> leaving_;  // of gradients and losses: how they are split as outputs
  std::vector<const Instruction*> makers_;        // null for what has none
  std::vector<std::vector<Version>> versions_;
};

}  // namespace

Result<ir::Program> partition_spmd(const ir::Program& logical, const mesh::Mesh& mesh, const ReshardCost& cost) {
  return PartitionSpmd(logical, mesh, cost).run();
}

}  // namespace lancet::passes
