// Computes the busy and exposed times of a step's streams from the spans of its instructions.
#pragma once
#include "lancet/ir/stream_times.h"
#include "lancet/runtime/executor.h"

namespace lancet::runtime {

// spans: by instruction, in order within each stream. step_ns: duration of the step. Allocates nothing.
inline StepTimes stream_times(const ir::Program& program, std::span<const Span> spans, std::int64_t step_ns) {
  const auto times = ir::stream_times(program, spans);
  constexpr double ms = 1e-6;
  return {double(step_ns) * ms,       double(times.busy[0]) * ms,       double(times.busy[1]) * ms,
          double(times.busy[2]) * ms, double(times.communication) * ms, double(times.exposed) * ms};
}

}  // namespace lancet::runtime
