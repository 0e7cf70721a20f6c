// Walks the instructions in program order and appends each to the new order, after those of its dependencies that are
// missing and before those listed to follow it (recursively). Moved instructions are skipped by the walk. An
// instruction of the reduce stream is appended as soon as the walk has reached it and all its dependencies are in the
// new order.
#include "reorder.h"

#include <algorithm>

namespace lancet::schedule {
namespace {

using ir::id_of;
using ir::InstructionId;

class Reorder {
 public:
  Reorder(const ir::Program& program, const Dependencies& dependencies, const std::vector<Order>& after)
      : dependencies_(dependencies),
        after_(after),
        moved_(dependencies.size()),
        emitted_(dependencies.size()),
        reached_(dependencies.size()),
        missing_(dependencies.size()),
        reductions_after_(dependencies.size()) {
    for (const Order& list : after)
      for (InstructionId id : list) moved_[id.index()] = true;
    for (std::size_t i = 0; i < dependencies.size(); ++i) {
      if (program.instructions[i].stream != ir::Stream::reduce) continue;
      missing_[i] = dependencies[i].size();
      for (InstructionId before : dependencies[i]) reductions_after_[before.index()].push_back(id_of(i));
    }
  }

  Order run() {
    for (std::size_t i = 0; i < dependencies_.size(); ++i) {
      reached_[i] = true;
      if (!moved_[i] && missing_[i] == 0) emit(id_of(i));
    }
    LANCET_CHECK(order_.size() == dependencies_.size(), "{} of {} instructions are in the new order", order_.size(),
                 dependencies_.size());
    return std::move(order_);
  }

 private:
  void emit(InstructionId id) {
    const std::size_t i = id.index();
    if (emitted_[i]) return;
    for (InstructionId before : dependencies_[i]) emit(before);
    if (emitted_[i]) return;  // it follows one of its dependencies
    emitted_[i] = true;
    order_.push_back(id);
    for (InstructionId next : after_[i]) emit(next);
    for (InstructionId reduction : reductions_after_[i])
      if (--missing_[reduction.index()] == 0 && reached_[reduction.index()]) emit(reduction);
  }

  const Dependencies& dependencies_;
  const std::vector<Order>& after_;
  std::vector<bool> moved_, emitted_, reached_;
  std::vector<std::size_t> missing_;     // reduce stream: number of dependencies not in the new order yet; else 0
  std::vector<Order> reductions_after_;  // instructions of the reduce stream that depend on this one
  Order order_;
};

}  // namespace

Order reordered(const ir::Program& program, const Dependencies& dependencies, const std::vector<Order>& after) {
  return Reorder(program, dependencies, after).run();
}

void join(Dependencies& dependencies, const Dependencies& extra) {
  LANCET_CHECK(extra.empty() || extra.size() == dependencies.size(),
               "expected extra needs of {} instructions, found {}", dependencies.size(), extra.size());
  for (std::size_t i = 0; i < extra.size(); ++i) {
    auto& list = dependencies[i];
    list.insert(list.end(), extra[i].begin(), extra[i].end());
    std::sort(list.begin(), list.end());
    list.erase(std::unique(list.begin(), list.end()), list.end());
  }
}

ir::Program permuted(ir::Program program, const Order& order) {
  std::vector<ir::Instruction> instructions;
  instructions.reserve(order.size());
  for (InstructionId id : order) instructions.push_back(std::move(program.instructions[id.index()]));
  program.instructions = std::move(instructions);
  return program;
}

Dependencies renumbered(const Dependencies& dependencies, const Order& order) {
  std::vector<InstructionId> position(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) position[order[i].index()] = id_of(i);
  Dependencies result = permuted(dependencies, order);
  for (std::vector<InstructionId>& list : result) {
    for (InstructionId& id : list) id = position[id.index()];
    std::sort(list.begin(), list.end());
  }
  return result;
}

}  // namespace lancet::schedule
