// A plan's stream as work for a stream: stretches of instructions between the flags that join it to other streams.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "bound_plan.h"

namespace lancet::runtime {

// Instructions that run one after the other with no flag between them.
struct Stretch {
  std::vector<std::size_t> waits;  // numbers of flags, before the first
  std::size_t begin = 0, end = 0;  // of the stream's steps
  std::int64_t signal = -1;        // number of a flag, after the last; -1: none waits for it
  bool recordable = true;
};

struct FlagPlan {
  std::array<std::vector<Stretch>, ir::stream_count> streams;
  std::size_t flags = 0;
};

// recordable(instruction): whether its kernel can be recorded. A stretch holds only such, or one that is not. On the
// communication streams each instruction is a stretch with a flag, so that the host sees how far they have come.
template <class Recordable>
FlagPlan plan_flags(const Streams& streams, const Recordable& recordable) {
  FlagPlan plan;
  std::array<std::vector<std::int64_t>, ir::stream_count> flag;  // by step of the stream
  for (std::size_t stream = 0; stream < ir::stream_count; ++stream) flag[stream].assign(streams[stream].size(), -1);
  for (const auto& stream : streams)
    for (const StreamStep& step : stream)
      for (const StreamWait& wait : step.waits)
        if (std::int64_t& mine = flag[wait.stream][static_cast<std::size_t>(wait.target) - 1]; mine < 0)
          mine = static_cast<std::int64_t>(plan.flags++);
  for (std::size_t stream = 1; stream < ir::stream_count; ++stream)
    for (std::int64_t& mine : flag[stream])
      if (mine < 0) mine = static_cast<std::int64_t>(plan.flags++);
  for (std::size_t stream = 0; stream < ir::stream_count; ++stream) {
    std::vector<Stretch>& stretches = plan.streams[stream];
    for (std::size_t i = 0; i < streams[stream].size(); ++i) {
      const StreamStep& step = streams[stream][i];
      const bool records = recordable(step.instruction);
      const bool joins =
          i > 0 && step.waits.empty() && stretches.back().signal < 0 && records && stretches.back().recordable;
      if (!joins) stretches.push_back({.waits = {}, .begin = i, .end = i, .signal = -1, .recordable = records});
      Stretch& stretch = stretches.back();
      for (const StreamWait& wait : step.waits)
        stretch.waits.push_back(static_cast<std::size_t>(flag[wait.stream][static_cast<std::size_t>(wait.target) - 1]));
      stretch.end = i + 1;
      stretch.signal = flag[stream][i];
    }
  }
  return plan;
}

}  // namespace lancet::runtime
