// Reorders the instructions of a Program.
#pragma once
#include <vector>

#include "lancet/schedule/simulate.h"

namespace lancet::schedule {

// Per position in the new order, the instruction that moves there.
using Order = std::vector<ir::InstructionId>;

// The order of the Program, except that the instructions that `after` lists for an instruction follow right after it.
// An instruction of the reduce stream comes no earlier than before, and moves later if its dependencies do.
// Dependencies (ir::dependencies) always hold: those of an instruction that are not yet in the order are put before it.
Order reordered(const ir::Program& program, const Dependencies& dependencies, const std::vector<Order>& after);

// Adds the extra dependencies of each instruction; `extra` may be empty.
void join(Dependencies& dependencies, const Dependencies& extra);

ir::Program permuted(ir::Program program, const Order& order);

// `values`, which are per instruction, in the new order.
template <class T>
std::vector<T> permuted(const std::vector<T>& values, const Order& order) {
  std::vector<T> result;
  result.reserve(order.size());
  for (ir::InstructionId id : order) result.push_back(values[id.index()]);
  return result;
}

// The dependencies of permuted(program, order), of which `dependencies` are those before.
Dependencies renumbered(const Dependencies& dependencies, const Order& order);

}  // namespace lancet::schedule
