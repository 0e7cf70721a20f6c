// A round makes a trainer for each policy in turn, so that what changes slowly on the machine (other users, its
// temperature) meets all policies alike. Planning is a pure function of costs that are measured once, so a policy runs
// the same plan in each round.
#include "lancet/train/compare_policies.h"

#include <fmt/format.h>

#include <algorithm>

#include "lancet/base/clock.h"
#include "lancet/base/hash.h"
#include "lancet/base/log.h"
#include "lancet/comm/collect.h"
#include "lancet/ir/plan.h"
#include "lancet/run/run_folder.h"
#include "lancet/train/trainer.h"

namespace lancet::train {
namespace {

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

class Comparison {
 public:
  Comparison(const config::Config& config, comm::Communicator& world, const ComparePoliciesOptions& options)
      : config_(config), world_(world), options_(options), times_(options.policies.size()), folders_(times_.size()) {}

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
    LANCET_ASSIGN(const auto trainer,
                  Trainer::create(config, world_,
                                  {.local_ranks = options_.local_ranks, .profile_folder = options_.profile_folder}));
    if (round == 0) LANCET_TRY(comm::broadcast_status(world_, begin(i, config, *trainer), 0));
    std::vector<double> step_ms, exposed_ms, late_pct;
    PolicyTimes& times = times_[i];
    for (int step = 0; step < steps; ++step) {
      const auto border = step + 1 < steps ? Trainer::Border::open : Trainer::Border::closed;
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
  Status begin(std::size_t i, const config::Config& config, Trainer& trainer) {
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
  const ComparePoliciesOptions& options_;
  std::vector<PolicyTimes> times_;
  std::vector<std::optional<run::RunFolder>> folders_;
};

}  // namespace

std::string PolicyParts::name() const { return parts ? fmt::format("{}-{}", policy, *parts) : policy; }

int rounds_won(const PolicyTimes& a, const PolicyTimes& b) {
  int won = 0;
  for (std::size_t round = 0; round < a.step_ms.size(); ++round) won += a.step_ms[round] < b.step_ms[round];
  return won;
}

Result<std::vector<PolicyTimes>> compare_policies(const config::Config& config, comm::Communicator& world,
                                                  const ComparePoliciesOptions& options) {
  return Comparison(config, world, options).run();
}

}  // namespace lancet::train
