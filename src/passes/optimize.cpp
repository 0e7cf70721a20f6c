// Appends one update instruction per parameter that has a grad.* output, in the order in which the gradients are made,
// so that an update can run as soon as its gradient is ready. With clipping or a guard the global norm comes first and
// every update reads its factor; else the norm comes last, for the metrics alone. Ranks share the dense parameters and
// own different experts, so only the experts' part of the norm is summed, over the mesh's axis `expert`. Ranks that own
// the same experts have the same sums, to the bit, and none counts twice.
#include <algorithm>

#include "lancet/base/random.h"
#include "lancet/ir/groups.h"
#include "lancet/ops/catalogue.h"
#include "lancet/passes/passes.h"

namespace lancet::passes {
namespace {

using ir::Role;
using ir::TensorId;
using ir::TensorKind;

class Optimize {
 public:
  Optimize(const ir::Program& program, const OptimizeOptions& options) : program_(program), options_(options) {}

  ir::Program run() {
    collect();
    if (updates_.empty()) return std::move(program_);
    const TensorId schedule = program_.add_named(TensorKind::input, "schedule", {DType::f32, {4}});
    if (options_.clip_grad > 0 || options_.guard) {
      const TensorId clip = clip_scale();
      const TensorId clipped = ops::append(program_, "clipped_schedule", {schedule, clip}, {}, Role::update, "norm")[0];
      for (const Update& update : updates_) this->update(update, clipped);
    } else {  // the norm is only a metric: no update waits for it
      for (const Update& update : updates_) this->update(update, schedule);
      clip_scale();
    }
    zero_accumulated();
    std::erase_if(program_.outputs, [&](const ir::Output& output) {
      const bool zeroed = program_[program_.root(output.tensor)].kind == TensorKind::state;
      return output.kind == ir::OutputKind::gradient && (zeroed || !options_.keep_gradients);
    });
    return std::move(program_);
  }

 private:
  struct Update {
    TensorId parameter, gradient;
  };

  void collect() {
    for (const ir::Output& output : program_.outputs)
      if (output.kind == ir::OutputKind::gradient) updates_.push_back({output.parameter, output.tensor});
    std::vector<std::size_t> made(program_.tensors.size());
    is_weight_.resize(program_.tensors.size());
    for (std::size_t i = 0; i < program_.instructions.size(); ++i) {
      const ir::Instruction& at = program_.instructions[i];
      for (TensorId id : at.results) made[id.index()] = i;
      for (int operand : ops::op(at.op).weights) is_weight_[at.operands[std::size_t(operand)].index()] = true;
    }
    std::ranges::stable_sort(updates_, {}, [&](const Update& update) { return made[update.gradient.index()]; });
  }

  // Shared gradients are the same on all ranks and count once; those of experts are summed over the axis `expert`.
  TensorId clip_scale() {
    std::vector<TensorId> shared, local, sums;
    for (const Update& update : updates_)
      (program_[update.parameter].local ? local : shared).push_back(update.gradient);
    if (!local.empty()) {
      TensorId sum = ops::append(program_, "squared_norm", local, {}, Role::update, "norm.experts")[0];
      if (options_.mesh[mesh::Axis::expert] > 1) {
        ops::Attributes attributes;
        ir::set_group(attributes, options_.mesh, {mesh::Axis::expert});
        sum = ops::append(program_, "all_reduce", {sum}, attributes, Role::sync, "norm.experts")[0];
      }
      sums.push_back(sum);
    }
    if (!shared.empty())
      sums.push_back(ops::append(program_, "squared_norm", shared, {}, Role::update, "norm.shared")[0]);
    const TensorId clip =
        ops::append(program_, "clip_scale", sums, {{"max_norm", options_.clip_grad}}, Role::update, "norm")[0];
    program_.add_output("grad_norm", clip);
    return clip;
  }

  TensorId state(TensorId parameter, ir::StateKind kind) {
    const ir::Tensor source = program_[parameter];  // a copy: the table grows
    return program_.add_state(kind, source.name, {DType::f32, source.type.shape}, source.local);
  }

  // Each tensor is rounded with its own random numbers.
  std::int64_t rounding_seed(const std::string& name) const {
    return std::int64_t(Philox(std::uint64_t(options_.seed), stream_of(name)).block(0)[0] >> 1);
  }

  void update(const Update& update, TensorId schedule) {
    const ir::Tensor parameter = program_[update.parameter];
    const double decay = is_weight_[update.parameter.index()] ? options_.weight_decay : 0;
    const bool rounded = parameter.type.dtype != DType::f32, master = rounded && options_.masters;
    std::vector<TensorId> operands{update.parameter, state(update.parameter, ir::StateKind::first_moment)};
    ops::Attributes attributes;
    if (options_.kind == OptimizeOptions::Kind::adamw) {
      operands.push_back(state(update.parameter, ir::StateKind::second_moment));
      attributes = {
          {"beta1", options_.beta1}, {"beta2", options_.beta2}, {"eps", options_.eps}, {"weight_decay", decay}};
    } else {
      attributes = {{"momentum", options_.momentum}, {"weight_decay", decay}};
    }
    operands.push_back(update.gradient);
    operands.push_back(schedule);
    if (master) operands.push_back(state(update.parameter, ir::StateKind::master));
    if (rounded && !master) attributes.set("rounding_seed", rounding_seed(parameter.name));
    const char* op = options_.kind == OptimizeOptions::Kind::adamw ? "adamw" : "sgd";
    ops::append(program_, op, operands, attributes, Role::update, parameter.name);
  }

  void zero_accumulated() {
    for (const Update& update : updates_)
      if (const TensorId sum = program_.root(update.gradient); program_[sum].kind == TensorKind::state)
        ops::append(program_, "zero", {sum}, {}, Role::update, program_[update.parameter].name);
  }

  ir::Program program_;
  const OptimizeOptions& options_;
  std::vector<Update> updates_;
  std::vector<bool> is_weight_;  // by tensor
};

}  // namespace

ir::Program optimize(const ir::Program& program, const OptimizeOptions& options) {
  return Optimize(program, options).run();
}

}  // namespace lancet::passes
