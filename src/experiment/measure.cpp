// Measures a point by two runs of this program: `lancet profile`, whose costs are kept for later points, and a short
// `lancet train` on synthetic data without saving, evaluation and generation.
//
// Both run as one process each, through scripts/mpirun.sh or, on an emulated cluster, scripts/emulate-cluster.sh, with
// a time limit each. The outcome comes from the run folder: medians over the steps of metrics.jsonl after the warm-up,
// and the policy, parts, arena and predicted times of plan.ir. A process that fails gives an outcome "failed" with the
// first line of its output that holds "error", or its last line.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "command.h"
#include "lancet/base/atomic_file.h"
#include "lancet/base/json.h"
#include "lancet/base/log.h"
#include "lancet/base/median.h"
#include "lancet/experiment/run.h"
#include "lancet/ir/plan.h"
#include "lancet/ir/stream_times.h"
#include "lancet/schedule/candidate.h"
#include "machine.h"

namespace lancet::experiment {
namespace {

using nlohmann::json;

constexpr double script_limit_s = 60;  // time limit of setting the cluster up or taking it down

std::string reason_in(const std::filesystem::path& output) {
  std::ifstream in(output);
  std::string last;
  for (std::string line; std::getline(in, line);) {
    if (line.find("error") != std::string::npos) return line;
    if (!line.empty()) last = line;
  }
  return last.empty() ? "no output" : last;
}

Command ranks_of(const Point& point, const Launcher& launcher) {
  if (point.source == Source::emulated)
    return {launcher.cluster_script, "run", "--hosts", std::to_string(point.hosts), "--"};
  return {launcher.ranks_script, std::to_string(point.ranks)};
}

Command with_config(Command command, const Point& point, const std::vector<std::string>& more) {
  command.push_back(point.config_file);
  for (const auto* list : {&point.overrides, &more})
    for (const std::string& item : *list) command.insert(command.end(), {"--set", item});
  return command;
}

// Describes a failure in one line; empty after success.
std::string failure_of(const Ended& ended, const Command& command, const std::filesystem::path& output,
                       double limit_s) {
  if (ended.how == Ended::How::not_started)
    return fmt::format("cannot start {}: {}", command[0], std::strerror(ended.code));
  if (ended.how == Ended::How::late)
    return fmt::format("killed after {:g} s (--timeout); its last line: {}", limit_s, reason_in(output));
  return ended.code == 0 ? "" : fmt::format("exit code {}: {}", ended.code, reason_in(output));
}

Outcome failed(std::string why, int exit_code = 0) {
  Outcome outcome;
  outcome.status = "failed";
  outcome.exit_code = exit_code;
  outcome.why = std::move(why);
  return outcome;
}

struct Series {
  std::vector<double> step, compute, all_to_all, all_reduce, communication, exposed, predicted, imbalance;
};

// Computes communication_ms of a record that has none, from exposed_ms and hidden_pct. streams: the sum of the streams'
// busy times, used if all communication is hidden.
double communication_from(double exposed, double hidden_pct, double streams) {
  const double share = 1 - hidden_pct / 100;
  return share > 1e-6 ? exposed / share : streams;
}

Result<Series> read_metrics(const std::filesystem::path& path, int warmup) {
  std::ifstream in(path);
  Series series;
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    const json row = json_of(line);
    if (!row.is_object() || !row.contains("step_ms") || !row["step_ms"].is_number() || !row.contains("exposed_ms"))
      continue;
    if (number++ < warmup) continue;
    auto get = [&](const char* name) {
      return row.contains(name) && row[name].is_number() ? row[name].get<double>() : 0;
    };
    series.step.push_back(get("step_ms"));
    series.compute.push_back(get("compute_ms"));
    series.all_to_all.push_back(get("a2a_ms"));
    series.all_reduce.push_back(get("allreduce_ms"));
    series.exposed.push_back(get("exposed_ms"));
    series.predicted.push_back(get("predicted_ms"));
    series.communication.push_back(
        row.contains("communication_ms")
            ? get("communication_ms")
            : communication_from(get("exposed_ms"), get("hidden_pct"), get("a2a_ms") + get("allreduce_ms")));
    if (get("load_max_over_mean") > 0) series.imbalance.push_back(get("load_max_over_mean"));
  }
  if (series.step.empty())
    return data_error(fmt::format("{}: expected steps after {} of warm-up, found none", path.string(), warmup));
  return series;
}

int cores_used(const Point& point) { return int(point.config.threads) * point.ranks; }

// Returns the profile that the folder's runs on so many ranks share. An emulated cluster has one for each link rate,
// since a profile identifies a cluster by its ranks and hosts alone.
std::filesystem::path costs_file(const Experiment& experiment, const Point& point, const Launcher& launcher) {
  const std::string rate = point.source == Source::emulated ? "-" + experiment.rate : "";
  return launcher.folder / fmt::format("profile{}-{}-ranks.json", rate, point.ranks);
}

struct ScriptEnd {
  Ended::How how;
  std::string failure;  // empty after success
};
// Runs the cluster's script. Its output goes to a new temporary file, which no other user can have prepared.
Result<ScriptEnd> run_script(const Command& command, double grace_s, const std::atomic<int>* stop) {
  std::error_code error;
  std::string output = (std::filesystem::temp_directory_path(error) / "lancet-cluster-XXXXXX").string();
  const int fd = ::mkostemp(output.data(), O_CLOEXEC);
  if (fd < 0) return data_error(fmt::format("cannot create {}: {}", output, std::strerror(errno)));
  ::close(fd);
  const Ended ended = run_command(command, output, {script_limit_s, stop, grace_s});
  ScriptEnd end{ended.how, failure_of(ended, command, output, script_limit_s)};
  std::filesystem::remove(output, error);
  return end;
}

Result<Outcome> read_run(const Experiment& experiment, const Point& point, const std::filesystem::path& run) {
  LANCET_ASSIGN(const Series series, read_metrics(run / "metrics.jsonl", experiment.warmup));
  LANCET_ASSIGN(const std::string text, read_file(run / "plan.ir", "the run's plan"));
  LANCET_ASSIGN(const ir::Plan plan, ir::parse_plan(text));
  Outcome outcome;
  outcome.runs = plan.header.text("policy");
  outcome.parts = schedule::most_parts(plan.program);
  outcome.memory_gib = double(plan.arena_bytes) / (1 << 30);
  outcome.times = {median(series.step),       median(series.compute),       median(series.all_to_all),
                   median(series.all_reduce), median(series.communication), median(series.exposed)};
  if (const double predicted = median(series.predicted); predicted > 0) {
    outcome.predicted_ms = predicted;
    const auto times = ir::stream_times(plan.program, std::span<const ir::Interval>(plan.predicted));
    outcome.predicted_compute_ms = times.busy[std::size_t(ir::Stream::compute)];
    outcome.predicted_communication_ms = times.communication;
  }
  const auto [least, most] = std::minmax_element(series.step.begin(), series.step.end());
  outcome.least_step_ms = *least, outcome.most_step_ms = *most;
  if (!series.imbalance.empty()) outcome.imbalance = median(series.imbalance);
  outcome.steps = int(series.step.size());
  outcome.place = machine_label(cores_used(point));
  return outcome;
}

}  // namespace

