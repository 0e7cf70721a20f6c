// Memory planning: the offset of every value in the arena.
#pragma once
#include <cstdint>

#include "lancet/ir/plan.h"
#include "lancet/schedule/simulate.h"

namespace lancet::schedule {

// Gives every instruction its waits and every value its offset in the arena: a Plan without predictions. dependencies:
// all data dependencies, and those that a policy adds. Values share bytes only if the streams and waits order their
// accesses. Each value begins at a multiple of 64 bytes; the operands of an all-reduce are adjacent.
ir::Plan plan_memory(const ir::Program& program, const Dependencies& dependencies);
// Of that plan.
std::int64_t arena_bytes(const ir::Program& program, const Dependencies& dependencies);
// The plan of a framework without overlap: compute and all-to-all take turns.
ir::Plan plan_memory_sequentially(const ir::Program& program);

// Bytes of a rank's named tensors, which persist from step to step, and of those with the plan's arena.
std::int64_t resident_bytes(const ir::Program& program);
std::int64_t plan_bytes(const ir::Plan& plan);

// Bytes of the arena's tensors that are alive at once when the instructions run one by one.
std::int64_t peak_bytes(const ir::Program& program);

}  // namespace lancet::schedule
