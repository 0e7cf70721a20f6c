// Walks the logical Program and emits what one rank executes of each instruction. A tensor of it has several versions
// on the ranks, one for each sharding: the one that its maker made, the one with the sharding that the Program says,
// and those that readers took. Each is made once, when the first reader takes it or something that is made from it, and
// is kept for all later readers. But what the forward pass gathers, the backward pass gathers again, so that between
// the two no rank holds more than its shard (Korthikanti et al., section 4.2.2). choose_rows.h picks the row of the op
// table by which the ranks share an instruction, from the versions at hand to the sharding that the Program says of the
// results. Tensors of experts' slots change their sharding by the irregular all-to-all (choose_rows.h), and only when a
// reader needs it, since not every sharding can be reached.
//
// An update in place changes one version of the tensor. The other versions of everything in that memory are stale then,
// and are dropped. What is in the memory of a parameter or a state is only updated there, never in a copy.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "choose_rows.h"
#include "lancet/base/check.h"
#include "lancet/ir/groups.h"
#include "lancet/ops/catalogue.h"
#include "lancet/passes/passes.h"

namespace lancet::passes {
namespace {

using ir::Instruction;
using ir::Sharding;
using ir::TensorId;

class PartitionSpmd {
 public:
  PartitionSpmd(const ir::Program& logical, const ir::Mesh& mesh, const ReshardCost& cost)
      : logical_(logical), mesh_(mesh), cost_(cost), rows_(mesh, cost), ragged_(logical) {}

  Result<ir::Program> run() {
    result_.name = logical_.name;
    result_.attributes = logical_.attributes;
    LANCET_TRY(read_shardings());
    LANCET_TRY(ragged_.check(logical_, shardings_));
    find_makers_and_readers();
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
    TensorId id = {};          // in the rank's Program; invalid until a reader takes it
    bool is_gathered = false;  // by the step that made it, or one before
  };

  Status read_shardings() {
    for (std::size_t i = 0; i < logical_.tensors.size(); ++i) {
      const ir::Tensor& tensor = logical_.tensors[i];
      const std::string shown = logical_.display({std::int32_t(i)});
      LANCET_CHECK(tensor.sharding, "{} has no sharding", shown);
      LANCET_CHECK(tensor.kind != ir::TensorKind::view, "{} is a view", shown);
      LANCET_ASSIGN(Sharding sharding, ragged_.sharding_on(logical_, {std::int32_t(i)}, mesh_));
      shardings_.push_back(std::move(sharding));
    }
    return {};
  }

  void find_makers_and_readers() {
    is_read_.resize(logical_.tensors.size());
    makers_.resize(logical_.tensors.size());
    for (const Instruction& instruction : logical_.instructions) {
      for (const TensorId id : instruction.operands) is_read_[id.index()] = true;
      for (const TensorId id : instruction.results) makers_[id.index()] = &instruction;
    }
  }

