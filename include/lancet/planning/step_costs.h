// The measured costs of a config's training step on this machine: read from the profile file, and measured where it
// does not hold them.
#pragma once
#include <filesystem>
#include <span>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/comm/communicator.h"
#include "lancet/config/config.h"
#include "lancet/cost/profile.h"
#include "lancet/ir/program.h"
#include "lancet/runtime/accelerator.h"

namespace lancet::planning {

int threads_of(const config::Config& config, int local_ranks);  // of a rank: as configured, or its share of the cores

// Where a run's times are kept: this device and these ranks.
cost::Place place_of(const config::Config& config, const comm::Communicator& world, int local_ranks,
                     runtime::Accelerator* accelerator = nullptr);

// Whole training steps of one rank, first the one without parts, whose instructions are all that planning this config
// asks the costs about.
std::vector<ir::Program> step_programs(const config::Config& config, int ranks);

struct ProfileRequest {
  int local_ranks = 1;            // ranks on this host
  std::string default_path = {};  // of the file, where config.overlap.profile is empty; both empty: none
  // What is measured although the file holds it.
  enum class Renew { nothing, communication, all } renew = Renew::nothing;
  double seconds = 2;                           // runtime::ProfilerOptions
  runtime::Accelerator* accelerator = nullptr;  // that the rank trains on; null: the CPU
};

// What the profile file says of the algorithms of the accelerator's products, rank 0's on all ranks: so that they take
// the same, and the measured ones. Collective. Config errors: a file that is damaged.
Status take_product_choices(const config::Config& config, comm::Communicator& world, const ProfileRequest& request);

// Collective; the same profile on all ranks. Rank 0 reads the file, all measure what the
// programs need and it does not hold, rank 0 writes it back and says so in one line. Config errors: a file that is
// damaged or cannot be written.
Result<cost::Profile> ensure_profile(const config::Config& config, comm::Communicator& world,
                                     std::span<const ir::Program> programs, const ProfileRequest& request = {});

struct MeasuredStep {
  std::vector<ir::Program> programs;  // step_programs
  cost::Profile profile;
};
// The same of all that planning this config asks, on the device that it names (request.accelerator: in its place) and,
// where comm.transport is "emulated", among the ranks that there would be. Collective. Config errors: also those of a
// run's start.
Result<MeasuredStep> measure_step(const config::Config& config, comm::Communicator& world,
                                  const ProfileRequest& request);

}  // namespace lancet::planning
