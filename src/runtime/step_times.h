// Computes the busy and exposed times of a step's streams from the spans of its instructions.
#pragma once
#include <span>

#include "lancet/ir/program.h"
#include "lancet/runtime/executor.h"

namespace lancet::runtime {

// spans: by instruction, in order within each stream. step_ns: duration of the step. Allocates nothing.
StepTimes stream_times(const ir::Program& program, std::span<const Span> spans, std::int64_t step_ns);

}  // namespace lancet::runtime
