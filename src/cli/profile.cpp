#include <algorithm>
#include <map>

#include "commands.h"
#include "lancet/ops/catalogue.h"
#include "lancet/run/step_costs.h"
#include "load_config.h"
#include "numbers.h"

namespace lancet::cli {
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
  command->add_option("--seconds", arguments->seconds, "Approximate time for the ops of one program")
      ->capture_default_str()
      ->check(between(0.0, 3600.0));
  command->callback([config_arguments, arguments, &selection] {
    selection.timeout = configured_timeout(*config_arguments);
    selection.ranked = [config_arguments, arguments](comm::Communicator& world, int local_ranks) -> Status {
      LANCET_ASSIGN(config::Config config, load_config(*config_arguments, world));
      return profile(config, *arguments, world, local_ranks);
    };
  });
}

}  // namespace lancet::cli
