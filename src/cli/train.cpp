#include <fmt/format.h>
#include <algorithm>
#include <fstream>
#include <map>

#include "commands.h"
#include "lancet/base/files.h"
#include "lancet/base/json.h"
#include "lancet/base/log.h"
#include "lancet/comm/collect.h"
#include "lancet/ops/catalogue.h"
#include "lancet/report/report.h"
#include "lancet/run/step_costs.h"
#include "lancet/train/trainer.h"

namespace lancet::cli {

void add_train(CLI::App& app, Selection& selection) {
  CLI::App* command = app.add_subcommand("train", "Train a model: mpirun -np 2 lancet train configs/quickstart.json");
  auto arguments = add_config_arguments(*command);
  auto run_dir = std::make_shared<std::string>();
  command->add_option("--run-dir", *run_dir, "Folder for config.json, plan.ir and metrics.jsonl (log.run_dir)")
      ->type_name("DIR")
      ->take_last();  // as with --set, so that a script can add one of its own
  auto plan = std::make_shared<std::string>();
  command->add_option("--plan", *plan, "Run this plan (lancet plan --out); default: plan as overlap.* says")
      ->type_name("FILE");
  auto resume = std::make_shared<std::string>(), init_from = std::make_shared<std::string>();
  command
      ->add_option("--resume", *resume,
                   "Resume from this checkpoint: step-000100 of this run, or its folder; default: the run's newest "
                   "complete one")
      ->type_name("STEP");
  command
      ->add_option(
          "--init-from", *init_from,
          "Start with the weights of this run, checkpoint or folder of Hugging Face's format, if the run has no "
          "checkpoints of its own")
      ->type_name("DIR");
  command->callback([arguments, run_dir, plan, resume, init_from, &selection] {
    log::info_to_stdout();
    selection.timeout = configured_timeout(*arguments);
    selection.ranked = [arguments, run_dir, plan, resume, init_from](comm::Communicator& world,
                                                                     int local_ranks) -> Status {
      ConfigArguments all = *arguments;
      if (!run_dir->empty()) all.overrides.push_back("log.run_dir=" + json_text(nlohmann::json(*run_dir)));
      LANCET_ASSIGN(config::Config config, load_config(all, world));
      if (!run_dir->empty()) config.log.run_dir = *run_dir;  // as it is, be it no text
      LANCET_TRY(comm::agree_on(world, "the same --resume and --init-from", *resume + '\n' + *init_from));
      return train::train(config, world,
                          {.local_ranks = local_ranks,
                           .profile_folder = profile_folder(),
                           .plan_file = *plan,
                           .resume = *resume,
                           .init_from = *init_from,
                           .accepted = arguments->accepted,
                           .stop = &catch_stop_signals(world.rank() == 0)});
    };
  });
}

namespace {

// All instructions of one key, over the programs.
struct KeyRow {
  int calls = 0;
  double flops = 0;  // per call
  cost::OpTime time;
  double total() const { return calls * time.ms; }
};

std::string shortened(const std::string& key) {
  constexpr std::size_t most = 110;
  return key.size() <= most ? key : key.substr(0, most) + "...";
}

void print_ops(const cost::Profile& profile, const ir::Program& program) {
  std::map<std::string, KeyRow> rows;
  double sum = 0;
  for (const ir::Instruction& instruction : program.instructions) {
    if (!cost::is_local(program, instruction)) continue;
    const std::string key = cost::op_key(program, instruction);
    KeyRow& row = rows[key];
    row.time = profile.ops.find(key)->second;
    row.flops = ops::work(program, instruction).flops;
    ++row.calls;
    sum += row.time.ms;
  }
  std::vector<std::pair<std::string, KeyRow>> sorted(rows.begin(), rows.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second.total() > b.second.total(); });
  fmt::print("{:>5} {:>9} {:>8} {:>8} {:>6}  {}\n", "calls", "ms", "+-", "GFLOP/s", "share", "op");
  for (const auto& [key, row] : sorted) {
    const double rate = row.time.ms > 0 ? row.flops / row.time.ms * 1e-6 : 0;
    fmt::print("{:>5} {:>9.4f} {:>7.1f}% {:>8.1f} {:>5.1f}%  {}\n", row.calls, row.time.ms, 100 * row.time.spread, rate,
               100 * row.total() / sum, shortened(key));
  }
  fmt::print("{} ops, {:.3f} ms of computation in a step\n", rows.size(), sum);
}

void print_points(const std::string& name, const std::vector<cost::Point>& points) {
  fmt::print("{:>12} {:>10} {:>9}  {}\n", "bytes", "ms", "MB/s", name);
  for (const cost::Point& point : points)
    fmt::print("{:>12.0f} {:>10.4f} {:>9.1f}\n", point.bytes, point.ms,
               point.ms > 0 ? point.bytes / point.ms * 1e-3 : 0);
}

// of: " of groups of ..." or nothing, of all ranks.
void print_times(const cost::CollectiveTimes& times, const std::string& of) {
  print_points(fmt::format("all-to-all{}: bytes that a rank sends to all others", of), times.all_to_all);
  for (const auto& [reach, points] : times.messages)
    print_points(fmt::format("{}{}: bytes that a rank sends", reach, of), points);
  print_points(fmt::format("all-reduce{}: bytes of the vector", of), times.all_reduce);
}

void print_network(const cost::NetworkTimes& network) {
  print_times(network, "");
  for (const auto& [key, times] : network.groups) print_times(times, " of groups of " + key);
  fmt::print(
      "launch {:.1f} us; the compute stream loses {:.3f} ms + {:.3f} ms/MB to an all-to-all, {:.3f} ms + {:.3f} ms/MB "
      "to an all-reduce; speed of communication beside computation {:.2f}, beside other communication {:.2f}\n",
      network.launch_ms * 1e3, network.all_to_all_core.per_message_ms, network.all_to_all_core.per_mb_ms,
      network.all_reduce_core.per_message_ms, network.all_reduce_core.per_mb_ms,
      network.interference.network_beside_compute, network.interference.network_beside_network);
}

struct ProfileArguments {
  std::string out, renew;
  double seconds = 2;
};

run::ProfileRequest::Renew renew_of(const std::string& word) {
  using Renew = run::ProfileRequest::Renew;
  return word == "all" ? Renew::all : word == "communication" ? Renew::communication : Renew::nothing;
}

Status profile(config::Config config, const ProfileArguments& arguments, comm::Communicator& world, int local_ranks) {
  if (!arguments.out.empty()) config.overlap.profile = arguments.out;
  LANCET_ASSIGN(const run::MeasuredStep step, run::measure_step(config, world,
                                                                {.local_ranks = local_ranks,
                                                                 .profile_folder = profile_folder(),
                                                                 .renew = renew_of(arguments.renew),
                                                                 .seconds = arguments.seconds}));
  if (world.rank() != 0) return {};
  fmt::print("{}\n", cost::to_string(step.profile.machine));
  print_ops(step.profile, step.programs.front());
  if (step.profile.machine.cluster.ranks > 1) print_network(step.profile.network);
  return {};
}

}  // namespace

