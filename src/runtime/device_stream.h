// Splits each stream of a plan into sections: sequences of consecutive instructions with no flag in between, which a
// device stream executes without interruption and a graph can record.
//
// A flag is a word in host memory by which one device stream waits for another. An instruction gets a flag if another
// stream waits for it, and always on the communication streams, so that the host can follow their progress. A new
// section begins at an instruction that waits for a flag, after one that sets a flag, and before and after one that
// cannot be recorded.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "bound_plan.h"

namespace lancet::runtime {

// Consecutive instructions of one stream with no flag between them.
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
  for (const auto& stream : streams)
    for (const StreamStep& step : stream)
      for (const StreamWait& wait : step.waits)
        if (std::int64_t& mine = flag[wait.stream][static_cast<std::size_t>(wait.target) - 1]; mine < 0)
          mine = static_cast<std::int64_t>(plan.flags++);
  for (std::size_t stream = 1; stream < ir::stream_count; ++stream)
    for (std::int64_t& mine : flag[stream])
      if (mine < 0) mine = static_cast<std::int64_t>(plan.flags++);
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

}  // namespace lancet::runtime
