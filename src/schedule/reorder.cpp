#include "reorder.h"

#include <algorithm>

namespace lancet::schedule {
namespace {

using ir::id_of;
using ir::InstructionId;

class Reorder {
 public:
  Reorder(const ir::Program& program, const Dependencies& dependencies, const std::vector<Order>& behind)
      : program_(program),
        dependencies_(dependencies),
        behind_(behind),
        moved_(dependencies.size()),
        emitted_(dependencies.size()),
        reached_(dependencies.size()),
        missing_(dependencies.size()),
        reductions_behind_(dependencies.size()) {
    for (const Order& list : behind)
      for (InstructionId id : list) moved_[id.index()] = true;
    for (std::size_t i = 0; i < dependencies.size(); ++i) {
      if (program.instructions[i].stream != ir::Stream::reduce) continue;
      missing_[i] = dependencies[i].size();
      for (InstructionId before : dependencies[i]) reductions_behind_[before.index()].push_back(id_of(i));
    }
  }

  Order run() {
    for (std::size_t i = 0; i < dependencies_.size(); ++i) {
      reached_[i] = true;
      const bool waits = program_.instructions[i].stream == ir::Stream::reduce && missing_[i] > 0;
      if (!moved_[i] && !waits) emit(id_of(i));
    }
    LANCET_CHECK(order_.size() == dependencies_.size(), "{} of {} instructions have a place", order_.size(),
                 dependencies_.size());
    return std::move(order_);
  }

 private:
  void emit(InstructionId id) {
    const std::size_t i = id.index();
    if (emitted_[i]) return;
    for (InstructionId before : dependencies_[i]) emit(before);
    if (emitted_[i]) return;  // behind one of those
    emitted_[i] = true;
    order_.push_back(id);
    for (InstructionId next : behind_[i]) emit(next);
    for (InstructionId reduction : reductions_behind_[i])
      if (--missing_[reduction.index()] == 0 && reached_[reduction.index()]) emit(reduction);
  }

  const ir::Program& program_;
  const Dependencies& dependencies_;
  const std::vector<Order>& behind_;
  std::vector<bool> moved_, emitted_, reached_;
  std::vector<std::size_t> missing_;      // of the reduce stream: how much of what it needs has no place yet
  std::vector<Order> reductions_behind_;  // instructions of the reduce stream that depend on this one
  Order order_;
};

}  // namespace

Order reordered(const ir::Program& program, const Dependencies& dependencies, const std::vector<Order>& behind) {
  return Reorder(program, dependencies, behind).run();
}

void join(Dependencies& needed, const Dependencies& extra) {
  LANCET_CHECK(extra.empty() || extra.size() == needed.size(), "expected extra needs of {} instructions, found {}",
               needed.size(), extra.size());
  for (std::size_t i = 0; i < extra.size(); ++i) {
    auto& list = needed[i];
    list.insert(list.end(), extra[i].begin(), extra[i].end());
    std::sort(list.begin(), list.end());
    list.erase(std::unique(list.begin(), list.end()), list.end());
  }
}

ir::Program permuted(const ir::Program& program, const Order& order) {
  ir::Program result = program;
  for (std::size_t i = 0; i < order.size(); ++i) result.instructions[i] = program.instructions[order[i].index()];
  return result;
}

}  // namespace lancet::schedule
