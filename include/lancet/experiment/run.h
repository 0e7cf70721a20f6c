// How points get their times: simulated on a declared machine, or by runs of this program.
#pragma once
#include <filesystem>
#include <functional>
#include <string>

#include "lancet/experiment/record.h"

namespace lancet::experiment {

// Plans the point's step on its hardware and simulates it. Config error: the hardware cannot be read.
Result<Outcome> simulate(const Experiment& experiment, const Point& point);

// Runs the point's training as processes and reads its metrics. A run that fails is an outcome, not an error.
struct Launcher {
  std::filesystem::path program;  // lancet
  std::filesystem::path folder;   // for the runs' files
};
Result<Outcome> measure(const Experiment& experiment, const Point& point, const Launcher& launcher);
// What must be there before an experiment's emulated points run, and be gone behind them.
Status start_cluster(const Experiment& experiment);
void end_cluster();

using Runner = std::function<Result<Outcome>(const Experiment&, const Point&)>;

struct SweepReport {
  int done = 0, skipped = 0, failed = 0;
};
// Every point that the file lacks, in order, each recorded as soon as it is there. say: called with a line of progress.
Result<SweepReport> sweep(const Experiment& experiment, const std::filesystem::path& records, const Runner& run,
                          const Origin& simulated, const Origin& measured,
                          const std::function<void(const std::string&)>& say);

}  // namespace lancet::experiment
