// A step's timeline as a Chrome trace, which Perfetto (ui.perfetto.dev) opens: what the plan predicts and what every
// rank measured, a row a stream.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "lancet/ir/plan.h"
#include "lancet/runtime/executor.h"

namespace lancet::runtime {

// measured: by rank, spans per instruction from the start of that rank's step. Process (pid) r is rank r; the predicted
// one, if the plan has predictions, comes first and has the pid ranks. tid: the stream. An event an instruction: name
// "op label"; args: its number in plan.ir and what it waits for.
std::string trace_json(const ir::Plan& plan, std::span<const std::vector<Span>> measured);

}  // namespace lancet::runtime