  // A gradient leaves split as its parameter is and as partial as it was made; a loss or a load as it was made. Their
  // makers' rows are chosen as if the sums were made here.
  Status read_outputs() {
    leaving_.resize(logical_.tensors.size());
    adds_up_.resize(logical_.tensors.size());
    for (const ir::Output& output : logical_.outputs) {
      const std::size_t at = output.tensor.index();
      if (ir::is_share(output.kind)) {
        adds_up_[at] = true;
      } else if (output.kind == ir::OutputKind::rounds) {
        leaving_[at] = Sharding::whole(1);
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
  static Sharding left_partial(Sharding sharding, ir::Axes partial) {
    sharding.partial = sharding.partial | (partial - sharding.used());
    return sharding;
  }

  bool leaves(TensorId id) const { return leaving_[id.index()] || adds_up_[id.index()]; }
  // The sharding in which an output leaves. The first version of a tensor is as it was made.
  Sharding leaving(TensorId id) const {
    const Sharding& made = versions_[id.index()][0].sharding;
    if (ragged_.use(id).kind == SlotUse::Kind::windows) return *leaving_[id.index()];
    if (leaving_[id.index()]) return left_partial(*leaving_[id.index()], made.partial);
    return adds_up_[id.index()] || is_of_slots(id) ? made : sharding(id);
  }

  std::string shown(TensorId id, const Sharding& sharding) const {
    return ir::to_string(logical_.type(id).shape, sharding);
  }

  const Sharding& sharding(TensorId id) const { return shardings_[id.index()]; }

  void add_named() {
    for (std::size_t i = 0; i < logical_.tensors.size(); ++i) {
      const ir::Tensor& tensor = logical_.tensors[i];
      if (tensor.number >= 0) continue;
      const Sharding& split = shardings_[i];
      const bool split_here = tensor.kind != ir::TensorKind::input && !split.is_whole();
      const Shape shape = *shard_shape(tensor.type.shape, split, mesh_);
      const std::optional<Sharding> left = split_here ? std::optional(split) : std::nullopt;
      versions_[i] = {{split, result_.add_named(tensor.kind, tensor.name, {tensor.type.dtype, shape}, left)}};
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
    if (instruction.role != ir::Role::forward && !std::exchange(is_backward_, true))
      for (std::vector<Version>& versions : versions_) std::erase_if(versions, &Version::is_gathered);
    ShardedInstruction at{instruction, {}, {}};
    for (const TensorId id : instruction.operands) {
      ShardedOperand operand{logical_.type(id),
                             {},
                             ragged_.use(id),
                             is_pinned(id) && is_updated(instruction, id),
                             logical_[id].kind == ir::TensorKind::parameter};
      for (const Version& version : versions_[id.index()])
        if (!operand.pinned || is_in_place(id, version)) operand.shardings.push_back(version.sharding);
      at.operands.push_back(std::move(operand));
    }
    for (const TensorId id : instruction.results) {
      ShardedOperand result{logical_.type(id), {}, ragged_.use(id), is_pinned(id)};
      if (is_read_[id.index()] || leaves(id) || result.pinned) result.shardings.push_back(sharding(id));
      at.results.push_back(std::move(result));
    }
    LANCET_ASSIGN(const Share share, rows_.choose(at));
    emit(instruction, share);
    return {};
  }

  void emit(const Instruction& instruction, const Share& share) {
    repeated_ = instruction.repeated;
    for (const TensorId id : instruction.operands) send_counts(id, instruction);
    std::vector<TensorId> operands;
    for (std::size_t i = 0; i < instruction.operands.size(); ++i)
      operands.push_back(version(instruction.operands[i], share.operands[i], instruction.role, instruction.label));
    const auto results =
        ops::append(result_, instruction.op, operands, share.attributes, instruction.role, instruction.label);
    set_repeated(results, repeated_);
    for (std::size_t i = 0; i < operands.size(); ++i)
      if (instruction.writes_operand(instruction.operands[i])) drop_copies(instruction.operands[i], operands[i]);
    for (std::size_t r = 0; r < results.size(); ++r) {
      const TensorId id = instruction.results[r];
      drop_copies(logical_[id].storage, results[r]);
      std::vector<Version>& versions = versions_[id.index()];
      versions = {{share.results[r], results[r]}};
      if (is_read_[id.index()] && !is_of_slots(id) && share.results[r] != sharding(id))
        versions.push_back({sharding(id)});
      if (leaves(id)) version(id, leaving(id), instruction.role, instruction.label);
    }
  }

  // Notes of the last instruction, which made `results`, that it is in the body of a repeat; 0: in none.
  void set_repeated(const std::vector<TensorId>& results, std::int32_t repeated) {
    result_.instructions.back().repeated = repeated;
    repeated_makers_.resize(result_.tensors.size());
    for (const TensorId id : results) repeated_makers_[id.index()] = repeated;
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
    const bool is_listed = there != versions.end();  // is made, or is the sharding that the Program says
    if (is_listed && there->id.valid()) return there->id;
    const std::optional<Way> way = way_to(id, wanted);
    LANCET_CHECK(way, "{}: no way from a version at hand to {}", logical_.display(id), shown(id, wanted));
    if (!way->from.id.valid()) {  // readers of what the Program says have been priced as if it were made
      version(id, way->from.sharding, role, label);
      return version(id, wanted, role, label);
    }
    if (is_listed) versions.erase(there);
    const Instruction* maker = makers_[id.index()];
    const ir::Role of_steps = is_listed && maker ? maker->role : role;
    Version made = way->from;
    for (const Reshard& step : way->steps.steps) {
      made = {step.sharding, take_step(id, made, step, of_steps, maker ? maker->label : label, label),
              made.is_gathered || step.kind == Reshard::Kind::all_gather};
      versions.push_back(made);
    }
    return made.id;
  }

  // The least steps to a sharding from a version of a tensor, none from a made one that has it; no value if no version
  // has a way there.
  struct Way {
    Version from;
    ReshardSteps steps;
  };
  std::optional<Way> way_to(TensorId id, const Sharding& wanted) const {
    const auto price = [&](const Reshard& step) { return step_cost(ragged_.use(id), step, cost_); };
    std::optional<Way> best;
    for (const Version& version : versions_[id.index()]) {
      if (version.sharding == wanted && !version.id.valid()) continue;
      ReshardSteps steps = reshard_steps(logical_.type(id), version.sharding, wanted, mesh_, price);
      if (std::isinf(steps.cost)) continue;
      if (!best || is_less(steps, best->steps)) best = Way{version, std::move(steps)};
    }
    return best;
  }

  // One step from a version of a tensor. The role is that of the instruction; its label begins with that of the
  // tensor's maker. Rows that return in the backward pass have the label under which they went, as a gradient has that
  // of its forward instruction: the passes that cut a step in parts match the two by it.
  TensorId take_step(TensorId id, const Version& from, const Reshard& step, ir::Role role, const std::string& maker,
                     const std::string& reader) {
    std::string_view op = name(step.kind);
    std::string_view place = maker, way = op;
    std::vector<TensorId> operands{from.id};
    ir::Attributes attributes = passes::attributes(step, mesh_);
    const SlotUse::Kind use = ragged_.use(id).kind;
    if (use == SlotUse::Kind::counts && step.kind == Reshard::Kind::reduce_scatter) {
      op = way = "all_to_all_counts";
      attributes = {{"ranks", std::int64_t(step.ranks)}};
      ir::set_group(attributes, mesh_, step.axes);
      if (const TensorId windows = ragged_.partner(id); windows.valid()) {
        op = way = "all_to_all_counts_windows";
        operands.push_back(versions_[windows.index()].front().id);
      }
    } else if (use == SlotUse::Kind::windows) {
      return windows_of(id, from);
    } else if (use == SlotUse::Kind::buffer && step.kind == Reshard::Kind::swap_shards) {
      const bool there = step.to == 0;
      const bool returns = role != ir::Role::forward;
      op = there ? "all_to_all" : "all_to_all_back";
      way = there == returns ? "all_to_all_back" : "all_to_all";
      if (returns) place = reader;
      const TensorId counts = ragged_.counts(id);
      const Sharding &of_tokens = there ? from.sharding : step.sharding,
                     &of_experts = there ? step.sharding : from.sharding;
      operands.push_back(version(counts, sharding_of_counts(of_tokens), role, maker));
      operands.push_back(version(counts, sharding_of_counts(of_experts), role, maker));
      attributes = {};
      ir::set_group(attributes, mesh_, step.axes);
      if (ragged_.tokens(counts) > 0)
        attributes.set("tokens", ragged_.tokens(counts) / ir::shards(of_tokens.dimensions[0], mesh_) /
                                     ir::shards(of_tokens.dimensions[1], mesh_));
    }
    repeated_makers_.resize(result_.tensors.size());
    const std::int32_t made_in = repeated_makers_[from.id.index()];  // a body has the steps of what it makes alone
    const auto results =
        ops::append(result_, op, std::move(operands), std::move(attributes), role, fmt::format("{}.{}", place, way));
    set_repeated(results, made_in == repeated_ ? made_in : 0);
    if (results.size() > 1) group_windows_[ragged_.partner(id).value] = results[1];
    return results[0];
  }

  // The largest number of windows of the ranks whose all-to-alls meet: it came with their counts. Without such
  // all-to-alls it is the rank's own.
  TensorId windows_of(TensorId windows, const Version& from) {
    const TensorId counts = ragged_.partner(windows);
    for (const TensorId buffer : ragged_.buffers(counts)) {
      const Sharding wanted = sharding_of_counts(sharding(buffer));
      if (way_to(counts, wanted))
        version(counts, wanted, makers_[counts.index()]->role, makers_[counts.index()]->label);
    }
    const auto found = group_windows_.find(windows.value);
    return found == group_windows_.end() ? from.id : found->second;
  }

  bool is_of_slots(TensorId id) const { return ragged_.use(id).kind != SlotUse::Kind::none; }

  // Counts travel before their first reader, so that no all-to-all waits for them.
  void send_counts(TensorId id, const Instruction& near) {
    for (const TensorId buffer : ragged_.buffers(id)) {
      const Sharding wanted = sharding_of_counts(sharding(buffer));
      const auto there = std::ranges::find(versions_[id.index()], wanted, &Version::sharding);
      if (there != versions_[id.index()].end() && there->id.valid()) continue;
      if (way_to(id, wanted)) version(id, wanted, near.role, near.label);
    }
  }

  void add_outputs() {
    for (const ir::Output& output : logical_.outputs) {
      const Sharding there = leaving(output.tensor);
      const TensorId id = version(output.tensor, there, ir::Role::forward, output.name);
      const ir::Axes summed = adds_up_[output.tensor.index()] ? there.used() : there.partial;
      if (!summed.empty()) result_[id].sharding = left_partial(Sharding::whole(there.dimensions.size()), summed);
      result_.add_output(output.name, id);
    }
  }

  const ir::Program& logical_;
  const ir::Mesh mesh_;
  const ReshardCost& cost_;
  RowChooser rows_;
  const RaggedTensors ragged_;
  ir::Program result_;
  std::vector<Sharding> shardings_;  // by tensor of the logical Program, as those below
  std::vector<bool> is_read_;
  std::vector<std::optional<Sharding>> leaving_;  // of gradients and rounds: how they are split as outputs
  std::vector<bool> adds_up_;                     // losses and loads, whose shards add up as well as their summands
  std::vector<const Instruction*> makers_;        // null for what has none
  std::vector<std::vector<Version>> versions_;
  bool is_backward_ = false;
  std::int32_t repeated_ = 0;                       // of the instruction at hand: Instruction::repeated
  std::vector<std::int32_t> repeated_makers_;       // by tensor of the rank's Program: that of its maker
  std::map<std::int32_t, TensorId> group_windows_;  // by windows of the logical Program: those of the group
};

}  // namespace

Result<ir::Program> partition_spmd(const ir::Program& logical, const ir::Mesh& mesh, const ReshardCost& cost) {
  return PartitionSpmd(logical, mesh, cost).run();
}

}  // namespace lancet::passes
