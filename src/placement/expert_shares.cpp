#include "lancet/placement/expert_shares.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <set>

#include "emulated_link.h"
#include "lancet/base/clock.h"
#include "lancet/ops/catalogue.h"
#include "lancet/planning/planned_step.h"
#include "lancet/planning/run_plans.h"

namespace lancet::placement {
namespace {

using Counts = std::vector<std::int64_t>;

// The link of each device has one rate and latency: those of its slowest path to or from another.
std::string hardware_of(const Cluster& cluster) {
  std::vector<std::string> names;
  const std::size_t count = cluster.devices.size();
  for (std::size_t device = 0; device < count; ++device) {
    double ms_per_mb = 0, latency = 0;
    for (std::size_t other = 0; other < count; ++other) {
      ms_per_mb = std::max({ms_per_mb, cluster.ms_per_mb[device][other], cluster.ms_per_mb[other][device]});
      latency = std::max({latency, cluster.latency_ms[device][other], cluster.latency_ms[other][device]});
    }
    names.push_back(with_link(cluster.devices[device], 8 / ms_per_mb, latency));
  }
  return fmt::format("{}", fmt::join(names, ";"));
}

struct Planned {
  ExpertShares shares;
  ir::Program program;
};
Result<Planned> planned(const config::Config& config, const Cluster& cluster, const Counts& counts) {
  ExpertShares shares{.counts = counts, .hardware = hardware_of(cluster)};
  config::Config here = config;
  here.device = config::Device::emulated;
  here.emulated.hardware = shares.hardware;
  here.model.num_local_experts = config.model.experts(1);
  here.model.experts_per_rank.reset();
  here.mesh.expert_counts = counts;
  const int ranks = int(counts.size());
  LANCET_TRY(config::check(here, ranks));
  auto step = planning::plan_offline(here, {.ranks = ranks, .compare = false});
  if (!step.ok()) {
    Error error = step.error();
    // The line begins with what the caller did not write.
    if (error.message.starts_with(shares.hardware + ": ")) error.message.erase(0, shares.hardware.size() + 2);
    return error;
  }
  shares.bytes = step->memory;
  const double smallest = std::ranges::min_element(cluster.devices, {}, &Cluster::Device::memory_mb)->memory_mb * 1e6;
  shares.lacking = std::max<std::int64_t>(0, shares.bytes - std::int64_t(smallest));
  planning::StepPlans plans;
  plans.step = std::move(step->plan);
  shares.step_ms = planning::predicted_ms(plans, config.train.gradient_accumulation_steps).value_or(0);
  return Planned{std::move(shares), std::move(plans.step.program)};
}

// The shares of which the slowest device computes its experts fastest, if all experts get as many tokens: each next
// expert goes where that is over first.
Counts by_speed(const Cluster& cluster, const ir::Program& program, std::int64_t experts) {
  std::vector<double> expert_ms;
  for (const Cluster::Device& device : cluster.devices) {
    double sum = 0;
    for (const ir::Instruction& at : program.instructions)
      if (at.stream == ir::Stream::compute && ops::is_over_expert_rows(at))
        sum += cost::op_ms(device.hardware, program, at);
    expert_ms.push_back(sum);
  }
  Counts counts(cluster.devices.size(), 1);
  for (std::int64_t given = std::ssize(counts); given < experts; ++given) {
    std::size_t next = 0;
    for (std::size_t i = 1; i < counts.size(); ++i)
      if (double(counts[i] + 1) * expert_ms[i] < double(counts[next] + 1) * expert_ms[next]) next = i;
    ++counts[next];
  }
  return counts;
}

Status check(const config::Config& config, const Cluster& cluster) {
  if (config.mesh != config::MeshSizes{})
    return config_error("mesh: expected none, since --experts chooses it, with a rank on each device");
  LANCET_TRY(config::check(config, 1));
  const auto devices = std::ssize(cluster.devices);
  if (devices < 2) return config_error("devices: expected at least two, found one");
  if (const std::int64_t experts = config.model.experts(1); experts < devices)
    return config_error(fmt::format("model: expected an expert for each of the {} devices, found {} experts in a layer",
                                    devices, experts));
  for (std::size_t a = 0; a < cluster.devices.size(); ++a)
    for (std::size_t b = 0; b < cluster.devices.size(); ++b)
      if (!std::isfinite(cluster.ms_per_mb[a][b]))
        return config_error(fmt::format("expected a path from {} to {}, between which tokens travel, found none",
                                        cluster.devices[a].name, cluster.devices[b].name));
  return {};
}

class ShareSearch {
 public:
  ShareSearch(const config::Config& config, const Cluster& cluster, double seconds)
      : config_(config), cluster_(cluster), seconds_(seconds) {}

