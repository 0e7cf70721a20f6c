// Reads a plan file that a user names, in the format that `lancet plan --out` and runs write.
#pragma once
#include <filesystem>

#include "lancet/base/result.h"
#include "lancet/comm/communicator.h"
#include "lancet/config/config.h"
#include "lancet/ir/plan.h"

namespace lancet::planner {

// Returns a plan that is sound and is of this config's training step: it has the same model, optimizer, ranks, build,
// parameters, states, inputs, outputs and instructions. Config errors name the file and the difference, or the unsound
// instruction.
Result<ir::Plan> read_plan(const std::filesystem::path& path, const config::Config& config, int ranks);

// The same, collective: all ranks must bring the same file. An error of any rank is returned on all.
Result<ir::Plan> read_same_plan(const std::filesystem::path& path, const config::Config& config,
                                comm::Communicator& world);

}  // namespace lancet::planner
