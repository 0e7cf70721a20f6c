// Writes the Chrome trace event format (JSON): metadata events ("M") name and order processes and threads, and each
// instruction is a complete event ("X") with a start and a duration in microseconds.
#include "lancet/base/json.h"
#include "lancet/ir/micro_batches.h"
#include "lancet/runtime/executor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

namespace lancet::runtime {
namespace {

std::string json_string(std::string_view text) { return json_text(nlohmann::json(text)); }

// Prints microseconds, the unit of the trace, with all three decimals, so that neighbouring events do not overlap.
std::string microseconds(std::int64_t ns) { return fmt::format("{}.{:03}", ns / 1000, ns % 1000); }

class Writer {
 public:
  // The processes and events that follow are of this plan. stage: of several; none: there is one.
  void begin(const ir::Plan& plan, std::optional<int> stage) {
    plan_ = &plan;
    stage_ = stage;
    used_ = {};
    for (const ir::Instruction& instruction : plan.program.instructions)
      used_[static_cast<std::size_t>(instruction.stream)] = true;
  }

  // Viewers show processes in the order of the calls.
  void process(int pid, std::string_view what, std::string_view which) {
    std::string name(what);
    if (stage_) name += fmt::format(", stage {}", *stage_);
    if (!which.empty()) name += fmt::format(", {}", which);
    meta("process_name", pid, -1,
         fmt::format("\"name\": {}{}", json_string(name), stage_ ? fmt::format(", \"stage\": {}", *stage_) : ""));
    meta("process_sort_index", pid, -1, fmt::format("\"sort_index\": {}", processes_++));
    for (int stream = 0; stream < ir::stream_count; ++stream) {
      if (!used_[static_cast<std::size_t>(stream)]) continue;
      meta("thread_name", pid, stream,
           fmt::format("\"name\": {}", json_string(ir::name(static_cast<ir::Stream>(stream)))));
      meta("thread_sort_index", pid, stream, fmt::format("\"sort_index\": {}", stream));
    }
  }

  void event(int pid, std::size_t index, const Span& span) {
    const ir::Instruction& at = plan_->program.instructions[index];
    std::vector<std::int32_t> waits;
    for (ir::InstructionId wait : plan_->waits[index]) waits.push_back(wait.value);
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

  const ir::Plan* plan_ = nullptr;
  std::optional<int> stage_;
  std::array<bool, ir::stream_count> used_{};
  int processes_ = 0;
  std::string events_;
};

}  // namespace

std::string trace_json(std::span<const ir::Plan> stages, std::span<const std::vector<Span>> measured) {
  Writer writer;
  const std::size_t ranks = measured.size() / stages.size();  // of a stage
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    const ir::Plan& plan = stages[stage];
    const std::size_t count = plan.program.instructions.size();
    writer.begin(plan, stages.size() > 1 ? std::optional(int(stage)) : std::nullopt);
    if (plan.header.has("predicted_ms")) {
      const int pid = int(measured.size() + stage);
      writer.process(pid, "predicted", "");
      for (std::size_t i = 0; i < count; ++i) {
        const ir::Interval& when = plan.predicted[i];
        writer.event(pid, i, {std::llround(when.start * 1e6), std::llround(when.end * 1e6)});
      }
    }
    for (std::size_t rank = stage * ranks; rank < (stage + 1) * ranks; ++rank) {
      writer.process(int(rank), "measured", fmt::format("rank {}", rank));
      for (std::size_t i = 0; i < count; ++i) writer.event(int(rank), i, measured[rank][i]);
    }
  }
  return writer.text(
      "The times of a rank count from the start of its own step, right after a barrier of all ranks. Rows of different "
      "ranks are shifted by as much as the ranks leave the barrier at different times. The span of a communication "
      "begins when the rank is ready and so includes its wait for the others.");
}

}  // namespace lancet::runtime
