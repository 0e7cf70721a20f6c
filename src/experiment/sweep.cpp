// The record file is read first: points with a record other than "failed" are skipped, all others run in the file's
// order. Each record is synced to the disk before the next point starts, so that an interruption loses at most the
// point that is running, and the same command resumes. A failed point is recorded and counted; the sweep continues.
// Only a stop signal and errors of the record file or the simulator end it. The remaining time in the progress line is
// the mean time of the points run so far times the number that is left.
#include <fmt/format.h>

#include <chrono>

#include "lancet/base/duration.h"
#include "lancet/experiment/run.h"

namespace lancet::experiment {
namespace {

std::string result_of(const Outcome& outcome) {
  if (outcome.status == "ok") return fmt::format("{:.1f} ms", outcome.times.step);
  return outcome.why.empty() ? outcome.status : outcome.status + ": " + outcome.why;
}

void count(const Point& point, const Outcome& outcome, SweepReport& report) {
  const bool failed = outcome.status == "failed";
  ++(failed ? report.failed : report.done);
  report.out_of_memory += outcome.status == "out of memory";
  if (!failed || !report.first_failure.empty()) return;
  report.first_failure = point.describe() + ": " + outcome.why;
  report.first_exit_code = outcome.exit_code;
}

Error stopped(const RecordFile& file, const Experiment& experiment, const std::filesystem::path& records) {
  return {ExitCode::saved,
          fmt::format("stopped: {} of {} points are in {}; the same command resumes", file.results().size(),
                      experiment.points.size(), records.string()),
          false};
}

}  // namespace

Result<SweepReport> sweep(const Experiment& experiment, const std::filesystem::path& records, const Runner& run,
                          const SweepOptions& options, const std::function<void(const std::string&)>& say) {
  LANCET_ASSIGN(RecordFile file, RecordFile::open(records, experiment.points, options.fresh));
  if (!file.note().empty()) say(file.note());
  SweepReport report;
  std::size_t left = 0;
  for (const Point& point : experiment.points) left += !file.has(point.id);
  const std::size_t all = left;
  const auto start = std::chrono::steady_clock::now();
  for (const Point& point : experiment.points) {
    if (file.has(point.id)) {
      ++report.skipped;
      continue;
    }
    if (options.stop && *options.stop != 0) return stopped(file, experiment, records);
    const Result<Outcome> result = run(experiment, point);
    if (!result.ok() && result.error().code == ExitCode::saved) return stopped(file, experiment, records);
    LANCET_ASSIGN(const Outcome outcome, result);
    LANCET_TRY(file.append(to_line(experiment, point, outcome, options.commit)));
    count(point, outcome, report);
    --left;
    const double spent = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    say(fmt::format("{} {}/{}: {}: {}{}", experiment.name, all - left, all, point.describe(), result_of(outcome),
                    left > 0 ? fmt::format(", {} left", duration(spent / double(all - left) * double(left))) : ""));
  }
  report.results = file.results();
  return report;
}

}  // namespace lancet::experiment
