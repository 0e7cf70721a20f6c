// Writes the Chrome trace event format (JSON): metadata events ("M") name and order processes and threads, and each
// instruction is a complete event ("X") with a start and a duration in microseconds.
#include "lancet/runtime/trace.h"
#include "lancet/base/json.h"
#include "lancet/ir/micro_batches.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

namespace lancet::runtime {
namespace {

std::string json_string(std::string_view text) { return json_text(nlohmann::json(text)); }

// Prints microseconds, the unit of the trace, with all three decimals, so that neighbouring events do not overlap.
std::string microseconds(std::int64_t ns) { return fmt::format("{}.{:03}", ns / 1000, ns % 1000); }

class Writer {
 public:
  explicit Writer(const ir::Plan& plan) : plan_(plan), used_() {
    for (const ir::Instruction& instruction : plan.program.instructions)
      used_[static_cast<std::size_t>(instruction.stream)] = true;
  }

  void process(int pid, std::string_view name, int order) {
    meta("process_name", pid, -1, fmt::format("\"name\": {}", json_string(name)));
    meta("process_sort_index", pid, -1, fmt::format("\"sort_index\": {}", order));
    for (int stream = 0; stream < ir::stream_count; ++stream) {
      if (!used_[static_cast<std::size_t>(stream)]) continue;
      meta("thread_name", pid, stream,
           fmt::format("\"name\": {}", json_string(ir::name(static_cast<ir::Stream>(stream)))));
      meta("thread_sort_index", pid, stream, fmt::format("\"sort_index\": {}", stream));
    }
  }

  void event(int pid, std::size_t index, const Span& span) {
    const ir::Instruction& at = plan_.program.instructions[index];
    std::vector<std::int32_t> waits;
    for (ir::InstructionId wait : plan_.waits[index]) waits.push_back(wait.value);
    add(fmt::format(R"({{"ph": "X", "name": {}, "cat": "{}", "pid": {}, "tid": {}, "ts": {}, "dur": {}, )"
                    R"("args": {{"index": {}, "waits": [{}]}}}})",
                    json_string(ir::event_name(at)), ir::name(at.role), pid, static_cast<int>(at.stream),
                    microseconds(span.start), microseconds(span.end - span.start), index, fmt::join(waits, ", ")));
  }

  std::string text(std::string_view about) const {
    return fmt::format(
        "{{\"displayTimeUnit\": \"ms\",\n\"otherData\": {{\"about\": {}}},\n\"traceEvents\": [\n{}\n]}}\n",
        json_string(about), events_);
  }

 private:
  void add(const std::string& event) {
    if (!events_.empty()) events_ += ",\n";
    events_ += event;
  }
  void meta(std::string_view what, int pid, int tid, const std::string& args) {
    const std::string thread = tid < 0 ? "" : fmt::format("\"tid\": {}, ", tid);
    add(fmt::format(R"({{"ph": "M", "name": "{}", "pid": {}, {}"args": {{{}}}}})", what, pid, thread, args));
  }

  const ir::Plan& plan_;
  std::array<bool, ir::stream_count> used_;
  std::string events_;
};

}  // namespace

std::string trace_json(const ir::Plan& plan, std::span<const std::vector<Span>> measured) {
  Writer writer(plan);
  const int ranks = static_cast<int>(measured.size());
  const std::size_t count = plan.program.instructions.size();
  if (plan.header.has("predicted_ms")) {
    writer.process(ranks, "predicted", 0);
    for (std::size_t i = 0; i < count; ++i) {
      const ir::Interval& when = plan.predicted[i];
      writer.event(ranks, i, {std::llround(when.start * 1e6), std::llround(when.end * 1e6)});
    }
  }
  for (int rank = 0; rank < ranks; ++rank) {
    writer.process(rank, fmt::format("measured, rank {}", rank), rank + 1);
    for (std::size_t i = 0; i < count; ++i) writer.event(rank, i, measured[static_cast<std::size_t>(rank)][i]);
  }
  return writer.text(
      "The times of a rank count from the start of its own step, right after a barrier of all ranks. Rows of different "
      "ranks are shifted by as much as the ranks leave the barrier at different times. The span of an all-to-all or "
      "all-reduce begins when the rank is ready and so includes its wait for the others.");
}

}  // namespace lancet::runtime
