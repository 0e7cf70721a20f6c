#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <memory>

#include "bench.h"
#include "lancet/base/atomic_file.h"
#include "lancet/base/hash.h"
#include "lancet/experiment/run.h"

namespace lancet::cli {
namespace {

namespace fs = std::filesystem;

struct SweepArguments {
  std::string file, on, out;
};

const char* own_path = "/proc/self/exe";

// What a result depends on besides its settings: this program.
Result<std::string> program_identity() {
  LANCET_ASSIGN(const std::string binary, read_file(own_path, "this program"));
  return hex(hash64(binary));
}

// The first line that a command prints; empty where it fails.
std::string line_of(const char* command) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command, "r"), ::pclose);
  std::array<char, 128> buffer{};
  if (!pipe || !std::fgets(buffer.data(), buffer.size(), pipe.get())) return "";
  std::string line = buffer.data();
  while (!line.empty() && line.back() == '\n') line.pop_back();
  return line;
}

// Of the sources in the current folder, marked where the program's files differ from it.
std::string commit() {
  const std::string hash = line_of("git rev-parse --short=10 HEAD 2>/dev/null");
  if (hash.empty()) return "unknown";
  const bool clean = line_of("git status --porcelain -- src include configs CMakeLists.txt 2>/dev/null").empty();
  return clean ? hash : hash + " and changes";
}

// Ends the emulated cluster whichever way the sweep ends.
struct Cluster {
  bool up = false;
  ~Cluster() {
    if (up) experiment::end_cluster();
  }
};

Status run_sweep(const SweepArguments& arguments) {
  LANCET_ASSIGN(const std::string program, program_identity());
  LANCET_ASSIGN(const experiment::Experiment planned,
                experiment::read_experiment(arguments.file, arguments.on, program));
  const fs::path out = arguments.out.empty() ? fs::path("runs/sweeps") / planned.name : fs::path(arguments.out);
  Cluster cluster;
  bool emulated = false;
  for (const experiment::Point& point : planned.points) emulated |= point.source == experiment::Source::emulated;
  const experiment::Launcher launcher{fs::read_symlink(own_path), out};
  auto run = [&](const experiment::Experiment& all, const experiment::Point& point) -> Result<experiment::Outcome> {
    if (point.source == experiment::Source::simulated) return experiment::simulate(all, point);
    if (emulated && !cluster.up) {
      LANCET_TRY(experiment::start_cluster(all));
      cluster.up = true;
    }
    return experiment::measure(all, point, launcher);
  };
  const std::string version = commit();
  LANCET_ASSIGN(const experiment::SweepReport report,
                experiment::sweep(planned, out / "points.jsonl", run,
                                  {version, "even: every expert gets the same tokens, none is dropped"},
                                  {version, "as the gate decides on synthetic tokens"},
                                  [](const std::string& line) { fmt::print(stderr, "{}\n", line); }));
  LANCET_TRY(print(fmt::format("{}: {} points, {} were there, {} failed: {}\n", planned.name, planned.points.size(),
                               report.skipped, report.failed, (out / "points.jsonl").string())));
  return {};
}

}  // namespace

void add_bench_sweep(CLI::App& bench, Selection& selection) {
  CLI::App* command = bench.add_subcommand(
      "sweep",
      "Every point of an experiment, simulated or measured: lancet bench sweep configs/experiments/fig11.json");
  auto arguments = std::make_shared<SweepArguments>();
  command->add_option("experiment", arguments->file, "The experiment's file")->required()->type_name("FILE");
  command
      ->add_option("--on", arguments->on,
                   "Where, in place of what the file says: this (measured here), emulated (on a cluster of network "
                   "namespaces, as root), or a declared machine (a name in configs/hardware, or a file)")
      ->type_name("PLACE");
  command->add_option("--out", arguments->out, "Folder for points.jsonl; left out: runs/sweeps/EXPERIMENT")
      ->type_name("DIR");
  command->callback(
      [arguments, &selection] { selection.local = [arguments]() -> Status { return run_sweep(*arguments); }; });
}

}  // namespace lancet::cli
