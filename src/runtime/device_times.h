// StreamTimes: measures when a run's instructions ran on the device, by a pair of events around each section or, for a
// closer look, around each instruction. Between runs that are timed, its calls on streams do nothing.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "device_stream.h"
#include "lancet/ir/stream_times.h"
#include "lancet/runtime/executor.h"

namespace lancet::runtime {

class StreamTimes {
 public:
  // Makes all events, because making one later could wait for a device stream that itself waits for a flag. All
  // arguments outlive the result.
  static Result<StreamTimes> make(const ir::Plan& plan, const Streams& streams, const FlagPlan& flags,
                                  backend::Device& device);

  // Requests that the next run is timed instruction by instruction.
  void request() { requested_ = true; }
  // Decides whether run `number` is timed. The first run, 0, is not: its instructions run one at a time.
  void begin_run(std::int64_t number);
  bool timed() const { return timed_; }
  bool each() const { return each_; }  // timed instruction by instruction

  // Records the zero of all times of a run. queue: the compute stream's device stream.
  Status begin(backend::Stream& queue) { return timed_ ? queue.record(*start_) : Status(); }
  // Record the start and the end of section `number` of a plan's stream on its device stream, `queue`.
  Status begin_section(std::size_t stream, std::size_t number, backend::Stream& queue) {
    return timed_ ? queue.record(*sections_[stream][number].start) : Status();
  }
  Status end_section(std::size_t stream, std::size_t number, backend::Stream& queue) {
    return timed_ ? queue.record(*sections_[stream][number].end) : Status();
  }
  Status begin_instruction(std::int32_t instruction, backend::Stream& queue) {
    return each_ ? queue.record(*instructions_[static_cast<std::size_t>(instruction)].start) : Status();
  }
  Status end_instruction(std::int32_t instruction, backend::Stream& queue) {
    return each_ ? queue.record(*instructions_[static_cast<std::size_t>(instruction)].end) : Status();
  }

  // Sets the span of each instruction, from its own events if each(), otherwise as its share of its section. All device
  // streams must be idle.
  Status read(std::vector<Span>& spans) const;

 private:
  struct Pair {
    std::unique_ptr<backend::Event> start, end;
  };

  StreamTimes(const ir::Plan& plan, const Streams& streams, const FlagPlan& flags, backend::Device& device)
      : plan_(&plan), streams_(&streams), flags_(&flags), device_(&device) {}
  Result<Pair> make_pair() const;
  Result<Span> span_of(const Pair& events) const;
  void divide(std::size_t stream, const Section& section, const Span& span, std::vector<Span>& spans) const;

  const ir::Plan* plan_;
  const Streams* streams_;
  const FlagPlan* flags_;
  backend::Device* device_;
  bool requested_ = false, timed_ = false, each_ = false;
  std::unique_ptr<backend::Event> start_;
  std::array<std::vector<Pair>, ir::stream_count> sections_;
  std::vector<Pair> instructions_;
};

// Computes the busy and exposed times of a step's streams from the spans of its instructions.

// spans: by instruction, in order within each stream. step_ns: duration of the step. Allocates nothing.
inline StepTimes stream_times(const ir::Program& program, std::span<const Span> spans, std::int64_t step_ns) {
  const auto times = ir::stream_times(program, spans);
  constexpr double ms = 1e-6;
  return {double(step_ns) * ms,       double(times.busy[0]) * ms,       double(times.busy[1]) * ms,
          double(times.busy[2]) * ms, double(times.communication) * ms, double(times.exposed) * ms};
}

}  // namespace lancet::runtime
