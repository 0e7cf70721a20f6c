#include "lancet/run/planned_step.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "commands.h"
#include "lancet/base/files.h"
#include "lancet/base/log.h"
#include "lancet/ir/micro_batches.h"
#include "lancet/ir/plan.h"
#include "lancet/planner/from_config.h"
#include "lancet/profiler/profiler.h"
#include "lancet/schedule/cut.h"
#include "plan_report.h"

namespace lancet::cli {
namespace {

constexpr double least_saved = 0.01;  // of a step, by perfect balance, that is worth a line

std::string memory_line(const run::PlannedStep& planned) {
  const double gib = double(planned.memory) / (1 << 30);
  return fmt::format("memory: {:.1f} GiB of {:.1f} GiB{}", gib, *planned.available_gib,
                     gib > *planned.available_gib ? ": out of memory" : "");
}

struct PlanArguments {
  run::PlanTarget target;
  std::string out, dump, trace;
  bool passes = false, json = false, alone = false;
};

// Whether dump() may have written a file of this name: NN_name.ir.
bool is_pass_file(std::string_view file) {
  if (file.size() < 7 || file[2] != '_' || !file.ends_with(".ir")) return false;
  const std::string_view pass = file.substr(3, file.size() - 6);
  return file.find_first_not_of("0123456789") == 2 &&
         pass.find_first_not_of("abcdefghijklmnopqrstuvwxyz_") == pass.npos;
}

// Makes the folder of --dump, without the programs of an earlier call, whose numbers differ.
Status empty_dump(const std::filesystem::path& folder) {
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  if (failed) return data_error(fmt::format("cannot make the folder {}: {}", folder.string(), failed.message()));
  for (const auto& entry : std::filesystem::directory_iterator(folder, failed))
    if (is_pass_file(entry.path().filename().string())) std::filesystem::remove(entry.path(), failed);
  return check_writable(folder / "policies.txt");
}

// Writes the Program after each pass as NN_name.ir, the Plan after the last one, and the table of all policies.
Status dump(const std::filesystem::path& folder, const planner::PlanReport& report) {
  for (std::size_t i = 0; i < report.passes.size(); ++i)
    LANCET_TRY(write_file(folder / fmt::format("{:02}_{}.ir", i, report.passes[i].name), report.passes[i].text));
  return write_file(folder / "policies.txt", policy_table(report));
}

// Says how to measure the machine that the plan is for.
std::string how_to_measure(const ConfigArguments& config, int ranks, int hosts) {
  std::error_code ignored;
  std::string command = "to measure this one: ";
  if (hosts > 1)
    command = fmt::format(
        "to measure one of {} hosts, on them (docs/clusters.md): mpirun --hostfile hosts --bind-to none "
        "-np {} ",
        hosts, ranks);
  else if (ranks > 1)
    command += fmt::format("{} {} ", shell_word(find_shipped("scripts/mpirun.sh").string()), ranks);
  command +=
      shell_word(std::filesystem::proximate(program_path(), ignored).string()) + " profile " + shell_word(config.file);
  for (const std::string& field : config.overrides) command += " --set " + shell_word(field);
  return command;
}

// Plans for this machine if its costs are known, else, with a note, for a declared one whose ranks are a host each.
Result<run::PlannedStep> planned_for(const config::Config& config, const ConfigArguments& file,
                                     const PlanArguments& arguments) {
  run::PlanTarget target = arguments.target;
  target.profile_folder = profile_folder();
  target.must_fit = !arguments.json;
  target.keep_texts = !arguments.dump.empty();
  target.compare = !arguments.alone;
  auto planned = run::plan_offline(config, target);
  const bool named = !target.profile.empty() || !target.hardware.empty() || !config.overlap.profile.empty() ||
                     config.device == config::Device::emulated;
  if (planned.ok() || named) return planned;
  target.hardware = "ethernet-10g-cpu";
  auto declared = run::plan_offline(config, target);
  if (!declared.ok()) return declared;
  log::warn("{}; planned for the declared machine {} instead; {}", planned.error().message, target.hardware,
            how_to_measure(file, target.ranks, target.hosts));
  return declared;
}

// As config::without_effect() says it of fields.
std::vector<std::string> options_without_effect(const config::Model& model, const run::PlanTarget& target) {
  std::vector<std::string> lines;
  const auto add = [&](std::string_view option, bool is_given, bool of_choices) {
    if (is_given && model.moe_layers() == 0)
      lines.push_back(fmt::format("{} changes nothing in a dense model", option));
    else if (is_given && of_choices && model.experts_choose())
      lines.push_back(fmt::format("{} changes nothing with model.router \"expert_choice\"", option));
  };
  add("--load", !target.load.empty(), true);
  add("--imbalance", target.imbalance != 1, false);
  add("--padded", target.padded, false);
  return lines;
}

std::string policies_with(std::string_view cut) {
  std::vector<std::string_view> names;
  for (const planner::PolicyInfo& policy : planner::policies())
    if (std::ranges::find(policy.cuts, cut) != policy.cuts.end()) names.push_back(policy.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

// What each cut says of itself, and the policies that name it.
std::string cuts_text() {
  std::string text;
  const auto add = [&](std::string_view name, const schedule::CutWords& words) {
    text += fmt::format("{}\n  splits    {}\n  pairs     {}\n  rewrites  {}\n", name, words.splits, words.pairs,
                        words.rewrites);
    text += fmt::format("  memory    {}\n  launches  {}\n  source    {}\n  policies  {}\n", words.memory,
                        words.launches, words.source, policies_with(name));
  };
  for (const schedule::Cut* cut : schedule::all_cuts()) add(cut->name, cut->words);
  for (const schedule::PassCut& cut : schedule::pass_cuts()) add(cut.name, cut.words);
  text.pop_back();
  return text;
}

Status write_plans(const std::string& out, const run::PlannedStep& planned) {
  LANCET_TRY(ir::write_later_stages(out, planned.stages));
  return write_file(out, ir::print(planned.plan));
}

void print_tables(const config::Config& config, const PlanArguments& arguments, const run::PlannedStep& planned,
                  const std::vector<report::Communication>& communications) {
  fmt::print("costs: {}\n", planned.costs);
  if (arguments.target.ranks > 1)
    fmt::print("mesh: {}\n", ir::describe(config::mesh_of(config, arguments.target.ranks)));
  if (planned.available_gib)
    fmt::print("{}\n", memory_line(planned));
  else if (config.device == config::Device::cuda && config.train.memory_limit_mb == 0)
    fmt::print("memory: no budget, since a profile does not say what the GPU has; train.memory_limit_mb sets one\n");
  if (const double ms = planned.plan.header.real("predicted_ms", 0), saved = ms - planned.balanced_ms.value_or(ms);
      saved > least_saved * ms)
    fmt::print("balance: popular experts cost {:.1f} ms ({:.1f}%) of this plan's step, {:.1f} ms\n", saved,
               100 * saved / ms, ms);
  if (planned.crowded)
    fmt::print("note: the ranks compute with more threads than there are cores: predicted times do not hold\n");
  const bool measured = !planned.profile.ops.empty();
  if (const cost::Device here = profiler::this_device(1, 1); measured && planned.profile.machine.device.cpu != here.cpu)
    fmt::print("note: measured on another device than this one, {}\n", here.cpu);
  if (measured && planned.profile.machine.device.build != cost::kernel_build())
    fmt::print("note: measured with another build than this program's, {}\n", cost::kernel_build());
  const std::int64_t in_plan = ir::micro_batches(planned.plan.program);
  if (!arguments.alone && arguments.target.plan_file.empty() && planned.stages.empty() &&
      planned.report.policies.size() < planner::compared_policies(in_plan).size())
    fmt::print(
        "note: a large step is planned by sequential and overlap.policy alone; --set overlap.policy=NAME plans "
        "another\n");
  if (const std::int64_t all = config.train.gradient_accumulation_steps; all > in_plan)
    fmt::print("note: a step of {} micro batches runs this plan {} times; times are of one run\n", all, all / in_plan);
  std::string memory = memory_text(planned);
  if (!memory.empty()) memory += "\n";
  if (!planned.stages.empty()) {
    fmt::print("\n{}", stage_table(planned));
    for (std::size_t stage = 0; stage < planned.stages.size(); ++stage)
      fmt::print("\nstage {}\n{}", stage, cover_table(report::communications(planned.stages[stage])));
  } else {
    fmt::print("\n{}\n{}\n{}{}\n{}", policy_table(planned.report), schedule_text(planned), memory,
               cover_table(communications), timeline_chart(planned.plan));
  }
  if (arguments.passes) fmt::print("\n{}", pass_table(planned.report));
}

Status plan(const config::Config& config, const ConfigArguments& file, const PlanArguments& arguments) {
  LANCET_TRY(planner::check_skip(arguments.target.skip));
  if (!arguments.dump.empty()) LANCET_TRY(empty_dump(arguments.dump));
  if (!arguments.out.empty()) LANCET_TRY(check_writable(arguments.out));
  LANCET_ASSIGN(const run::PlannedStep planned, planned_for(config, file, arguments));
  for (const std::string& without : options_without_effect(config.model, arguments.target)) log::warn("{}", without);
  if (const std::string warning = planner::short_runs_warning(config); !warning.empty()) log::warn("{}", warning);
  std::vector<report::Communication> communications;
  if (planned.stages.empty()) communications = report::communications(planned.plan);
  if (!arguments.trace.empty()) {
    LANCET_ASSIGN(communications, report::communications(planned.plan, std::filesystem::path(arguments.trace)));
  }
  if (arguments.json)
    LANCET_TRY(print(plan_json(planned)));
  else
    print_tables(config, arguments, planned, communications);
  if (!arguments.dump.empty()) LANCET_TRY(dump(arguments.dump, planned.report));
  if (!arguments.out.empty()) return write_plans(arguments.out, planned);
  return {};
}

}  // namespace

void add_plan(CLI::App& app, Selection& selection) {
  CLI::App* command = app.add_subcommand(
      "plan", "Plan a training step without running it: lancet plan configs/quickstart.json --ranks 2");
  auto config_arguments = add_config_arguments(*command);
  command->get_option("config")->required(false);
  command
      ->add_option("--from", config_arguments->from,
                   "Plan the training of this folder's model, of Hugging Face's format; CONFIG may be left out then")
      ->type_name("DIR");
  std::string policies = "Policies (overlap.policy):\n";
  for (const planner::PolicyInfo& policy : planner::policies())
    policies += fmt::format("  {:<22} {}\n", policy.name, policy.what);
  command->footer(policies + "\n" + command->get_footer());
  auto arguments = std::make_shared<PlanArguments>();
  add_number(*command, "--ranks", arguments->target.ranks, "Ranks to plan for", whole_between(1, 65536));
  command
      ->add_option("--hosts", arguments->target.hosts,
                   "Hosts that they run on; left out: 1, or full nodes of --on; emulated: as many as ranks")
      ->check(whole_between(1, 65536));
  command
      ->add_option("--on", arguments->target.hardware,
                   "A declared machine: a name in configs/hardware, or a file; what --profile holds goes before it")
      ->type_name("HARDWARE");
  command
      ->add_option("--profile", arguments->target.profile,
                   "File of measured costs (lancet profile --out), of this device or of another")
      ->type_name("FILE");
  CLI::Option* on = command->get_option("--on");
  command
      ->add_option(
          "--imbalance", arguments->target.imbalance,
          "Of --on: the tokens of the fullest expert over the mean; what its capacity does not hold is dropped")
      ->check(between(1, 1000))
      ->needs(on);
  command
      ->add_flag("--padded", arguments->target.padded, "Of --on: whole buffers are sent and multiplied, filled or not")
      ->needs(on);
  CLI::Option* load = command
                          ->add_option("--load", arguments->target.load,
                                       "How often experts are chosen: the metrics.jsonl of a run, zipf:S, zipf:S:N or "
                                       "even (docs/planning.md); all wait for the slowest rank of each layer")
                          ->type_name("FILE|LAW");
  for (const char* of_curve : {"--imbalance", "--padded"}) load->excludes(of_curve);
  command->add_flag("--alone", arguments->alone, "Plan overlap.policy without the predictions of the other policies");
  CLI::Option* json = command->add_flag(
      "--json", arguments->json,
      "Print one JSON object, also of a step that the device has no memory for (docs/experiments.md)");
  command->add_flag("--passes", arguments->passes, "List the passes that made the plan, with their times");
  command->add_option("--dump", arguments->dump, "Write the Program after each pass into this folder, as NN_name.ir")
      ->type_name("DIR");
  command->add_option("--skip", arguments->target.skip, "Leave out a pass, to see what it does (repeatable)")
      ->type_name("PASS")
      ->expected(1)
      ->take_all();
  command->add_option("--out", arguments->out, "Write the plan here, for train --plan")->type_name("FILE");
  command->add_flag_callback(
      "--cuts", [] { throw CLI::CallForVersion(cuts_text(), 0); },  // printed without the need for a config
      "List the ways to cut a step in parts, with what they cost and their source, and exit");
  CLI::Option* given =
      command
          ->add_option("--plan", arguments->target.plan_file,
                       "Predict the plan of this file, which may have been made for other costs or another routing")
          ->type_name("FILE");
  command
      ->add_option("--trace", arguments->trace,
                   "Say of each communication also what hid it in this trace.json of a run of the same plan (--plan)")
      ->type_name("FILE")
      ->needs(given);
  for (const char* of_planning : {"--passes", "--dump", "--skip"}) given->excludes(of_planning);
  for (const char* of_text : {"--passes", "--trace"}) json->excludes(of_text);
  command->callback([config_arguments, arguments, &selection] {
    if (config_arguments->file.empty() && config_arguments->from.empty()) throw CLI::RequiredError("config");
    selection.local = [config_arguments, arguments]() -> Status {
      LANCET_ASSIGN(const config::Config config, load_config(*config_arguments));
      return plan(config, *config_arguments, *arguments);
    };
  });
}

}  // namespace lancet::cli
