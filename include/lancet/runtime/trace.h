// Prints a step's timeline as a Chrome trace for Perfetto (ui.perfetto.dev): the plan's prediction and the times
// measured on each rank, one row per stream.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "lancet/ir/plan.h"
#include "lancet/runtime/executor.h"

namespace lancet::runtime {

// stages: the plan of each pipeline stage, or the one plan of all ranks. measured: by rank, the span of each
// instruction of its stage's plan from the start of that rank's step; the ranks are as many for each stage, stage after
// stage. Process (pid) r is rank r. A stage's prediction, if its plan has one, is listed before the stage's ranks; its
// pid is the number of ranks plus that of the stage. tid: the stream. Each instruction is one event: its name is "op
// label", its args are its number in the stage's plan file and the numbers of its waits. With several stages, the names
// of processes hold their stage, and so does the arg `stage` beside the name.
std::string trace_json(std::span<const ir::Plan> stages, std::span<const std::vector<Span>> measured);

}  // namespace lancet::runtime
