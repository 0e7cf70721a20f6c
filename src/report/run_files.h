// Reads the files of a run folder: metrics.jsonl into columns, memory.json, plan.ir and config.json.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/ir/plan.h"

namespace lancet::report {

// The keys of a record that are drawn over steps; their values are numbers or null.
inline constexpr auto series_keys = std::to_array<std::string_view>(
    {"loss", "aux_loss", "grad_norm", "lr", "step_ms", "tokens_per_s", "mfu", "compute_ms", "a2a_ms", "allreduce_ms",
     "exposed_ms", "hidden_pct", "predicted_ms", "held_out_loss", "save_ms",
     // of the MoE layers
     "drop_pct", "dead_experts", "load_max_over_mean", "router_entropy", "experts_per_token", "z_loss", "bias_spread",
     "rounds"});

// The keys whose number every step has: null in the record of a step whose number was not finite.
inline constexpr std::array<std::string_view, 2> steady_keys = {"loss", "grad_norm"};

constexpr bool is_steady(std::string_view key) { return std::ranges::find(steady_keys, key) != steady_keys.end(); }

// The keys of a record that hold a number for each MoE layer, of which the page shows the last.
inline constexpr auto layer_keys = std::to_array<std::string_view>(
    {"layer_load_max_over_mean", "layer_drop_pct", "layer_dead_experts", "layer_router_entropy",
     "layer_experts_per_token", "layer_z_loss", "layer_bias_spread"});

// The position of a key among series_keys.
constexpr std::size_t series_index(std::string_view key) {
  std::size_t index = 0;
  while (series_keys.at(index) != key) ++index;
  return index;
}

// A column of the heat maps: the sum over neighbouring records. load: tokens that chose each expert, layer after layer.
struct LoadColumn {
  std::int64_t from = 0, to = 0;  // steps
  std::vector<float> load;
};

struct Metrics {
  std::vector<std::int64_t> steps;                             // rising
  std::vector<bool> finite;                                    // by record: none of the steady keys is null
  std::array<std::vector<double>, series_keys.size()> series;  // by key; NaN where a record has no number
  std::vector<std::size_t> experts;                            // of each MoE layer
  std::vector<LoadColumn> load;                                // rising, at most most_columns
  // The last record's numbers of the MoE layers, by layer_keys; empty where it has none.
  std::array<std::vector<double>, layer_keys.size()> layers;
  bool cut_short = false;  // the last line is half a record and is skipped
  struct Broken {
    std::int64_t count = 0;  // other lines that are skipped
    std::string first;       // "line 7: expected a JSON object, found none"
  } broken;
};

// The limits of a run's heat maps: more columns cannot be seen, more cells over all layers make the page too large.
inline constexpr std::size_t most_columns = 240, most_cells = 400'000;

// A step that is recorded again, by a resumed run, replaces the earlier record and all that follow it. A line that
// holds only a held-out loss adds it to the record of its step; without such a record it is skipped. Lines that are no
// records are skipped. Data error: the file cannot be read, or holds no record.
Result<Metrics> read_metrics(const std::filesystem::path& path);

// The tokens and the time that a run has used up to and including each record. A step without a record counts as much
// as the next recorded one.
struct Progress {
  std::vector<double> tokens, seconds;  // seconds: of steps alone, without start, evaluation and saving
};
// Returns empty columns if no record has step_ms and tokens_per_s.
Progress progress(const Metrics& metrics);

// Shortens long columns to what a chart can show.
inline constexpr std::size_t most_points = 1000;

// The number of neighbouring records that share a point of a chart.
inline std::size_t records_a_point(std::size_t records) { return (records + most_points - 1) / most_points; }

// The mean, the least and the most of each `width` neighbours, over those that are finite. NaN, which is a gap in a
// line, if none of them is finite; with `steady`, if any of them is not.
struct Points {
  std::vector<double> mean, low, high;
};
Points thin(std::span<const double> values, std::size_t width, bool steady = false);

// Returns the last of each `width` neighbours.
template <class T>
std::vector<T> last_of_each(const std::vector<T>& values, std::size_t width) {
  std::vector<T> last;
  for (std::size_t at = 0; at < values.size(); at += width)
    last.push_back(values[std::min(at + width, values.size()) - 1]);
  return last;
}

// memory.json of a run folder: the memory that a rank was planned to take, as the run's banner lists it.

// The fields of the file; their values are bytes.
inline constexpr std::array<std::string_view, 6> memory_parts = {"parameters", "optimizer", "arena",
                                                                 "workspace",  "process",   "saving"};

struct Memory {
  std::array<double, memory_parts.size()> bytes{};  // by part
};

// A part that the file does not name counts as 0. Data error: the file is no JSON object of such numbers.
Result<Memory> read_memory(const std::filesystem::path& path);

struct LargeTensor {
  std::string name, type, made_by;
  double bytes = 0;
};

// The memory and the time of a plan.ir.
struct PlanSummary {
  std::string policy;  // "" if the header has none
  std::int64_t ranks = 0;
  std::optional<double> predicted_ms, exposed_ms;
  std::size_t instructions = 0;
  double parameters = 0, state = 0, arena = 0;  // bytes of a rank
  std::vector<double> live;                     // bytes of the arena in use at an instruction, in the plan's order
  std::vector<LargeTensor> largest;             // of the arena
  ir::Plan plan;                                // the whole of it
};

// Data error, with file and line: the file is no plan.
Result<PlanSummary> read_plan_summary(const std::filesystem::path& path);

// Reads a config.json as text by field, so that a table can compare runs; for example "train.lr" -> "0.001". Any JSON
// object is read: a run of another version may have other fields. Data error: the file holds no JSON object.
Result<std::map<std::string, std::string>> read_config(const std::filesystem::path& path);

// The timeline of a step in trace.json (format: runtime/executor.h).

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
