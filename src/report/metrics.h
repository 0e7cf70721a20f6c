// metrics.jsonl as columns.
#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "lancet/base/result.h"

namespace lancet::report {

// What is drawn over steps: keys of a record whose value is a number or null.
inline constexpr std::array<std::string_view, 19> series_keys = {"loss",
                                                                 "aux_loss",
                                                                 "grad_norm",
                                                                 "lr",
                                                                 "step_ms",
                                                                 "tokens_per_s",
                                                                 "mfu",
                                                                 "compute_ms",
                                                                 "a2a_ms",
                                                                 "allreduce_ms",
                                                                 "exposed_ms",
                                                                 "hidden_pct",
                                                                 "predicted_ms",
                                                                 "held_out_loss",
                                                                 "drop_pct",
                                                                 "dead_experts",
                                                                 "load_max_over_mean",
                                                                 "router_entropy",
                                                                 "save_ms"};

// Of these, those that every step has: a record without one is a step whose number was not finite.
inline constexpr std::array<std::string_view, 2> steady_keys = {"loss", "grad_norm"};

// A column of the heat maps: the load of neighbouring records together. load: tokens that chose each expert, layer
// after layer.
struct LoadColumn {
  std::int64_t from = 0, to = 0;  // steps
  std::vector<float> load;
};

struct Metrics {
  std::vector<std::int64_t> steps;                             // rising
  std::array<std::vector<double>, series_keys.size()> series;  // by key; NaN where a record has no number
  std::vector<std::size_t> experts;                            // of each MoE layer
  std::vector<LoadColumn> load;                                // rising, at most most_columns
  bool cut_short = false;                                      // the last line was half a record and is left out
  struct Broken {
    std::int64_t count = 0;  // lines that are left out besides
    std::string first;       // "line 7: expected a JSON object, found none"
  } broken;
};

// Cells of the heat maps of a run, over all layers: what a page can hold and a person see.
inline constexpr std::size_t most_columns = 240, most_cells = 400'000;

// A step that stands there again (a run that was resumed) replaces what stood from there on; a record of nothing but
// its held-out loss adds to it, or is left out where the step has no record. Lines that are no records are left out.
// Data error: the file cannot be read, or holds no record.
Result<Metrics> read_metrics(const std::filesystem::path& path);

}  // namespace lancet::report
