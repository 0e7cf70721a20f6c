// The walk goes through the step in order. Before an instruction of the backward pass that reads a chosen value, it
// makes that value again, and before that, recursively, the chosen values of which it is made. A value is made again
// once: all later readers take the copy, whose memory is free after the last of them.
#include "lancet/passes/passes.h"

#include <algorithm>

#include "lancet/base/check.h"
#include "lancet/ops/catalogue.h"

namespace lancet::passes {
namespace {

using ir::Instruction;
using ir::TensorId;

// Of an instruction whose op can be repeated.
const ops::Again& again_of(const Instruction& at) { return *ops::op(at.op).again; }

// Calls f(chosen instruction) in the order in which they have to run before something reads `id`, each once.
class Maker {
 public:
  Maker(const Recomputation& of, const std::vector<std::int32_t>& maker, const std::vector<bool>& chosen)
      : of_(of), maker_(maker), chosen_(chosen), made_(chosen.size()) {}

  void make(TensorId id, std::vector<Recomputation::Place>& order) {
    const std::int32_t maker = maker_[id.index()];
    if (maker < 0 || !chosen_[std::size_t(maker)] || made_[std::size_t(maker)]) return;
    if (std::ranges::count(of_.results(std::size_t(maker)), id) == 0) return;
    made_[std::size_t(maker)] = true;
    for (const TensorId operand : of_.operands(std::size_t(maker))) make(operand, order);
    order.push_back({std::size_t(maker), true});
  }

 private:
  const Recomputation& of_;
  const std::vector<std::int32_t>& maker_;
  const std::vector<bool>& chosen_;
  std::vector<bool> made_;  // again, by instruction
};

}  // namespace

Recomputation::Recomputation(const ir::Program& step)
    : step_(step), maker_(step.tensors.size(), -1), candidates_(step.instructions.size()) {
  const auto is_forward = [](const Instruction& at) { return at.role == ir::Role::forward; };
  const auto& instructions = step.instructions;
  forward_end_ = std::size_t(std::ranges::find_if_not(instructions, is_forward) - instructions.begin());
  for (std::size_t i = 0; i < forward_end_; ++i)
    for (const TensorId id : instructions[i].results) maker_[id.index()] = std::int32_t(i);
  std::vector<bool> read(instructions.size());  // what it makes, by the backward pass
  for (std::size_t i = forward_end_; i < instructions.size(); ++i)
    for (const TensorId id : instructions[i].operands)
      if (const std::int32_t maker = maker_[id.index()]; maker >= 0) read[std::size_t(maker)] = true;
  std::vector<bool> shares_memory(step.tensors.size());  // in the memory of another tensor, or with another in its own
  for (std::size_t i = 0; i < step.tensors.size(); ++i)
    if (const TensorId storage = step.tensors[i].storage; storage.valid())
      shares_memory[i] = shares_memory[storage.index()] = true;
  for (std::size_t i = 0; i < forward_end_; ++i) candidates_[i] = read[i] && can_repeat(i, shares_memory);
}

std::vector<TensorId> Recomputation::operands(std::size_t instruction) const {
  const Instruction& at = step_.instructions[instruction];
  const ops::Again& again = again_of(at);
  if (again.op.empty()) return at.operands;
  std::vector<TensorId> operands;
  for (const int from : again.operands)
    operands.push_back(from >= 0 ? at.operands[std::size_t(from)] : at.results[std::size_t(-1 - from)]);
  return operands;
}

std::vector<TensorId> Recomputation::results(std::size_t instruction) const {
  const Instruction& at = step_.instructions[instruction];
  const ops::Again& again = again_of(at);
  if (again.op.empty()) return at.results;
  std::vector<TensorId> results;
  for (const int result : again.results) results.push_back(at.results[std::size_t(result)]);
  return results;
}

bool Recomputation::can_repeat(std::size_t instruction, const std::vector<bool>& shares_memory) const {
  const Instruction& at = step_.instructions[instruction];
  if (!ops::op(at.op).again || !at.body.empty() || at.repeated != 0 || at.stream != ir::Stream::compute) return false;
  const auto is_gathered = [&](TensorId id) {
    const std::int32_t maker = maker_[id.index()];
    return maker >= 0 && ops::kind(step_.instructions[std::size_t(maker)]) == ops::Kind::collective;
  };
  const auto own = [&](TensorId id) { return step_[id].kind == ir::TensorKind::value && !shares_memory[id.index()]; };
  const std::vector<TensorId> from = operands(instruction), made = results(instruction);
  return std::ranges::all_of(made, own) &&
         std::ranges::all_of(from,
                             [&](TensorId id) {
                               const bool named = step_[id].number < 0;
                               return named || (own(id) && !is_gathered(id));
                             }) &&
         std::ranges::none_of(step_.outputs,
                              [&](const ir::Output& output) { return std::ranges::count(made, output.tensor) > 0; });
}

std::vector<Recomputation::Place> Recomputation::order(const std::vector<bool>& chosen) const {
  std::vector<Place> order;
  Maker maker(*this, maker_, chosen);
  for (std::size_t i = 0; i < step_.instructions.size(); ++i) {
    if (i >= forward_end_)
      for (const TensorId id : step_.instructions[i].operands) maker.make(id, order);
    order.push_back({i, false});
  }
  return order;
}

ir::Program Recomputation::run(const std::vector<bool>& chosen) const {
  LANCET_CHECK(chosen.size() == candidates_.size(), "{} instructions are chosen among {}", chosen.size(),
               candidates_.size());
  ir::Program result = step_.without_instructions();
  std::vector<TensorId> now(step_.tensors.size());  // by tensor: what the backward pass reads in its place
  for (std::size_t i = 0; i < now.size(); ++i) now[i] = {static_cast<std::int32_t>(i)};
  const auto rename = [&](Instruction& at) {
    for (TensorId& id : at.operands) id = now[id.index()];
    for (Instruction& part : at.body)
      for (TensorId& id : part.operands) id = now[id.index()];
  };
  for (const auto& [instruction, again] : order(chosen)) {
    Instruction at = step_.instructions[instruction];
    if (again) {
      LANCET_CHECK(candidates_[instruction], "{} at {} is not to be repeated", at.op, at.label);
      if (!again_of(at).op.empty()) at.op = again_of(at).op;
      at.operands = operands(instruction);
      at.results = results(instruction);
      at.role = ir::Role::recompute;
    }
    if (instruction >= forward_end_ || again) rename(at);
    if (again)
      for (TensorId& id : at.results) id = now[id.index()] = result.add_value(step_.type(id));
    result.instructions.push_back(std::move(at));
  }
  return result;
}

}  // namespace lancet::passes
