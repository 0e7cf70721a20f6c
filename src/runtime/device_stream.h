// A plan's lane as work for a stream: stretches of instructions between the flags that join it to other lanes.
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
  std::size_t begin = 0, end = 0;  // of the lane's steps
  std::int64_t signal = -1;        // number of a flag, after the last; -1: none waits for it
  bool recordable = true;
};

struct FlagPlan {
  std::array<std::vector<Stretch>, ir::lane_count> lanes;
  std::size_t flags = 0;
};

// recordable(instruction): whether its kernel can be recorded. A stretch holds only such, or one that is not. On the
// communication lanes each instruction is a stretch with a flag, so that the host sees how far they have come.
template <class Recordable>
FlagPlan plan_flags(const Lanes& lanes, const Recordable& recordable) {
  FlagPlan plan;
  std::array<std::vector<std::int64_t>, ir::lane_count> flag;  // by step of the lane
  for (std::size_t lane = 0; lane < ir::lane_count; ++lane) flag[lane].assign(lanes[lane].size(), -1);
  for (const auto& lane : lanes)
    for (const LaneStep& step : lane)
      for (const LaneWait& wait : step.waits)
        if (std::int64_t& mine = flag[wait.lane][static_cast<std::size_t>(wait.target) - 1]; mine < 0)
          mine = static_cast<std::int64_t>(plan.flags++);
  for (std::size_t lane = 1; lane < ir::lane_count; ++lane)
    for (std::int64_t& mine : flag[lane])
      if (mine < 0) mine = static_cast<std::int64_t>(plan.flags++);
  for (std::size_t lane = 0; lane < ir::lane_count; ++lane) {
    std::vector<Stretch>& stretches = plan.lanes[lane];
    for (std::size_t i = 0; i < lanes[lane].size(); ++i) {
      const LaneStep& step = lanes[lane][i];
      const bool records = recordable(step.instruction);
      const bool joins =
          i > 0 && step.waits.empty() && stretches.back().signal < 0 && records && stretches.back().recordable;
      if (!joins) stretches.push_back({.waits = {}, .begin = i, .end = i, .signal = -1, .recordable = records});
      Stretch& stretch = stretches.back();
      for (const LaneWait& wait : step.waits)
        stretch.waits.push_back(static_cast<std::size_t>(flag[wait.lane][static_cast<std::size_t>(wait.target) - 1]));
      stretch.end = i + 1;
      stretch.signal = flag[lane][i];
    }
  }
  return plan;
}

}  // namespace lancet::runtime
