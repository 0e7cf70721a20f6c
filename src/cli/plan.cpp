#include "lancet/ir/plan.h"
#include "commands.h"
#include "lancet/base/atomic_file.h"
#include "lancet/train/plan.h"
#include "load_config.h"

namespace lancet::cli {
namespace {

struct PlanArguments {
  int ranks = 1, hosts = 1;
  std::string out;
};

void print_policies(const planner::PlanReport& report) {
  fmt::print("{:<16} {:>9} {:>9} {:>9} {:>9} {:>9}  {}\n", "policy", "step ms", "compute", "a2a", "reduce", "exposed",
             "schedule");
  for (const planner::PolicyResult& result : report.policies) {
    const planner::Timeline& t = result.timeline;
    fmt::print("{:<16} {:>9.1f} {:>9.1f} {:>9.1f} {:>9.1f} {:>9.1f}  {}\n", result.policy, t.makespan, t.compute,
               t.all_to_all, t.all_reduce, t.exposed, result.how);
  }
  if (!report.why.empty()) fmt::print("{}\n", report.why);
}

Status plan(const config::Config& config, const PlanArguments& arguments) {
  train::PlanPlace place{arguments.ranks, arguments.hosts, default_profile()};
  LANCET_ASSIGN(const train::PlannedStep planned, train::plan_offline(config, place));
  print_policies(planned.report);
  fmt::print("runs {}: {} instructions, arena {:.1f} MB\n", planned.report.chosen,
             planned.plan.program.instructions.size(), double(planned.plan.arena_bytes) * 1e-6);
  if (!arguments.out.empty()) return write_file(arguments.out, ir::print(planned.plan));
  return {};
}

}  // namespace

void add_plan(CLI::App& app, Selection& selection) {
  CLI::App* command = app.add_subcommand(
      "plan", "Plan a training step without running it: lancet plan configs/quickstart.json --ranks 2");
  auto config_arguments = add_config_arguments(*command);
  auto arguments = std::make_shared<PlanArguments>();
  command->add_option("--ranks", arguments->ranks, "Ranks to plan for")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command->add_option("--hosts", arguments->hosts, "Hosts that they run on")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command->add_option("--out", arguments->out, "Write the plan here, for train --plan")->type_name("FILE");
  command->callback([config_arguments, arguments, &selection] {
    selection.local = [config_arguments, arguments]() -> Status {
      LANCET_ASSIGN(const config::Config config, load_config(*config_arguments));
      return plan(config, *arguments);
    };
  });
}

}  // namespace lancet::cli
