// The place of every value in the arena.
#pragma once
#include "lancet/ir/plan.h"
#include "lancet/schedule/simulate.h"

namespace lancet::schedule {

// Gives every instruction its waits and every value its place in the arena: a Plan without predictions. needed: per
// instruction the earlier ones it may not start before; all dependencies, and what a policy adds. Bytes are shared only
// by values whose accesses are ordered by the streams and waits. Each begins at a multiple of 64 bytes; the operands of
// an all-reduce lie side by side.
ir::Plan plan_memory(const ir::Program& program, const Dependencies& needed);
// As in a framework without overlap: compute and all-to-all take turns.
ir::Plan plan_memory_sequentially(const ir::Program& program);

}  // namespace lancet::schedule
