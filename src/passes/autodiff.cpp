// Reverse-mode differentiation. gradients_ maps each tensor to the gradient known for it. The forward instructions
// are visited from last to first; the gradient rule of an op reads the gradients of its results, emits dX and dW
// instructions, and adds to the gradients of its operands, which are summed if there are several. Instructions that no
// gradient reaches, or whose operands depend on no parameter, are skipped. Losses start the process. Weight gradients
// may add onto an accumulator: an earlier gradient of the same parameter, or with `accumulate` the state @p.grad.
//
// The body of a repeat (ir/program.h) keeps nothing of its rounds. Its backward pass is the body of another repeat,
// which first computes the forward body again, all but what that updates, and then the gradients of one round. A
// gradient of what is made outside is added onto zeros, or onto the accumulator of a weight gradient, so that it is
// right after any number of rounds, none included; what the instructions outside of the body contribute is added after
// that.
#include <algorithm>
#include <map>
#include <set>

#include "lancet/base/check.h"
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
    grow();
  }

  ir::Program run() {
    for (const ir::Instruction& at : program_.instructions) repeats_ = std::max(repeats_, at.repeated);
    for (std::size_t i = forward_count_; i-- > 0;) {
      current_ = program_.instructions[i];  // a copy: emitting grows the list
      if (current_.repeated != forward_repeat_) {
        end_repeat();
        if (current_.repeated > 0) begin_repeat(i);
      }
      for (auto* list : {&current_.operands, &current_.results})
        for (TensorId& id : *list) id = renamed(id);
      const ops::OpDef& op = ops::op(current_.op);
      const bool reached = op.kind == ops::Kind::loss ||
                           std::ranges::any_of(current_.results, [&](TensorId id) { return gradient_of(id).valid(); });
      if (reached && op.gradient && any_needed(current_.operands)) op.gradient(*this);
    }
    end_repeat();
    for (std::size_t i = 0; i < needed_.size(); ++i)
      if (program_.tensors[i].kind == TensorKind::parameter && gradients_[i].valid())
        program_.add_output(ir::output_name(ir::OutputKind::gradient, program_.tensors[i].name), gradients_[i]);
    return std::move(program_);
  }

  const ir::Instruction& instruction() const override { return current_; }
  const ir::TensorType& type(TensorId id) const override { return program_.type(id); }
  TensorId result_gradient(int result) const override { return gradient_of(current_.results[std::size_t(result)]); }
  bool needs_gradient(int operand) const override { return needed_[current_.operands[std::size_t(operand)].index()]; }

  std::vector<TensorId> emit(std::string_view op, std::vector<TensorId> operands, ops::Attributes attributes,
                             Role role) override {
    return emit_in(backward_repeat_, op, std::move(operands), std::move(attributes), role);
  }

  void add(int operand, TensorId gradient) override {
    const TensorId id = current_.operands[std::size_t(operand)];
    const TensorId before = gradient_of(id);
    if (is_outside(id) && is_updated(id)) {  // the gradient passes through all rounds as it is
      LANCET_CHECK(!before.valid(), "{} is updated at {} and read elsewhere", program_.display(id), current_.label);
      gradients_[id.index()] = gradient;
      return;
    }
    if (is_outside(id)) return add_round(id, gradient);
    if (is_sum_[id.index()]) {
      gradients_[id.index()] = emit("add_to", {before, gradient}, {}, Role::dx)[0];
      return;
    }
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
      grow();
      return sum;
    }
    if (!gradient.valid() && is_outside(id)) return emit_in(0, "zeros", {id}, {{"f32", 1}}, Role::dw)[0];
    return gradient;
  }

  void replace(int operand, TensorId gradient) override {
    gradients_[current_.operands[std::size_t(operand)].index()] = gradient;
  }

 private:
  TensorId gradient_of(TensorId id) const { return gradients_[id.index()]; }

  void grow() {
    gradients_.resize(program_.tensors.size());
    is_sum_.resize(program_.tensors.size());
    inside_.resize(program_.tensors.size());
  }

  // repeat: in whose body it is; 0: in none.
  std::vector<TensorId> emit_in(std::int32_t repeat, std::string_view op, std::vector<TensorId> operands,
                                ops::Attributes attributes, Role role) {
    auto results = ops::append(program_, op, std::move(operands), std::move(attributes), role, current_.label);
    program_.instructions.back().repeated = repeat;
    grow();
    for (const TensorId id : results) inside_[id.index()] = repeat;
    return results;
  }

  // True if the backward pass of a body is being made, and the tensor is not made in it.
  bool is_outside(TensorId id) const { return backward_repeat_ > 0 && inside_[id.index()] != backward_repeat_; }

  // True if the instruction at hand makes a result in the tensor's memory.
  bool is_updated(TensorId id) const {
    return std::ranges::any_of(current_.results, [&](TensorId made) { return program_[made].storage == id; });
  }

  // Computes the forward body that ends with instruction `last` again, in the body of a new repeat.
  void begin_repeat(std::size_t last) {
    forward_repeat_ = current_.repeated;
    backward_repeat_ = ++repeats_;
    std::size_t first = last;
    while (first > 0 && program_.instructions[first - 1].repeated == forward_repeat_) --first;
    for (std::size_t i = first; i <= last; ++i)
      for (const TensorId id : program_.instructions[i].results) made_by_forward_.insert(id);
    for (std::size_t i = first; i <= last; ++i) {
      ir::Instruction again = program_.instructions[i];  // a copy: this function grows the list
      const bool updates = std::ranges::any_of(
          again.results, [&](TensorId id) { return !made_by_forward_.contains(program_.root(id)); });
      if (updates) continue;
      for (TensorId& id : again.operands) id = renamed(id);
      for (TensorId& id : again.results) {
        const ir::Tensor made = program_[id];
        const TensorId copy = program_.add_value(made.type, made.storage.valid() ? renamed(made.storage) : TensorId{});
        grow();
        needed_.resize(program_.tensors.size());
        needed_[copy.index()] = needed_[id.index()];
        inside_[copy.index()] = backward_repeat_;
        id = renames_[id] = copy;
      }
      again.repeated = backward_repeat_;
      program_.instructions.push_back(std::move(again));
    }
  }

  // Drops what was computed again in the backward body, and nothing there reads.
  void drop_unread() {
    std::set<TensorId> read;
    for (std::size_t i = program_.instructions.size(); i-- > forward_count_;) {
      const ir::Instruction& at = program_.instructions[i];
      if (at.repeated != backward_repeat_) continue;
      const bool unread = std::ranges::none_of(at.results, [&](TensorId id) { return read.contains(id); });
      if (at.role == Role::forward && unread)
        program_.instructions.erase(program_.instructions.begin() + std::ptrdiff_t(i));
      else
        read.insert(at.operands.begin(), at.operands.end());
    }
  }

  // Adds up what rounds and the instructions after them contribute to the gradients of the same tensors.
  void end_repeat() {
    if (backward_repeat_ == 0) return;
    drop_unread();
    forward_repeat_ = backward_repeat_ = 0;
    made_by_forward_.clear();
    renames_.clear();
    for (const auto& [id, after] : after_rounds_) {
      if (after.valid())  // no reference to the sum: emitting grows the list
        gradients_[id.index()] = emit_in(0, "add_to", {gradient_of(id), after}, {}, Role::dx)[0];
      is_sum_[id.index()] = true;
    }
    after_rounds_.clear();
  }

  // Adds a round's gradient of a tensor that is made outside of the body.
  void add_round(TensorId id, TensorId gradient) {
    if (!after_rounds_.contains(id)) {
      after_rounds_[id] = gradient_of(id);
      gradients_[id.index()] = emit_in(0, "zeros", {id}, {}, Role::dx)[0];
    }
    const TensorId sum = emit("add_to", {gradients_[id.index()], gradient}, {}, Role::dx)[0];
    gradients_[id.index()] = sum;
  }

  TensorId renamed(TensorId id) const {
    const auto found = renames_.find(id);
    return found == renames_.end() ? id : found->second;
  }

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

  ir::Program program_;
  bool accumulate_;
  std::size_t forward_count_ = 0;
  ir::Instruction current_;
  std::vector<bool> needed_;
  std::vector<TensorId> gradients_;  // by tensor; invalid: none yet
  std::vector<bool> is_sum_;  // by tensor: its gradient is a sum of rounds, onto which more may be added in place
  std::vector<std::int32_t> inside_;  // by tensor: the backward repeat in whose body it is made, or 0
  std::int32_t repeats_ = 0;          // numbers of repeats in use
  std::int32_t forward_repeat_ = 0, backward_repeat_ = 0;  // that of the instruction at hand, and of its backward pass
  std::set<TensorId> made_by_forward_;                     // in the forward body
  std::map<TensorId, TensorId> renames_;                   // of these: what the backward body makes again
  std::map<TensorId, TensorId>
      after_rounds_;  // gradients of tensors from outside that later instructions made, or none
};

}  // namespace

ir::Program autodiff(const ir::Program& forward, bool accumulate) { return Autodiff(forward, accumulate).run(); }

}  // namespace lancet::passes
