// Plans that a user names: files as `lancet plan --out` and runs write them.
#pragma once
#include <filesystem>

#include "lancet/base/result.h"
#include "lancet/comm/communicator.h"
#include "lancet/config/config.h"
#include "lancet/ir/plan.h"

namespace lancet::planning {

// A plan file as `lancet plan --out` and runs write it, sound and of this config's training step: model, optimizer,
// ranks, build, and the parameters, states, inputs and outputs that the step has. Config errors name the file and what
// differs, or the instruction that is unsound.
Result<ir::Plan> read_plan(const std::filesystem::path& path, const config::Config& config, int ranks);

// The same, collective: all ranks must bring the same file. An error of any rank is returned on all.
Result<ir::Plan> read_same_plan(const std::filesystem::path& path, const config::Config& config,
                                comm::Communicator& world);

}  // namespace lancet::planning
