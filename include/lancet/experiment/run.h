// How points get their times: simulated on a declared machine, or by runs of this program.
#pragma once
#include <atomic>
#include <filesystem>
#include <functional>
#include <string>

#include "lancet/experiment/record.h"

namespace lancet::experiment {

// Plans the point's step on its hardware and simulates it. Config error: the hardware cannot be read.
Result<Outcome> simulate(const Experiment& experiment, const Point& point);

// How points run as processes of this machine.
struct Launcher {
  std::filesystem::path program;           // lancet
  std::filesystem::path folder;            // for the runs' files
  double timeout_s = 1800;                 // of profiling, and again of training: what takes longer is ended
  const std::atomic<int>* stop = nullptr;  // a signal's number: what runs is ended
  // As they are in the sources; tests put others in their place.
  std::string ranks_script = "scripts/mpirun.sh", cluster_script = "scripts/emulate-cluster.sh";
  double grace_s = 5;  // that a process has to end when it is asked to
};
// Runs the point's profiling and training and reads its metrics. A run that fails, or is late, is an outcome; one that
// was stopped is an error (ExitCode::saved). Costs that plans rest on are measured once for all runs in the folder, an
// emulated cluster's once for each rate.
Result<Outcome> measure(const Experiment& experiment, const Point& point, const Launcher& launcher);
// The next run of the experiment's points measures these costs anew. Data error: what is there cannot be removed.
Status drop_costs(const Experiment& experiment, const Launcher& launcher);
// What must be there before an experiment's emulated points run, and be gone behind them.
Status start_cluster(const Experiment& experiment, const Launcher& launcher);
void end_cluster(const Launcher& launcher);

using Runner = std::function<Result<Outcome>(const Experiment&, const Point&)>;

struct SweepOptions {
  std::string commit;                      // of the sources, for the records
  bool fresh = false;                      // records that are there are set aside
  const std::atomic<int>* stop = nullptr;  // a signal's number: no further point
};
struct SweepReport {
  int done = 0, skipped = 0, failed = 0, out_of_memory = 0;  // out of memory: among those done
  std::string first_failure;
  int first_exit_code = 0;  // of its run
};
// Every point that the file lacks, or holds as failed, in order, each recorded as soon as it is there. say: called with
// a line of progress. Error (ExitCode::saved): it was stopped; the same call goes on.
Result<SweepReport> sweep(const Experiment& experiment, const std::filesystem::path& records, const Runner& run,
                          const SweepOptions& options, const std::function<void(const std::string&)>& say);

}  // namespace lancet::experiment
