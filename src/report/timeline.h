// Reads the timeline of a step from trace.json (format: runtime/executor.h).
#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lancet/base/result.h"

namespace lancet::report {

struct TimelineEvent {
  double start = 0, length = 0;                 // microseconds
  std::size_t name = 0, kind = 0;               // in Timeline::names, kinds
  std::optional<std::size_t> instruction = {};  // of plan.ir
};

struct TimelineRow {
  std::string process, stream;  // "measured, rank 0", "compute"
  std::vector<TimelineEvent> events;
  int stage = 0;  // the pipeline stage of whose plan the events are
  bool is_predicted() const { return process.starts_with("predicted"); }
};

struct Timeline {
  std::vector<std::string> names, kinds;  // kinds: forward, dx, dw, ...
  std::vector<TimelineRow> rows;          // of each stage: predicted first, then rank by rank
  int left_out = 0;                       // predictions and ranks that shorten() took away
};

// Data error: the file is no trace that a run wrote.
Result<Timeline> read_timeline(const std::filesystem::path& path);

// Takes predictions and ranks away, from the first one on that would make more events than a page should hold; the
// first prediction or rank always stays.
inline constexpr std::size_t most_events = 60'000;
void shorten(Timeline& timeline);

}  // namespace lancet::report
