// A new order of a Program's instructions.
#pragma once
#include <vector>

#include "lancet/schedule/simulate.h"

namespace lancet::schedule {

// Per place in the new order, the instruction that goes there.
using Order = std::vector<ir::InstructionId>;

// The order of the Program, but what `behind` lists for an instruction comes right after it. An instruction of the
// reduce stream comes no earlier than its place, and later where what it needs does. Dependencies hold whatever is asked:
// what an instruction needs and is not there yet comes before it.
Order reordered(const ir::Program& program, const Dependencies& dependencies, const std::vector<Order>& behind);

// Adds per instruction what `extra` names (empty: nothing).
void join(Dependencies& needed, const Dependencies& extra);

ir::Program permuted(const ir::Program& program, const Order& order);

// Per place in the new order, what `values` holds for the instruction there.
template <class T>
std::vector<T> permuted(const std::vector<T>& values, const Order& order) {
  std::vector<T> result;
  result.reserve(order.size());
  for (ir::InstructionId id : order) result.push_back(values[id.index()]);
  return result;
}

}  // namespace lancet::schedule
