// lancet bench policies: all policies in turn on the ranks that it is started with.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "commands.h"
#include "lancet/base/clock.h"
#include "lancet/base/files.h"
#include "lancet/base/hash.h"
#include "lancet/base/json.h"
#include "lancet/base/log.h"
#include "lancet/comm/collect.h"
#include "lancet/ir/plan.h"
#include "lancet/planner/from_config.h"
#include "lancet/planner/planner.h"
#include "lancet/report/report.h"
#include "lancet/run/run_folder.h"
#include "lancet/runtime/emulated_device.h"
#include "lancet/schedule/schedule_report.h"
#include "lancet/train/trainer.h"

namespace lancet::cli {
namespace {

// A policy and a number of parts that it is to have, as overlap.parts; none: as the config says.
struct PolicyParts {
  std::string policy;
  std::optional<int> parts = {};
  // "lancet", "expert_pipeline-4"
  std::string name() const { return parts ? fmt::format("{}-{}", policy, *parts) : policy; }
  friend bool operator==(const PolicyParts&, const PolicyParts&) = default;
};

struct CompareOptions {
  int local_ranks = 1;
  std::string profile_folder = {};    // run::ProfileRequest::profile_folder
  std::vector<PolicyParts> policies;  // each once
  // A round runs each policy once: `warmup` steps, then `steps` measured ones.
  int rounds = 5, warmup = 1, steps = 5;
  std::filesystem::path folder = {};  // each policy's run folder is in it; empty: no folders
};

// One policy. A round's time is the median of its measured steps, in milliseconds.
struct PolicyTimes {
  std::string policy, ran;  // PolicyParts::name; whose plan ran: sequential, where no other is predicted to be faster
  std::string plan;         // a hash of its instructions and their order: equal for equal schedules
  std::optional<double> predicted_ms, predicted_exposed_ms;
  std::vector<double> step_ms, exposed_ms;  // by round
  std::vector<double> late_pct;             // by round, on an emulated device; else empty
  // Those of the last round's last step, as measured on rank 0. A message's time holds its wait for other ranks.
  std::vector<schedule::CommunicationSite> communications;
};

std::vector<ir::Interval> intervals_of(std::span<const runtime::Span> spans) {
  std::vector<ir::Interval> intervals;
  for (const runtime::Span& span : spans) intervals.push_back({double(span.start) * 1e-6, double(span.end) * 1e-6});
  return intervals;
}

std::string schedule_hash(const ir::Plan& plan) {
  std::string text = ir::print(plan.program);
  for (const std::vector<ir::InstructionId>& waits : plan.waits) {
    for (const ir::InstructionId wait : waits) text += fmt::format(" {}", wait.index());
    text += '\n';
  }
  return hex(hash64(text));
}

// Runs every policy in turn on the same ranks. A round makes a trainer for each policy in turn, so that what changes
// slowly on the machine (other users, its temperature) meets all policies alike. Planning is a pure function of costs
// that are measured once, so a policy runs the same plan in each round.
class Comparison {
 public:
  Comparison(const config::Config& config, comm::Communicator& world, const CompareOptions& options)
      : config_(config), world_(world), options_(options), times_(options.policies.size()), folders_(times_.size()) {}

  // Collective; times are rank 0's. Errors: those of training; of a run folder; on a signal, `saved`.
  Result<std::vector<PolicyTimes>> run() {
    for (std::size_t i = 0; i < times_.size(); ++i)
      LANCET_TRY(comm::agree(world_, config::check(config_of(i), world_.size())));
    for (int round = 0; round < options_.rounds; ++round)
      for (std::size_t i = 0; i < times_.size(); ++i) {
        LANCET_TRY(run_policy(i, round));
        if (world_.rank() == 0)
          log::info("round {}/{} {}: {:.1f} ms", round + 1, options_.rounds, options_.policies[i].name(),
                    times_[i].step_ms.back());
      }
    return std::move(times_);
  }

 private:
  config::Config config_of(std::size_t i) const {
    config::Config config = config_;
    const PolicyParts& policy = options_.policies[i];
    config.overlap.policy = policy.policy;
    config.overlap.parts = policy.parts.value_or(config.overlap.parts);
    config.overlap.replan = 0;  // one plan is timed
    return config;
  }