  Result<ExpertAnswer> run() {
    const std::int64_t experts = config_.model.experts(1), devices = std::ssize(cluster_.devices);
    Counts even(std::size_t(devices), experts / devices);
    for (std::int64_t i = 0; i < experts % devices; ++i) ++even[std::size_t(i)];
    ExpertAnswer answer;
    ir::Program program;
    if (try_shares(even, &program)) {
      answer.even = best_;
      try_shares(by_speed(cluster_, program, experts));
    } else {
      answer.no_even = last_error_.message;
      best_.counts = even;
    }
    for (std::int64_t moved = std::max<std::int64_t>(1, experts / devices / 2); moved > 0; moved /= 2)
      while (!is_over() && try_moves(moved)) {
      }
    if (best_.step_ms <= 0) return last_error_;
    if (best_.lacking > 0)
      return config_error(
          fmt::format("expected shares of experts that fit the smallest memory, found none; the nearest "
                      "lacks {} MB",
                      (best_.lacking + 999'999) / 1'000'000));
    answer.best = best_;
    answer.planned = planned_;
    return answer;
  }

 private:
  bool is_over() const { return seconds_since(start_) > seconds_; }

  // The search takes the best of all shares in which one device gives `moved` experts to another; false if none is
  // better.
  bool try_moves(std::int64_t moved) {
    const Counts from = best_.counts;
    bool better = false;
    for (std::size_t giver = 0; giver < from.size(); ++giver)
      for (std::size_t taker = 0; taker < from.size(); ++taker) {
        if (giver == taker || from[giver] <= moved || is_over()) continue;
        Counts next = from;
        next[giver] -= moved;
        next[taker] += moved;
        better |= try_shares(next);
      }
    return better;
  }

  // True if they are the best so far: of those that lack least memory, the fastest.
  // program: of the plan.
  bool try_shares(const Counts& counts, ir::Program* program = nullptr) {
    if (!tried_.insert(counts).second) return false;
    ++planned_;
    auto made = planned(config_, cluster_, counts);
    if (!made.ok()) {
      last_error_ = made.error();
      return false;
    }
    if (program) *program = std::move(made->program);
    const ExpertShares& shares = made->shares;
    if (best_.step_ms > 0 && std::pair(shares.lacking, shares.step_ms) >= std::pair(best_.lacking, best_.step_ms))
      return false;
    best_ = shares;
    return true;
  }

  const config::Config& config_;
  const Cluster& cluster_;
  const double seconds_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::set<Counts> tried_;
  ExpertShares best_;
  Error last_error_;  // of the planner
  int planned_ = 0;
};

}  // namespace

std::vector<std::string> ExpertShares::settings() const {
  std::int64_t experts = 0;
  for (const std::int64_t count : counts) experts += count;
  return {"device=emulated", "model.experts_per_rank=null", fmt::format("model.num_local_experts={}", experts),
          fmt::format("mesh.expert_counts=[{}]", fmt::join(counts, ",")), "emulated.hardware=" + hardware};
}

Result<ExpertShares> plan_experts(const config::Config& config, const Cluster& cluster, const Counts& counts) {
  LANCET_ASSIGN(Planned made, planned(config, cluster, counts));
  return std::move(made.shares);
}

Result<ExpertAnswer> place_experts(const config::Config& config, const Cluster& cluster, double seconds) {
  LANCET_TRY(check(config, cluster));
  return ShareSearch(config, cluster, seconds).run();
}

}  // namespace lancet::placement
