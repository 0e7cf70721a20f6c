// Propagation by a worklist of tensors: whenever the axis of a tensor becomes known, every member that touches it and
// has no row yet takes the first row that agrees, if there is one, which makes the axes of its other tensors known. An
// axis once set never changes, so the worklist empties after at most one visit per tensor. Windows of rings, which are
// parts already, take no row.
#include <algorithm>
#include <limits>

#include "lancet/ops/catalogue.h"
#include "lancet/schedule/partition/cut.h"

namespace lancet::schedule {
namespace {

using ir::InstructionId;
using ir::TensorId;
using ops::Axis;
using ops::PartitionRow;

constexpr Axis unknown = std::numeric_limits<Axis>::max();

class AxisSolver {
 public:
  AxisSolver(const ir::Program& program, std::span<const InstructionId> members)
      : program_(program),
        rows_(program.instructions.size()),
        axes_(program.tensors.size(), unknown),
        users_(program.tensors.size()) {
    for (InstructionId id : members) for_tensors(id, [&](TensorId tensor) { users_[tensor.index()].push_back(id); });
    for (InstructionId id : members) {
      const ops::OpDef& op = ops::op(instruction(id).op);
      if (op.kind == ops::Kind::all_to_all) take(id, op.partition.front());
    }
    if (changed_.empty()) split_sequences();
  }

  AxisRows run() {
    while (!changed_.empty()) {
      const TensorId tensor = changed_.back();
      changed_.pop_back();
      for (InstructionId id : users_[tensor.index()])
        if (!rows_[id.index()]) try_rows(id);
    }
    return std::move(rows_);
  }

 private:
  // Without experts, what is known is the batch that the model is given.
  void split_sequences() {
    for (std::size_t i = 0; i < axes_.size(); ++i) {
      const ir::Tensor& tensor = program_.tensors[i];
      if (tensor.kind == ir::TensorKind::input && tensor.type.shape.rank() == 2 && !users_[i].empty())
        set(TensorId{std::int32_t(i)}, 0);
    }
  }

  const ir::Instruction& instruction(InstructionId id) const { return program_.instructions[id.index()]; }

  template <class F>
  void for_tensors(InstructionId id, F f) const {
    for (TensorId tensor : instruction(id).operands) f(tensor);
    for (TensorId tensor : instruction(id).results) f(tensor);
  }

  void try_rows(InstructionId id) {
    if (instruction(id).attributes.has("parts")) return;
    for (const PartitionRow& row : ops::op(instruction(id).op).partition)
      if (row.in_time() && agrees(id, row)) return take(id, row);
  }

  static bool contiguous(Axis axis) { return axis <= 0; }

  // True if the row agrees with the known axes of all tensors, and at least one tensor is known to be split: an
  // instruction is split only if a neighbour is.
  bool agrees(InstructionId id, const PartitionRow& row) const {
    const ir::Instruction& at = instruction(id);
    if (at.operands.size() > row.operands.size() || at.results.size() > row.results.size()) return false;
    if (ops::moves(at, row.operands.front())) return false;
    bool split = false;
    auto fits = [&](TensorId tensor, Axis axis) {
      const Axis known = axes_[tensor.index()];
      split |= known != unknown && known != ops::none;
      return contiguous(axis) && (known == unknown || known == axis);
    };
    for (std::size_t i = 0; i < at.operands.size(); ++i)
      if (!fits(at.operands[i], row.operands[i])) return false;
    for (std::size_t i = 0; i < at.results.size(); ++i)
      if (!fits(at.results[i], row.results[i])) return false;
    return split;
  }

  void take(InstructionId id, const PartitionRow& row) {
    rows_[id.index()] = &row;
    const ir::Instruction& at = instruction(id);
    for (std::size_t i = 0; i < at.operands.size(); ++i)
      set(at.operands[i], row.operands[std::min(i, row.operands.size() - 1)]);
    for (std::size_t i = 0; i < at.results.size(); ++i) set(at.results[i], row.results[i]);
  }

  void set(TensorId tensor, Axis axis) {
    if (axes_[tensor.index()] != unknown) return;
    axes_[tensor.index()] = axis;
    if (axis != ops::none) changed_.push_back(tensor);
  }

  const ir::Program& program_;
  AxisRows rows_;
  std::vector<Axis> axes_;
  std::vector<std::vector<InstructionId>> users_;  // by tensor: members that touch it
  std::vector<TensorId> changed_;                  // the worklist
};

}  // namespace

AxisRows infer_axes(const ir::Program& program, std::span<const InstructionId> members) {
  return AxisSolver(program, members).run();
}

}  // namespace lancet::schedule
