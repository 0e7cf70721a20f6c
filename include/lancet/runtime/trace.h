// Prints a step's timeline as a Chrome trace for Perfetto (ui.perfetto.dev): the plan's prediction and the times
// measured on each rank, one row per stream.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "lancet/ir/plan.h"
#include "lancet/runtime/executor.h"

namespace lancet::runtime {

// measured: by rank, the span of each instruction from the start of that rank's step. Process (pid) r is rank r; the
// prediction, if the plan has one, is listed first with a pid equal to the number of ranks. tid: the stream. Each
// instruction is one event: its name is "op label", its args are its number in plan.ir and the numbers of its waits.
std::string trace_json(const ir::Plan& plan, std::span<const std::vector<Span>> measured);

}  // namespace lancet::runtime