  Status run_policy(std::size_t i, int round) {
    const int steps = options_.warmup + options_.steps;
    config::Config config = config_of(i);
    config.train.steps = std::int64_t(steps) * options_.rounds;
    config.log.trace = steps;  // of every round: the ranks' clocks start together
    if (!options_.folder.empty()) config.log.run_dir = (options_.folder / options_.policies[i].name()).string();
    LANCET_ASSIGN(const auto trainer, train::Trainer::create(config, world_,
                                                             {.local_ranks = options_.local_ranks,
                                                              .profile_folder = options_.profile_folder}));
    if (round == 0) LANCET_TRY(comm::broadcast_status(world_, begin(i, config, *trainer), 0));
    std::vector<double> step_ms, exposed_ms, late_pct;
    PolicyTimes& times = times_[i];
    for (int step = 0; step < steps; ++step) {
      const auto border = step + 1 < steps ? train::Trainer::Border::open : train::Trainer::Border::closed;
      LANCET_ASSIGN(run::StepRecord record, trainer->step(step, border));
      if (step < options_.warmup) continue;
      step_ms.push_back(record.step_ms);
      exposed_ms.push_back(record.exposed_ms);
      if (record.late_pct) late_pct.push_back(*record.late_pct);
      record.step = std::int64_t(round) * options_.steps + step - options_.warmup + 1;
      if (folders_[i]) folders_[i]->record(record, trainer->last_layers(), false);
    }
    times.step_ms.push_back(median(step_ms));
    times.exposed_ms.push_back(median(exposed_ms));
    if (!late_pct.empty()) times.late_pct.push_back(median(late_pct));
    if (round + 1 < options_.rounds) return {};
    const runtime::Executor& executor = trainer->executor();
    times.communications = schedule::communication_sites(executor.plan().program, intervals_of(executor.spans()));
    LANCET_ASSIGN(const std::string trace, trainer->trace());
    if (folders_[i]) folders_[i]->trace(trace);
    return {};
  }

  // Notes the plan, and on rank 0 begins the policy's run folder.
  Status begin(std::size_t i, const config::Config& config, train::Trainer& trainer) {
    const ir::Plan& plan = trainer.executor().plan();
    PolicyTimes& times = times_[i];
    times.policy = options_.policies[i].name();
    times.ran = plan.header.text("policy");
    times.plan = schedule_hash(plan);
    if (plan.header.has("predicted_ms")) {
      times.predicted_ms = plan.header.real("predicted_ms");
      times.predicted_exposed_ms = plan.header.real("exposed_ms", 0);
    }
    if (options_.folder.empty() || world_.rank() != 0) return {};
    LANCET_ASSIGN(run::RunFolder folder, run::RunFolder::take(config));
    LANCET_TRY(folder.begin(checkpoint::disk(), config, plan, trainer.memory_json(), {}));
    folders_[i].emplace(std::move(folder));
    return {};
  }

