#include <fmt/format.h>

#include <memory>
#include <utility>

#include "bench.h"
#include "lancet/base/shipped_files.h"
#include "lancet/experiment/run.h"
#include "numbers.h"
#include "signals.h"

namespace lancet::cli {
namespace {

namespace fs = std::filesystem;

struct SweepArguments {
  std::string file, on, out, profile;
  int timeout_s = int(experiment::Launcher{}.timeout_s);
  bool fresh = false, list = false;
};

// The emulated cluster. It is set up before the first emulated point and taken down by the destructor. After a failed
// run it is set up again, since the run may have left processes behind.
class Cluster {
 public:
  explicit Cluster(const experiment::Launcher& launcher) : launcher_(launcher) {}
  ~Cluster() { end(); }
  Status start(const experiment::Experiment& experiment) {
    if (up_) return {};
    LANCET_TRY(experiment::start_cluster(experiment, launcher_));
    up_ = true;
    return {};
  }
  bool is_up() const { return up_; }
  void end() {
    if (up_) experiment::end_cluster(launcher_);
    up_ = false;
  }

 private:
  const experiment::Launcher& launcher_;
  bool up_ = false;
};

// Finds the script that starts ranks and the one that sets up a cluster, if points need them.
Status find_scripts(const experiment::Experiment& planned, experiment::Launcher& launcher) {
  for (const experiment::Point& point : planned.points) {
    if (point.source == experiment::Source::simulated) continue;
    std::string& script =
        point.source == experiment::Source::emulated ? launcher.cluster_script : launcher.ranks_script;
    const fs::path found = find_shipped(script);
    if (found.empty())
      return config_error(fmt::format("{}: expected the script that runs it, found none at {}", point.describe(),
                                      either_of(shipped_places(script))));
    script = fs::absolute(found).string();
  }
  return {};
}

// Returns a folder of its own for each --on and --profile, since a sweep sets the records of other points aside.
fs::path default_folder(const SweepArguments& arguments, const std::string& name) {
  const auto [file, changes] = cost::split_changes(arguments.on);
  const std::string place =
      file.empty() ? "" : "-on-" + fs::path(file).stem().string() + (changes.empty() ? "" : "-" + changes);
  const std::string with = arguments.profile.empty() ? "" : "-with-" + fs::path(arguments.profile).stem().string();
  return fs::path("runs/sweeps") / (name + place + with);
}

Status list(const experiment::Experiment& planned) {
  std::string text;
  for (const experiment::Point& point : planned.points) text += fmt::format("{}  {}\n", point.id, point.describe());
  return print(text);
}

// Returns a run's exit code if it is one of this program's, else `internal`.
ExitCode code_of(int exit_code) {
  for (const ExitCode code : {ExitCode::config, ExitCode::data, ExitCode::numerical, ExitCode::communication})
    if (exit_code == int(code)) return code;
  return ExitCode::internal;
}

// Prints the sweep's result. If points failed, returns an error with the exit code of the first one's run.
Status report_sweep(const experiment::Experiment& planned, const experiment::SweepReport& report,
                    const fs::path& records) {
  const std::string memory = report.out_of_memory > 0 ? fmt::format(", {} out of memory", report.out_of_memory) : "";
  LANCET_TRY(print(experiment::step_table(planned, report.results)));
  LANCET_TRY(print(fmt::format("{}: {} points, {} recorded before{}, {} failed: {}\n", planned.name,
                               planned.points.size(), report.skipped, memory, report.failed, records.string())));
  if (report.failed == 0) return {};
  return Error{
      code_of(report.first_exit_code),
      fmt::format("{}: expected every point to run, found {} of {} failed (the same command tries them again); "
                  "the first: {}",
                  planned.name, report.failed, planned.points.size(), report.first_failure),
      false};
}

Status run_sweep(const SweepArguments& arguments) {
  LANCET_ASSIGN(
      const experiment::Experiment planned,
      experiment::read_experiment(arguments.file, arguments.on, experiment::Identity::here(), arguments.profile));
  if (arguments.list) return list(planned);
  const fs::path out = arguments.out.empty() ? default_folder(arguments, planned.name) : fs::path(arguments.out);
  const std::atomic<int>& stop = note_stop_signals(
      "stopping: a run is ended, a simulation is finished (one more signal stops at once), "
      "records are kept\n");
  experiment::Launcher launcher{program_path(), out};
  LANCET_TRY(find_scripts(planned, launcher));
  launcher.timeout_s = arguments.timeout_s;
  launcher.stop = &stop;
  Cluster cluster(launcher);
  bool drop_costs = arguments.fresh;  // done before the first run, once the folder is locked
  auto run = [&](const experiment::Experiment& all, const experiment::Point& point) -> Result<experiment::Outcome> {
    const bool simulated = point.source == experiment::Source::simulated;
    next_stop_ends(simulated && !cluster.is_up());
    if (simulated) return experiment::simulate(all, point);
    if (point.source == experiment::Source::emulated) LANCET_TRY(cluster.start(all));
    if (std::exchange(drop_costs, false)) LANCET_TRY(experiment::drop_costs(all, launcher));
    auto outcome = experiment::measure(all, point, launcher);
    if (outcome.ok() && outcome->status == "failed") cluster.end();
    return outcome;
  };
  LANCET_ASSIGN(const experiment::SweepReport report,
                experiment::sweep(planned, out / "points.jsonl", run, {commit(), arguments.fresh, &stop},
                                  [](const std::string& line) { fmt::print(stderr, "{}\n", line); }));
  return report_sweep(planned, report, out / "points.jsonl");
}

}  // namespace

void add_bench_sweep(CLI::App& bench, Selection& selection) {
  CLI::App* command = bench.add_subcommand(
      "sweep", "Simulate or measure all points of an experiment: lancet bench sweep configs/experiments/fig11.json");
  auto arguments = std::make_shared<SweepArguments>();
  command->add_option("experiment", arguments->file, "The experiment's file, or the name of one in configs/experiments")
      ->required()
      ->type_name("FILE");
  command
      ->add_option("--on", arguments->on,
                   "Replaces the file's field: this (measured here), emulated (measured on a cluster of network "
                   "namespaces, as root), or a declared machine (a name in configs/hardware, or a file)")
      ->type_name("PLACE");
  command
      ->add_option("--out", arguments->out,
                   "Folder for points.jsonl; default: runs/sweeps/EXPERIMENT, followed by -on-PLACE with --on and by "
                   "-with-FILE with --profile")
      ->type_name("DIR");
  command
      ->add_option("--profile", arguments->profile,
                   "File of measured costs (lancet profile --out) that override the declared machine's: op times, "
                   "and communication if measured on the same ranks and hosts; for simulated points with even routing")
      ->type_name("FILE");
  command
      ->add_option("--timeout", arguments->timeout_s,
                   "Time limit of a run's profiling, and again of its training; a slower run is killed and recorded as "
                   "failed; default: 1800")
      ->check(whole_between(1, 1'000'000))
      ->type_name("SECONDS");
  command->add_flag("--fresh", arguments->fresh,
                    "Run all points and measure all costs again; existing records move to points.jsonl.N");
  command->add_flag("--list", arguments->list, "Print the points and their ids without running them");
  command->footer(
      "Points with a record are skipped; failed points run again. Exit code: 0 if no point failed, else that of the "
      "first failed run (1 if it is none of this program's); 75 if a signal stopped the sweep: run the same command "
      "to resume it.");
  command->callback(
      [arguments, &selection] { selection.local = [arguments]() -> Status { return run_sweep(*arguments); }; });
}

}  // namespace lancet::cli
