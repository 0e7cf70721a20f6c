// What a step's spans say about its streams.
#pragma once
#include <span>

#include "lancet/ir/program.h"
#include "lancet/runtime/executor.h"

namespace lancet::runtime {

// spans: per instruction, in order within each stream. step_ns: the whole step. Allocates nothing.
StepTimes stream_times(const ir::Program& program, std::span<const Span> spans, std::int64_t step_ns);

}  // namespace lancet::runtime