  const config::Config& config_;
  comm::Communicator& world_;
  const CompareOptions& options_;
  std::vector<PolicyTimes> times_;
  std::vector<std::optional<run::RunFolder>> folders_;
};

// The rounds in which a is faster than b.
int rounds_won(const PolicyTimes& a, const PolicyTimes& b) {
  int won = 0;
  for (std::size_t round = 0; round < a.step_ms.size(); ++round) won += a.step_ms[round] < b.step_ms[round];
  return won;
}

constexpr std::size_t least_width = 10;  // of a column
// Two policies of equal speed have one order in as many rounds by a chance of 1 in 16.
constexpr int rounds_to_tell = 5;

std::string ms_or_none(const std::optional<double>& ms) { return ms ? fmt::format("{:.1f}", *ms) : "-"; }

// As times: the median of the rounds.
std::optional<double> late_pct(const PolicyTimes& times) {
  return times.late_pct.empty() ? std::nullopt : std::optional(median(times.late_pct));
}

// The median over rounds of how many times as fast as `base` a policy is.
double speed_up(const PolicyTimes& base, const PolicyTimes& times) {
  std::vector<double> ratios;
  for (std::size_t round = 0; round < times.step_ms.size(); ++round)
    ratios.push_back(base.step_ms[round] / times.step_ms[round]);
  return median(ratios);
}

std::string table_of_steps(const std::vector<PolicyTimes>& all) {
  const PolicyTimes& first = all.front();
  std::string text = fmt::format("{:<18} {:>10} {:>10} {:>9} {:>9} {:>8} {:>9} {:>10} {:>7}\n", "policy", "predicted",
                                 "step ms", "least", "most", "speed-up", "exposed", "predicted", "late");
  for (const PolicyTimes& times : all) {
    const auto [least, most] = std::ranges::minmax(times.step_ms);
    text += fmt::format("{:<18} {:>10} {:>10.1f} {:>9.1f} {:>9.1f} {:>8.3f} {:>9.1f} {:>10} {:>7}{}\n", times.policy,
                        ms_or_none(times.predicted_ms), median(times.step_ms), least, most, speed_up(first, times),
                        median(times.exposed_ms), ms_or_none(times.predicted_exposed_ms),
                        late_pct(times) ? fmt::format("{:.1f}%", *late_pct(times)) : "-",
                        times.ran == times.policy ? "" : "  ran " + times.ran);
  }
  return text;
}

// The pairs that ran one plan, and those whose order differs from round to round.
std::string differences(std::vector<PolicyTimes> all) {
  std::ranges::sort(all, {}, [](const PolicyTimes& times) { return median(times.step_ms); });
  const int rounds = int(all.front().step_ms.size());
  std::string same, noise;
  for (auto a = all.begin(); a != all.end(); ++a)
    for (auto b = a + 1; b != all.end(); ++b)
      if (a->plan == b->plan)
        same += fmt::format("  {} and {}\n", a->policy, b->policy);
      else if (const int won = rounds_won(*a, *b); won < rounds)
        noise +=
            fmt::format("  {} and {}: the first was faster in {} of {} rounds\n", a->policy, b->policy, won, rounds);
  std::string text;
  if (!same.empty()) text += "the same plan ran for\n" + same;
  if (rounds < rounds_to_tell)
    return text + fmt::format("which differences are more than noise takes {} rounds to tell\n", rounds_to_tell);
  if (noise.empty()) return text + "of any other two policies one was faster in every round\n";
  return text + "no more than noise between\n" + noise;
}

// The policies whose times are not those of the emulated devices.
std::string too_late(const std::vector<PolicyTimes>& all) {
  constexpr double most = runtime::EmulatedDevice::most_late_pct;
  std::vector<std::string_view> late;
  for (const PolicyTimes& times : all)
    if (late_pct(times).value_or(0) > most) late.push_back(times.policy);
  if (late.empty()) return "";
  return fmt::format(
      "late by over {:.0f}% of a step, so that their times are not those of the devices: {}; a higher "
      "emulated.dilation leaves this machine more time\n",
      most, fmt::join(late, ", "));
}

// The exposed milliseconds of the last step by position in the model, all-reduces together. Where both communication
// streams are busy, both count.
std::map<std::string, double> exposed_by_site(const PolicyTimes& times) {
  std::map<std::string, double> exposed;
  for (const schedule::CommunicationSite& site : times.communications)
    exposed[site.stream == ir::Stream::expert ? site.site : "all-reduces"] += site.ms - site.covered_ms;
  return exposed;
}

std::string table_of_sites(const std::vector<PolicyTimes>& all) {
  std::vector<std::string> sites;
  std::vector<std::map<std::string, double>> exposed;
  for (const PolicyTimes& times : all) {
    exposed.push_back(exposed_by_site(times));
    for (const auto& [site, ms] : exposed.back())
      if (std::ranges::find(sites, site) == sites.end()) sites.push_back(site);
  }
  if (sites.empty()) return "";
  std::ranges::sort(sites, {}, [](const std::string& site) { return std::pair(site.size(), site); });  // h.2, h.10
  std::string text = fmt::format("\n{:<26}", "exposed ms, last step");
  for (const PolicyTimes& times : all) text += fmt::format(" {:>{}}", times.policy, least_width);
  for (const std::string& site : sites) {
    text += fmt::format("\n{:<26}", site);
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto found = exposed[i].find(site);
      text += fmt::format(" {:>{}}", found == exposed[i].end() ? "-" : fmt::format("{:.1f}", found->second),
                          std::max(all[i].policy.size(), least_width));
    }
  }
  return text + "\n";
}

std::string report_of(const std::vector<PolicyTimes>& all, const CompareOptions& options, int ranks) {
  return fmt::format(
             "{} rank{}, {} rounds of {} steps after {}; a round's time is its median, a policy's the median of its "
             "rounds\n",
             ranks, ranks == 1 ? "" : "s", options.rounds, options.steps, options.warmup) +
         table_of_steps(all) + too_late(all) + differences(all) + table_of_sites(all);
}

nlohmann::json number_or_null(const std::optional<double>& value) { return value ? nlohmann::json(*value) : nullptr; }

nlohmann::json json_of(const std::vector<schedule::CommunicationSite>& communications) {
  nlohmann::json sites = nlohmann::json::array();
  for (const schedule::CommunicationSite& site : communications)
    sites.push_back({{"site", site.site},
                     {"pass", site.pass},
                     {"stream", ir::name(site.stream)},
                     {"parts", site.parts},
                     {"ms", site.ms},
                     {"exposed_ms", site.ms - site.covered_ms}});
  return sites;
}

std::string json_of_all(const std::vector<PolicyTimes>& all, const config::Config& config,
                        const CompareOptions& options, int ranks) {
  nlohmann::json policies = nlohmann::json::array();
  for (const PolicyTimes& times : all)
    policies.push_back({{"policy", times.policy},
                        {"ran", times.ran},
                        {"plan", times.plan},
                        {"predicted_ms", number_or_null(times.predicted_ms)},
                        {"predicted_exposed_ms", number_or_null(times.predicted_exposed_ms)},
                        {"step_ms", times.step_ms},
                        {"exposed_ms", times.exposed_ms},
                        {"late_pct", number_or_null(late_pct(times))},
                        {"communications", json_of(times.communications)}});
  const nlohmann::json document = {{"commit", commit()},
                                   {"ranks", ranks},
                                   {"rounds", options.rounds},
                                   {"steps", options.steps},
                                   {"config", *parse_json(config::to_json(config), "config", ExitCode::internal)},
                                   {"policies", policies}};
  return json_text(document, {.indent = 1}) + '\n';
}

// The text, the same numbers for programs, and a page of the run folders beside them.
Status write_files(const std::string& text, const std::string& json, const CompareOptions& options) {
  LANCET_TRY(write_file(options.folder / "policies.txt", text));
  LANCET_TRY(write_file(options.folder / "policies.json", json));
  std::vector<std::filesystem::path> runs;
  for (const PolicyParts& policy : options.policies) runs.push_back(options.folder / policy.name());
  LANCET_ASSIGN(const std::string page, report::page(runs));
  LANCET_TRY(write_file(options.folder / "policies.html", page));
  log::info("{}: policies.txt, policies.json, policies.html and a run folder for each policy", options.folder.string());
  return {};
}

// Reads POLICY or POLICY:PARTS.
Result<PolicyParts> parse_policy(const std::string& text) {
  const std::size_t colon = text.find(':');
  PolicyParts found{text.substr(0, colon)};
  LANCET_TRY(planner::check_policy(found.policy));
  if (colon == text.npos) return found;
  std::string parts = text.substr(colon + 1);
  if (const std::string wrong = whole_between(1, 64)(parts); !wrong.empty())
    return config_error(fmt::format("parts of {}: {}", found.policy, wrong));
  found.parts = std::stoi(parts);
  return found;
}

// The policies to compare: those that are named, or those with which the plan of a step is compared.
std::vector<PolicyParts> chosen(const std::vector<std::string>& named, const config::Config& config) {
  std::vector<PolicyParts> policies;
  for (const std::string& text : named)
    if (auto policy = *parse_policy(text); std::ranges::find(policies, policy) == policies.end())
      policies.push_back(std::move(policy));
  if (policies.empty())
    for (const std::string_view policy : planner::compared_policies(planner::micro_batches_in_plan(config)))
      policies.push_back({std::string(policy)});
  return policies;
}

Status bench_policies(config::Config config, CompareOptions options, comm::Communicator& world) {
  if (config.data.train.empty() || config.device == config::Device::emulated) {
    config.data = config::Data();
    config.data.synthetic = true;
  }
  config.data.eval.clear();
  config.train.save_minutes = 0;
  config.train.save_interval = 0;
  LANCET_ASSIGN(const auto all, Comparison(config, world, options).run());
  if (world.rank() != 0) return {};
  const std::string text = report_of(all, options, world.size());
  LANCET_TRY(print(text));
  return options.folder.empty() ? Status()
                                : write_files(text, json_of_all(all, config, options, world.size()), options);
}

}  // namespace

