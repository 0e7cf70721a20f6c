// Gives points their times, by simulation on a declared machine or by runs of this program, and runs whole sweeps.
#pragma once
#include <atomic>
#include <filesystem>
#include <functional>
#include <map>
#include <string>

#include "lancet/experiment/record.h"

namespace lancet::experiment {

// Plans the point's step on its hardware and simulates it. Config error: the hardware cannot be read.
Result<Outcome> simulate(const Experiment& experiment, const Point& point);

// Starts points as processes on this machine.
struct Launcher {
  std::filesystem::path program;           // lancet
  std::filesystem::path folder;            // for the runs' files
  double timeout_s = 1800;                 // limit of profiling, and again of training; a slower process is killed
  const std::atomic<int>* stop = nullptr;  // the number of a received signal, or 0; a signal ends the running process
  // Paths of the scripts. Tests replace them.
  std::string ranks_script = "scripts/mpirun.sh", cluster_script = "scripts/emulate-cluster.sh";
  double grace_s = 5;  // from SIGTERM to the next signal
};
// Runs the point's profiling and training and reads its metrics. A run that fails or exceeds its time limit is an
// outcome with status "failed"; a run that `stop` ended is an error (ExitCode::saved). Op and communication costs are
// measured once for all runs in the folder, on an emulated cluster once for each rate.
Result<Outcome> measure(const Experiment& experiment, const Point& point, const Launcher& launcher);
// Removes the folder's measured costs, so that the next run measures them again. Data error: a file cannot be removed.
Status drop_costs(const Experiment& experiment, const Launcher& launcher);
// Sets up the emulated cluster that the experiment's emulated points run on, and takes it down. Config error: the
// script fails. start_cluster does nothing if no point is emulated; end_cluster logs a failure.
Status start_cluster(const Experiment& experiment, const Launcher& launcher);
void end_cluster(const Launcher& launcher);

using Runner = std::function<Result<Outcome>(const Experiment&, const Point&)>;

struct SweepOptions {
  std::string commit;                      // of the sources, for the records
  bool fresh = false;                      // existing records are set aside
  const std::atomic<int>* stop = nullptr;  // the number of a received signal, or 0; a signal ends the sweep
};
struct SweepReport {
  int done = 0, skipped = 0, failed = 0, out_of_memory = 0;  // `done` includes out_of_memory
  std::string first_failure;
  int first_exit_code = 0;                     // of the first run that failed
  std::map<std::string, std::string> results;  // of all points: RecordFile::results
};
// Runs, in order, every point that has no record or a failed one, and records each as soon as it ends. say: called with
// a line of progress. Error (ExitCode::saved): a signal stopped the sweep; the same call resumes it.
Result<SweepReport> sweep(const Experiment& experiment, const std::filesystem::path& records, const Runner& run,
                          const SweepOptions& options, const std::function<void(const std::string&)>& say);

// The results as a table: a row for each place, model, gate and number of ranks, a column for each policy.
std::string step_table(const Experiment& experiment, const std::map<std::string, std::string>& results);

}  // namespace lancet::experiment
