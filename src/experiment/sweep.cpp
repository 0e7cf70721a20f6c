#include <fmt/format.h>

#include <chrono>

#include "lancet/experiment/run.h"

namespace lancet::experiment {
namespace {

std::string duration(double seconds) {
  const int whole = int(seconds + 0.5);
  return whole < 60     ? fmt::format("{} s", whole)
         : whole < 3600 ? fmt::format("{} min {} s", whole / 60, whole % 60)
                        : fmt::format("{} h {} min", whole / 3600, whole / 60 % 60);
}

std::string result_of(const Outcome& outcome) {
  if (outcome.status == "ok") return fmt::format("{:.1f} ms", outcome.times.step);
  return outcome.why.empty() ? outcome.status : outcome.status + ": " + outcome.why;
}

}  // namespace

Result<SweepReport> sweep(const Experiment& experiment, const std::filesystem::path& records, const Runner& run,
                          const Origin& simulated, const Origin& measured,
                          const std::function<void(const std::string&)>& say) {
  LANCET_ASSIGN(RecordFile file, RecordFile::open(records, experiment.points));
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
    LANCET_ASSIGN(const Outcome outcome, run(experiment, point));
    LANCET_TRY(file.append(
        point.id, to_line(experiment, point, outcome, point.source == Source::simulated ? simulated : measured)));
    ++(outcome.status == "failed" ? report.failed : report.done);
    --left;
    const double spent = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    say(fmt::format("{} {}/{}: {}: {}{}", experiment.name, all - left, all, point.describe(), result_of(outcome),
                    left > 0 ? fmt::format(", {} left", duration(spent / double(all - left) * double(left))) : ""));
  }
  return report;
}

}  // namespace lancet::experiment
