#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fcntl.h>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cpu_name.h"
#include "lancet/base/atomic_file.h"
#include "lancet/base/median.h"
#include "lancet/experiment/run.h"
#include "lancet/ir/plan.h"

extern char** environ;

namespace lancet::experiment {
namespace {

using nlohmann::json;
using Command = std::vector<std::string>;

// Runs a command with its output in a file; its exit code, or -1 where it did not start.
int call(const Command& command, const std::filesystem::path& output) {
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  pid_t pid = 0;
  const int error = posix_spawnp(&pid, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  int status = 0;
  if (error != 0) return -1;
  while (waitpid(pid, &status, 0) < 0)
    if (errno != EINTR) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// The first line of ours that says what was wrong, or the last line.
std::string reason_in(const std::filesystem::path& output) {
  std::ifstream in(output);
  std::string last;
  for (std::string line; std::getline(in, line);) {
    if (line.find("error") != std::string::npos) return line;
    if (!line.empty()) last = line;
  }
  return last.empty() ? "it said nothing" : last;
}

const char* cluster_script = "scripts/emulate-cluster.sh";

Command ranks_of(const Point& point) {
  if (point.source == Source::emulated) return {cluster_script, "run", "--hosts", std::to_string(point.hosts), "--"};
  return {"scripts/mpirun.sh", std::to_string(point.ranks)};
}

Command with_config(Command command, const Point& point, const std::vector<std::string>& more) {
  command.push_back(point.config_file);
  for (const auto* list : {&point.overrides, &more})
    for (const std::string& item : *list) {
      command.push_back("--set");
      command.push_back(item);
    }
  return command;
}

Outcome failed(int code, const std::filesystem::path& output) {
  Outcome outcome;
  outcome.status = "failed";
  outcome.why = fmt::format("exit code {}: {}", code, reason_in(output));
  return outcome;
}

struct Series {
  std::vector<double> step, compute, all_to_all, all_reduce, communication, exposed, predicted;
};

// The steps behind the warm-up.
Result<Series> read_metrics(const std::filesystem::path& path, int warmup) {
  std::ifstream in(path);
  Series series;
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    const json row = json::parse(line, nullptr, false);
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
    const double exposed_share = 1 - get("hidden_pct") / 100;
    series.communication.push_back(exposed_share > 1e-6 ? get("exposed_ms") / exposed_share
                                                        : get("a2a_ms") + get("allreduce_ms"));
  }
  if (series.step.empty())
    return data_error(fmt::format("{}: expected steps behind {} of warm-up, found none", path.string(), warmup));
  return series;
}

int most_parts(const ir::Plan& plan) {
  int parts = 1;
  for (const ir::Instruction& at : plan.program.instructions)
    parts = std::max(parts, int(at.attributes.integer("parts", 1)));
  return parts;
}

}  // namespace

Result<Outcome> measure(const Experiment& experiment, const Point& point, const Launcher& launcher) {
  const std::filesystem::path run = launcher.folder / "runs" / point.id, output = run / "output.txt";
  std::error_code error;
  std::filesystem::remove_all(run, error);
  if (!std::filesystem::create_directories(run, error))
    return config_error(
        fmt::format("{}: expected a folder that can be made, found: {}", run.string(), error.message()));
  const std::string profile = fmt::format("overlap.profile={}", (launcher.folder / "profile.json").string());
  Command command = ranks_of(point);
  command.insert(command.end(), {launcher.program.string(), "profile"});
  if (const int code = call(with_config(command, point, {profile, "data.synthetic=true"}), output); code != 0)
    return failed(code, output);
  command = ranks_of(point);
  command.insert(command.end(), {launcher.program.string(), "train", "--run-dir", run.string()});
  const Command full =
      with_config(command, point,
                  {profile, "data.synthetic=true", "train.eval_interval=0", "train.sample_tokens=0",
                   fmt::format("train.steps={}", experiment.warmup + experiment.steps), "log.interval=1000000"});
  if (const int code = call(full, output); code != 0) return failed(code, output);
  LANCET_ASSIGN(const Series series, read_metrics(run / "metrics.jsonl", experiment.warmup));
  LANCET_ASSIGN(const std::string text, read_file(run / "plan.ir", "the run's plan"));
  LANCET_ASSIGN(const ir::Plan plan, ir::parse_plan(text));
  Outcome outcome;
  outcome.runs = plan.header.text("policy");
  outcome.parts = most_parts(plan);
  outcome.memory_gib = double(plan.arena_bytes) / (1 << 30);
  outcome.times = {median(series.step),       median(series.compute),       median(series.all_to_all),
                   median(series.all_reduce), median(series.communication), median(series.exposed)};
  if (const double predicted = median(series.predicted); predicted > 0) outcome.predicted_ms = predicted;
  outcome.steps = int(series.step.size());
  outcome.place = cpu_name();
  return outcome;
}

Status start_cluster(const Experiment& experiment) {
  int hosts = 0;
  for (const Point& point : experiment.points)
    if (point.source == Source::emulated) hosts = std::max(hosts, point.hosts);
  if (hosts == 0) return {};
  const auto output = std::filesystem::temp_directory_path() / fmt::format("lancet-cluster-{}.txt", ::getpid());
  const int code = call({cluster_script, "up", "--hosts", std::to_string(hosts), "--rate", experiment.rate}, output);
  const std::string said = reason_in(output);
  std::error_code error;
  std::filesystem::remove(output, error);
  if (code == 0) return {};
  return config_error(
      fmt::format("--on emulated: expected a cluster of {} hosts ({} up), found: {}", hosts, cluster_script, said));
}

void end_cluster() { call({cluster_script, "down"}, "/dev/null"); }

}  // namespace lancet::experiment
