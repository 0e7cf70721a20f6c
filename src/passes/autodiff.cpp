// Reverse-mode differentiation. gradients_ maps each tensor to the gradient known for it. The forward instructions
// are visited from last to first; the gradient rule of an op reads the gradients of its results, emits dX and dW
// instructions, and adds to the gradients of its operands, which are summed if there are several. Instructions that no
// gradient reaches, or whose operands depend on no parameter, are skipped. Losses start the process. Weight gradients
// may add onto an accumulator: an earlier gradient of the same parameter, or with `accumulate` the state @p.grad.
#include <algorithm>

#include "lancet/ops/catalogue.h"
#include "lancet/passes/passes.h"

namespace lancet::passes {
namespace {

using ir::Role;
using ir::TensorId;
using ir::TensorKind;

class Autodiff final : public ops::GradientContext {
 public:
  Autodiff(const ir::Program& forward, bool accumulate) : program_(forward), accumulate_(accumulate) {
    forward_count_ = forward.instructions.size();
    mark_needed();
    gradients_.resize(program_.tensors.size());
  }

  ir::Program run() {
    for (std::size_t i = forward_count_; i-- > 0;) {
      current_ = program_.instructions[i];  // a copy: emitting grows the list
      const ops::OpDef& op = ops::op(current_.op);
      const bool reached =
          op.is_loss || std::ranges::any_of(current_.results, [&](TensorId id) { return gradient_of(id).valid(); });
      if (reached && op.gradient && any_needed(current_.operands)) op.gradient(*this);
    }
    add_outputs();
    return std::move(program_);
  }

  const ir::Instruction& instruction() const override { return current_; }
  const ir::TensorType& type(TensorId id) const override { return program_.type(id); }
  TensorId result_gradient(int result) const override { return gradient_of(current_.results[std::size_t(result)]); }
  bool needs_gradient(int operand) const override { return needed_[current_.operands[std::size_t(operand)].index()]; }

  std::vector<TensorId> emit(std::string_view op, std::vector<TensorId> operands, ops::Attributes attributes,
                             Role role) override {
    auto results = ops::append(program_, op, std::move(operands), std::move(attributes), role, current_.label);
    gradients_.resize(program_.tensors.size());
    return results;
  }

  void add(int operand, TensorId gradient) override {
    const TensorId id = current_.operands[std::size_t(operand)];
    const TensorId before = gradient_of(id);
    const TensorId sum = before.valid() ? emit("add", {before, gradient}, {}, Role::dx)[0] : gradient;
    gradients_[id.index()] = sum;
  }

  TensorId accumulator(int operand) override {
    const TensorId id = current_.operands[std::size_t(operand)];
    TensorId& gradient = gradients_[id.index()];
    if (!gradient.valid() && accumulate_) {
      const ir::Tensor parameter = program_[id];  // a copy: add_named grows the table
      const TensorId sum =
          program_.add_state(ir::StateKind::gradient_sum, parameter.name, {DType::f32, parameter.type.shape});
      gradients_.resize(program_.tensors.size());
      return sum;
    }
    return gradient;
  }

  void replace(int operand, TensorId gradient) override {
    gradients_[current_.operands[std::size_t(operand)].index()] = gradient;
  }

 private:
  TensorId gradient_of(TensorId id) const { return gradients_[id.index()]; }

  bool any_needed(const std::vector<TensorId>& ids) const {
    return std::ranges::any_of(ids, [&](TensorId id) { return needed_[id.index()]; });
  }

  // Marks the tensors that need a gradient: parameters and all that depends on them.
  void mark_needed() {
    needed_.resize(program_.tensors.size());
    for (std::size_t i = 0; i < program_.tensors.size(); ++i)
      needed_[i] = program_.tensors[i].kind == TensorKind::parameter;
    for (const ir::Instruction& instruction : program_.instructions) {
      const bool any = any_needed(instruction.operands);
      for (TensorId id : instruction.results) needed_[id.index()] = any;
    }
  }

  void add_outputs() {
    for (std::size_t i = 0; i < needed_.size(); ++i)
      if (program_.tensors[i].kind == TensorKind::parameter && gradients_[i].valid())
        program_.add_output(ir::output_name(ir::OutputKind::gradient, program_.tensors[i].name), gradients_[i]);
  }

  ir::Program program_;
  bool accumulate_;
  std::size_t forward_count_ = 0;
  ir::Instruction current_;
  std::vector<bool> needed_;
  std::vector<TensorId> gradients_;  // by tensor; invalid: none yet
};

}  // namespace

ir::Program autodiff(const ir::Program& forward, bool accumulate) { return Autodiff(forward, accumulate).run(); }

}  // namespace lancet::passes