void add_bench_policies(CLI::App& bench, Selection& selection) {
  CLI::App* command = bench.add_subcommand(
      "policies",
      "Compare the policies on these ranks: scripts/mpirun.sh 2 build/lancet bench policies configs/bench-small.json");
  auto arguments = add_config_arguments(*command);
  auto options = std::make_shared<CompareOptions>();
  auto folder = std::make_shared<std::string>();
  auto named = std::make_shared<std::vector<std::string>>();
  command
      ->add_option("--policies", *named,
                   "Policies to compare, the first to relate the others to, each as NAME or, with a forced number of "
                   "parts, NAME:PARTS; default: all")
      ->delimiter(',')
      ->type_name("NAMES")
      ->check([](const std::string& name) {
        const auto policy = parse_policy(name);
        return policy.ok() ? std::string() : policy.error().message;
      });
  add_number(*command, "--repeats", options->rounds, "Rounds, each of which runs every policy once",
             whole_between(1, 1000));
  add_number(*command, "--steps", options->steps, "Measured steps of a policy in a round", whole_between(1, 100000));
  command->add_option("--out", *folder, "Folder for a table, a page, and a run folder of each policy")
      ->type_name("DIR");
  command->callback([arguments, options, folder, named, &selection] {
    selection.timeout = configured_timeout(*arguments);
    selection.ranked = [arguments, options, folder, named](comm::Communicator& world, int local_ranks) -> Status {
      LANCET_ASSIGN(config::Config config, load_config(*arguments, world));
      options->local_ranks = local_ranks;
      options->profile_folder = profile_folder();
      options->folder = *folder;
      options->policies = chosen(*named, config);
      return bench_policies(std::move(config), *options, world);
    };
  });
}

}  // namespace lancet::cli