Result<Outcome> measure(const Experiment& experiment, const Point& point, const Launcher& launcher) {
  const std::filesystem::path run = launcher.folder / "runs" / point.id, output = run / "output.txt";
  std::error_code error;
  std::filesystem::remove_all(run, error);
  if (!std::filesystem::create_directories(run, error))
    return config_error(fmt::format("cannot create {}: {}", run.string(), error.message()));
  const std::string profile = "overlap.profile=" + costs_file(experiment, point, launcher).string();
  Command profiling = ranks_of(point, launcher), training = profiling;
  profiling.insert(profiling.end(), {launcher.program.string(), "profile"});
  training.insert(training.end(), {launcher.program.string(), "train", "--run-dir", run.string()});
  for (const Command& command :
       {with_config(profiling, point, {profile, "data.synthetic=true"}),
        with_config(training, point,
                    {profile, "data.synthetic=true", "train.eval_interval=0", "train.sample_tokens=0",
                     "train.save_minutes=0", "train.save_interval=0",
                     fmt::format("train.steps={}", experiment.warmup + experiment.steps), "log.interval=1000000"})}) {
    const Ended ended = run_command(command, output, {launcher.timeout_s, launcher.stop, launcher.grace_s});
    if (ended.how == Ended::How::stopped) return Error{ExitCode::saved, point.describe() + ": stopped", false};
    const std::string why = failure_of(ended, command, output, launcher.timeout_s);
    if (!why.empty()) return failed(why, ended.how == Ended::How::exited ? ended.code : 0);
  }
  const auto outcome = read_run(experiment, point, run);
  return outcome.ok() ? *outcome : failed(outcome.error().message);
}

Status drop_costs(const Experiment& experiment, const Launcher& launcher) {
  for (const Point& point : experiment.points) {
    if (point.source == Source::simulated) continue;
    const std::filesystem::path path = costs_file(experiment, point, launcher);
    std::error_code error;
    std::filesystem::remove(path, error);
    if (error)
      return data_error(fmt::format("cannot remove {}, to measure it again: {}", path.string(), error.message()));
  }
  return {};
}

Status start_cluster(const Experiment& experiment, const Launcher& launcher) {
  int hosts = 0;
  for (const Point& point : experiment.points)
    if (point.source == Source::emulated) hosts = std::max(hosts, point.hosts);
  if (hosts == 0) return {};
  LANCET_ASSIGN(const ScriptEnd up,
                run_script({launcher.cluster_script, "up", "--hosts", std::to_string(hosts), "--rate", experiment.rate},
                           launcher.grace_s, launcher.stop));
  if (up.how == Ended::How::stopped) return Error{ExitCode::saved, "stopped", false};
  if (up.failure.empty()) return {};
  return config_error(fmt::format("--on emulated: cannot set up a cluster of {} hosts ({} up): {}", hosts,
                                  launcher.cluster_script, up.failure));
}

void end_cluster(const Launcher& launcher) {
  const auto down = run_script({launcher.cluster_script, "down"}, launcher.grace_s, nullptr);
  const std::string failure = down.ok() ? down->failure : down.error().message;
  if (!failure.empty())
    log::warn("cannot take the emulated cluster down ({} down): {}", launcher.cluster_script, failure);
}

}  // namespace lancet::experiment
