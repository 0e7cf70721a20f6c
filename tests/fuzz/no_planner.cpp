// Replacements for what an experiment asks of the planner: every policy is known, and no plan file fits.
#include "lancet/planner/planner.h"
#include "lancet/planning/plan_file.h"

namespace lancet {

Status planner::check_policy(std::string_view) { return {}; }

Result<ir::Plan> planning::read_plan(const std::filesystem::path& path, const config::Config&, int) {
  return config_error(path.string() + ": expected no plan file, found one");
}

}  // namespace lancet
