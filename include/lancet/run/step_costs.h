// Provides the measured costs of a config's training step on this machine: reads the profile file and measures the
// costs that it lacks.
#pragma once
#include <filesystem>
#include <functional>
#include <span>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/comm/communicator.h"
#include "lancet/config/config.h"
#include "lancet/cost/profile.h"
#include "lancet/ir/program.h"
#include "lancet/runtime/accelerator.h"

namespace lancet::run {

// Threads of a rank: config.threads, or else its share of the cores.
int threads_of(const config::Config& config, int local_ranks);

// The key of a run's times in a profile file: this device and these ranks.
cost::Machine machine_of(const config::Config& config, const comm::Communicator& world, int local_ranks,
                         runtime::Accelerator* accelerator = nullptr);

// The number of hosts, the same on all ranks; 1, so that hosts are not told apart, if they have unlike numbers of
// ranks. Collective.
Result<int> agreed_hosts(comm::Communicator& world, int local_ranks);

// The machine's own file in `folder`; empty if that is empty.
std::filesystem::path default_profile_path(const std::string& folder, const cost::Machine& machine);
// The profile file of a run: config.overlap.profile, or else default_profile_path().
std::filesystem::path profile_path(const config::Config& config, const std::string& folder,
                                   const cost::Machine& machine);

struct ProfileRequest {
  int local_ranks = 1;              // ranks on this host
  std::string profile_folder = {};  // of profile_path()
  // Costs to measure again although the file holds them.
  enum class Renew { nothing, communication, all } renew = Renew::nothing;
  double seconds = 2;                           // profiler::ProfilerOptions
  runtime::Accelerator* accelerator = nullptr;  // on which the rank trains; null: the CPU
  std::function<bool()> interrupted = {};       // profiler::ProfilerOptions
};

// Gives the accelerator the product algorithms that rank 0's profile file holds, so that all ranks use the same
// algorithms, and those that were measured. Collective. Config error: a damaged file.
Status take_product_choices(const config::Config& config, comm::Communicator& world, const ProfileRequest& request);

// Collective; returns the same profile on all ranks. Rank 0 reads the file, all ranks measure the costs that the
// programs need and the file lacks, and rank 0 writes the file and logs one line. A file of another build is replaced,
// and a damaged one if all is renewed. Without a file, or with a default one that cannot be written, a warning says
// that the times are not kept. If request.interrupted ends the measurement, what was measured is kept, and the error
// has ExitCode::saved. Config errors: a file that is damaged or of another machine; a named one that cannot be written.
Result<cost::Profile> ensure_profile(const config::Config& config, comm::Communicator& world,
                                     std::span<const ir::Program> programs, const ProfileRequest& request = {});

// The largest TFLOP/s of products of config.train.dtype that were ever measured on the machine: `measured`, or what its
// default file holds, which then keeps the larger one. A busy machine gives too small a peak, which would make MFU too
// large. A file of another build is left as it is, and one that cannot be read or written is a warning.
double largest_peak_tflops(const config::Config& config, const cost::Machine& machine, const std::string& folder,
                           double measured);

struct MeasuredStep {
  std::vector<ir::Program> programs;  // programs_to_profile
  cost::Profile profile;
};
// ensure_profile() for programs_to_profile(), on the config's device or, if it is set, request.accelerator. If
// comm.transport is "mirrored", it measures among the mirrored ranks. Collective. Config errors: also those of a run's
// start.
Result<MeasuredStep> measure_step(const config::Config& config, comm::Communicator& world,
                                  const ProfileRequest& request);

}  // namespace lancet::run
