// Splits each stream of a plan into sections: sequences of consecutive instructions with no flag in between, which a
// device stream executes without interruption and a graph can record.
//
// A flag is a word in host memory by which one device stream waits for another. An instruction gets a flag if another
// stream waits for it, and always on the communication streams, so that the host can follow their progress. A new
// section begins at an instruction that waits for a flag, after one that sets a flag, and before and after one that
// cannot be recorded.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "bound_plan.h"
#include "lancet/backend/device.h"
#include "lancet/runtime/block.h"
#include "lancet/runtime/watched_stream.h"

namespace lancet::runtime {

struct Section {
  std::vector<std::size_t> waits;  // numbers of the flags to wait for before the first instruction
  std::size_t begin = 0, end = 0;  // range of the stream's steps
  std::int64_t signal = -1;        // number of the flag to set after the last instruction; -1: none
  bool recordable = true;          // if false, the section is one instruction that a graph cannot record
};

struct FlagPlan {
  std::array<std::vector<Section>, ir::stream_count> streams;
  std::size_t flags = 0;  // how many
};

// recordable(instruction): true if a graph can record its kernel.
template <class Recordable>
FlagPlan plan_flags(const Streams& streams, const Recordable& recordable) {
  FlagPlan plan;
  std::array<std::vector<std::int64_t>, ir::stream_count> flag;  // by step of the stream
  for (std::size_t stream = 0; stream < ir::stream_count; ++stream) flag[stream].assign(streams[stream].size(), -1);
  const auto give = [&](std::int64_t& mine) {
    if (mine < 0) mine = static_cast<std::int64_t>(plan.flags++);
  };
  for (const auto& stream : streams)
    for (const StreamStep& step : stream)
      for (const StreamWait& wait : step.waits) give(flag[wait.stream][static_cast<std::size_t>(wait.target) - 1]);
  for (std::size_t stream = 1; stream < ir::stream_count; ++stream)
    for (std::int64_t& mine : flag[stream]) give(mine);
  for (std::size_t stream = 0; stream < ir::stream_count; ++stream) {
    std::vector<Section>& sections = plan.streams[stream];
    for (std::size_t i = 0; i < streams[stream].size(); ++i) {
      const StreamStep& step = streams[stream][i];
      const bool records = recordable(step.instruction);
      const bool joins =
          i > 0 && step.waits.empty() && sections.back().signal < 0 && records && sections.back().recordable;
      if (!joins) sections.push_back({.waits = {}, .begin = i, .end = i, .signal = -1, .recordable = records});
      Section& section = sections.back();
      for (const StreamWait& wait : step.waits)
        section.waits.push_back(static_cast<std::size_t>(flag[wait.stream][static_cast<std::size_t>(wait.target) - 1]));
      section.end = i + 1;
      section.signal = flag[stream][i];
    }
  }
  return plan;
}

// Bounds how many commands wait on a device stream.
//
// A driver queues a limited number of commands of a stream (CUDA about 1,000). A further call blocks until the device
// has executed some. The blocked thread keeps a lock of the driver, so that the threads of other streams block as well,
// among them the one that would put the work that the device waits for: the step never ends, and no thread is left that
// could notice it. So the host must not get that far ahead.
class Backlog {
 public:
  // The commands between two marks. Far below what a driver takes, and more than enough to keep a device busy while the
  // host thread wakes up.
  static constexpr std::size_t between_marks = 200;
  using Marks = std::array<backend::Flag*, 2>;

  Backlog() = default;
  // Both outlive this object.
  Backlog(WatchedStream& queue, Marks marks) : queue_(&queue), marks_(marks) {}

  // Starts a step: the stream is empty and the marks are 0.
  void start() {
    turn_ = 0;
    marked_ = queue_->commands();
  }
  // Called before each instruction and each recorded section. After every 200 commands it puts a mark, a flag, and
  // waits until the stream has reached the mark before. So at most 400 commands and those of one instruction wait.
  // Error: that of the stream's watch().
  Status limit() {
    if (queue_->commands() - marked_ < between_marks) return {};
    backend::Flag* const mark = marks_[turn_ % 2];
    std::atomic_ref(*mark).store(0, std::memory_order_relaxed);  // the stream passed it before the last call returned
    LANCET_TRY(queue_->signal(mark));
    marked_ = queue_->commands();
    return ++turn_ > 1 ? backend::wait_for_flag(marks_[turn_ % 2], *queue_) : Status();
  }

 private:
  WatchedStream* queue_ = nullptr;
  Marks marks_{};           // used in turns
  std::size_t turn_ = 0;    // number of marks in this step
  std::size_t marked_ = 0;  // commands of the stream at the last mark
};

// The flags of a step, in page-locked memory: those of the plan, one for the copied inputs, and one for the end of each
// stream.
class StepFlags {
 public:
  // planned: number of flags of the plan.
  Status allocate(std::size_t planned, backend::Device& device) {
    planned_ = planned;
    LANCET_ASSIGN(memory_, Block::page_locked(device, count() * sizeof(backend::Flag)));
    return {};
  }
  backend::Flag* planned(std::size_t number) const { return memory_.memory().as<backend::Flag>() + number; }
  backend::Flag* inputs() const { return planned(planned_); }
  backend::Flag* end(std::size_t stream) const { return planned(planned_ + 1 + stream); }
  Backlog::Marks marks(std::size_t stream) const {
    backend::Flag* const first = planned(planned_ + 1 + ir::stream_count + 2 * stream);
    return {first, first + 1};
  }
  // 0 starts a step, when all device streams are idle; 1 releases every device stream that waits.
  void write_all(backend::Flag value) const {
    for (std::size_t i = 0; i < count(); ++i) std::atomic_ref(*planned(i)).store(value, std::memory_order_release);
  }

 private:
  std::size_t count() const { return planned_ + 1 + 3 * ir::stream_count; }

  std::size_t planned_ = 0;
  Block memory_;
};

}  // namespace lancet::runtime
