// Summarizes the memory and the time of a plan.ir.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/ir/plan.h"

namespace lancet::report {

struct LargeTensor {
  std::string name, type, made_by;
  double bytes = 0;
};

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

// Reads a config.json as text by field, so that a table can compare runs.

// Returns for example "train.lr" -> "0.001". Any JSON object is read: a run of another version may have other fields.
// Data error: the file holds no JSON object.
Result<std::map<std::string, std::string>> read_config(const std::filesystem::path& path);

}  // namespace lancet::report
