// Two instructions are in conflict if they use overlapping bytes and one of them writes these. What step n - 1 left
// uses the memory as that step has left it, so each of its instructions goes before all instructions of step n that are
// in conflict with it. As the same list is run again and again, that is all that the order has to keep across the
// border: what the instructions left by one step need of each other and of the rest of their own step is checked on the
// list of one whole step (in_step_order).
#include "lancet/ir/step_border.h"

#include <fmt/format.h>

#include <algorithm>

#include "lancet/ir/micro_batches.h"
#include "lancet/ir/print.h"

namespace lancet::ir {
namespace {

struct Use {
  Region region;
  bool writes = false;
};

std::vector<Use> uses_of(const Program& program, const Instruction& at) {
  std::vector<Use> uses;
  for (TensorId id : at.operands) uses.push_back({program.region(id), at.writes_operand(id)});
  for (TensorId id : at.results) uses.push_back({program.region(id), true});
  return uses;
}

bool in_conflict(const std::vector<Use>& known, const Use& use) {
  return std::ranges::any_of(
      known, [&](const Use& other) { return (other.writes || use.writes) && overlap(other.region, use.region); });
}

// The input that an instruction reads although it is of the other step; invalid if there is none.
TensorId input_of_other_step(const Program& program, const Instruction& at) {
  for (TensorId id : at.operands) {
    const Tensor& tensor = program[program.root(id)];
    if (tensor.kind != TensorKind::input) continue;
    if ((parse_micro_batch(tensor.name).micro_batch == step_before) != of_step_before(at)) return program.root(id);
  }
  return {};
}

}  // namespace

bool crosses_steps(const Program& program) { return std::ranges::any_of(program.instructions, of_step_before); }

std::vector<InstructionId> in_step_order(const Program& program) {
  std::vector<InstructionId> order;
  for (const bool before : {false, true})
    for (std::size_t i = 0; i < program.instructions.size(); ++i)
      if (of_step_before(program.instructions[i]) == before) order.push_back(id_of(i));
  return order;
}

std::vector<bool> crossing_memory(const Program& program) {
  std::vector<bool> of_this(program.tensors.size()), of_before(program.tensors.size());
  for (const Instruction& at : program.instructions)
    for (const auto* list : {&at.operands, &at.results})
      for (TensorId id : *list) (of_step_before(at) ? of_before : of_this)[program.root(id).index()] = true;
  std::vector<bool> crossing(program.tensors.size());
  for (std::size_t i = 0; i < crossing.size(); ++i)
    crossing[i] = of_this[i] && of_before[i] && program.tensors[i].number >= 0;
  return crossing;
}

std::vector<TensorId> carried_values(const Program& program) {
  std::vector<bool> made(program.tensors.size()), named(program.tensors.size());
  for (const Instruction& at : program.instructions) {
    if (!of_step_before(at)) {
      for (TensorId id : at.results) made[id.index()] = true;
      continue;
    }
    for (const auto* list : {&at.operands, &at.results})
      for (TensorId id : *list)
        for (; id.valid(); id = program[id].storage) named[id.index()] = true;
  }
  std::vector<TensorId> carried;
  for (std::size_t i = 0; i < made.size(); ++i)
    if (made[i] && named[i] && program.tensors[i].kind == TensorKind::value)
      carried.push_back({static_cast<std::int32_t>(i)});
  return carried;
}

Status verify_border(const Program& program) {
  const std::vector<bool> closes = closes_step(program);
  std::vector<std::vector<Use>> used(program.tensors.size());  // by memory, by instructions of this step so far
  for (std::size_t i = 0; i < closes.size(); ++i) {
    const Instruction& at = program.instructions[i];
    const auto error = [&](std::string_view what) {
      return internal_error(fmt::format("instruction [{}] {}, in: {}", i, what, print(program, at)));
    };
    const bool before = of_step_before(at);
    if (before && !closes[i]) return error("is of the step before, but does not close a step");
    if (const TensorId input = input_of_other_step(program, at); input.valid())
      return error(fmt::format("reads {}, an input of another step than its own", program.display(input)));
    for (const Use& use : uses_of(program, at)) {
      std::vector<Use>& known = used[use.region.root.index()];
      if (!before)
        known.push_back(use);
      else if (in_conflict(known, use))
        return error(fmt::format("is of the step before, and comes after one of this step that uses the memory of {}",
                                 program.display(use.region.root)));
    }
  }
  return {};
}

}  // namespace lancet::ir