void add_profile(CLI::App& app, Selection& selection) {
  CLI::App* command = app.add_subcommand(
      "profile", "Measure the time of ops and communication: mpirun -np 2 lancet profile configs/quickstart.json");
  auto config_arguments = add_config_arguments(*command);
  auto arguments = std::make_shared<ProfileArguments>();
  command
      ->add_option("--out", arguments->out, "The file; default: overlap.profile, or this machine's in ~/.cache/lancet")
      ->type_name("FILE");
  command->add_option("--renew", arguments->renew, "Measure again what the file already holds: communication or all")
      ->check(CLI::IsMember({"communication", "all"}));
  add_number(*command, "--seconds", arguments->seconds, "Approximate time for the ops of one program",
             between(0.0, 3600.0));
  command->callback([config_arguments, arguments, &selection] {
    selection.timeout = configured_timeout(*config_arguments);
    selection.ranked = [config_arguments, arguments](comm::Communicator& world, int local_ranks) -> Status {
      LANCET_ASSIGN(config::Config config, load_config(*config_arguments, world));
      return profile(config, *arguments, world, local_ranks);
    };
  });
}

namespace {

// Refuses to overwrite any file but an HTML page, so that a mistyped path does not destroy a run's records.
Status check_out(const std::string& out) {
  std::ifstream there(out);
  if (const int first = there.get(); !there || first == '<') return check_writable(out);
  return config_error(fmt::format("--out: expected a new file or an HTML page, found '{}', which is neither", out));
}

Status write_report(const std::vector<std::string>& folders, const std::string& out) {
  LANCET_TRY(check_out(out));
  const std::vector<std::filesystem::path> runs(folders.begin(), folders.end());
  LANCET_ASSIGN(const std::string page, report::page(runs));
  LANCET_TRY(write_file(out, page));
  log::info("{}: {:.1f} MB; open it in a browser", out, double(page.size()) * 1e-6);
  return {};
}

}  // namespace

void add_report(CLI::App& app, Selection& selection) {
  CLI::App* command = app.add_subcommand(
      "report", "Make an HTML page of one or several runs: lancet report runs/a runs/b --out report.html");
  auto folders = std::make_shared<std::vector<std::string>>();
  auto out = std::make_shared<std::string>("report.html");
  command->add_option("runs", *folders, "Run folders; several are overlaid and their configs compared")
      ->required()
      ->type_name("RUN");
  command->add_option("--out", *out, "File of the page")->capture_default_str()->type_name("FILE");
  command->callback(
      [folders, out, &selection] { selection.local = [folders, out] { return write_report(*folders, *out); }; });
}

}  // namespace lancet::cli
