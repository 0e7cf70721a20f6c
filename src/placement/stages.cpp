// The search has an estimate of a split from the times of its blocks, and the planner, which takes thousands of times
// as long. The estimate ranks splits; a split whose slowest device has clearly more work in a step than the best step
// found takes is not planned at all.
#include "lancet/placement/stages.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "block_times.h"
#include "lancet/base/clock.h"
#include "lancet/placement/solvers.h"
#include "lancet/placement/timetable.h"
#include "lancet/run/planned_step.h"
#include "lancet/run/run_plans.h"
#include "lancet/schedule/plan_memory.h"

namespace lancet::placement {
namespace {

constexpr int most_ordered = 4, most_begun = 8;
// The blocks of a stage, each timed as a stage of its own, take a little longer than the stage: ops that are fused
// across their borders are apart.
constexpr double clearly_more = 1.05;

std::string hardware_of(const Cluster& cluster, const std::vector<int>& devices) {
  std::vector<std::string> names;
  const std::size_t count = devices.size();
  for (std::size_t stage = 0; stage < count; ++stage) {
    double ms_per_mb = 0, latency = 0;
    const auto meet = [&](std::size_t other) {
      const auto a = std::size_t(devices[stage]), b = std::size_t(devices[other]);
      ms_per_mb = std::max({ms_per_mb, cluster.ms_per_mb[a][b], cluster.ms_per_mb[b][a]});
      latency = std::max({latency, cluster.latency_ms[a][b], cluster.latency_ms[b][a]});
    };
    if (stage > 0) meet(stage - 1);
    if (stage + 1 < count) meet(stage + 1);
    if (stage == 0 || stage + 1 == count) meet(count - 1 - stage);
    const double alone = 100;  // Gbit/s of a link that nothing passes
    names.push_back(
        with_link(cluster.devices[std::size_t(devices[stage])], count > 1 ? 8 / ms_per_mb : alone, latency));
  }
  return fmt::format("{}", fmt::join(names, ";"));
}

// What the times of the blocks say of splits, without the planner.
class Loads {
 public:
  Loads(const Cluster& cluster, std::vector<BlockTimes> times, std::int64_t micro_batches)
      : cluster_(cluster),
        micro_batches_(double(micro_batches)),
        blocks_(int(times.size()) - 1),
        times_(std::move(times)) {}

  int blocks() const { return blocks_; }

  double slowest_ms(const StageSplit& split) const {
    double most = 0;
    for (const auto& [device, first, end] : stages_of(split)) {
      double sum = 0;
      for (int block = first; block < end; ++block) sum += work_ms(block, device);
      most = std::max(most, sum);
    }
    return most;
  }

  // The chain of a micro batch through all stages, and all others on the slowest one.
  double estimate_ms(const StageSplit& split) const {
    double chain = 0, slowest = 0, updates = 0;
    for (const auto& [device, first, end] : stages_of(split)) {
      double micro = 0, update = 0;
      for (int block = first; block < end; ++block) {
        micro += on(block, device).micro_ms;
        update += on(block, device).update_ms;
        chain += on(block, device).chain_ms;
      }
      slowest = std::max(slowest, micro);
      updates = std::max(updates, update);
    }
    return std::max(slowest_ms(split), chain + (micro_batches_ - 1) * slowest + updates);
  }

  // Of all orders of some devices, or of the fastest ones, the splits whose slowest stage is fastest.
  std::vector<StageSplit> balanced_splits() const {
    std::vector<StageSplit> found;
    const auto add = [&](const std::vector<int>& devices) {
      StageSplit split = balanced(devices, true);
      if (split.devices.empty()) split = balanced(devices, false);
      if (!split.devices.empty() && std::ranges::count(found, split) == 0) found.push_back(std::move(split));
    };
    const int count = int(cluster_.devices.size());
    std::vector<int> order(std::size_t(count), 0);
    std::iota(order.begin(), order.end(), 0);
    const auto all_ms = [&](int device) {
      double sum = 0;
      for (int block = 0; block <= blocks_; ++block) sum += work_ms(block, device);
      return sum;
    };
    if (count > most_ordered) std::ranges::stable_sort(order, {}, all_ms);
    do {
      for (int used = 1; used <= std::min(count, blocks_ + 1); ++used) add({order.begin(), order.begin() + used});
    } while (count <= most_ordered && std::next_permutation(order.begin(), order.end()));
    return found;
  }

 private:
  const BlockTimes::OfDevice& on(int block, int device) const {
    return times_[std::size_t(block)].on[std::size_t(device)];
  }
  double work_ms(int block, int device) const {
    return micro_batches_ * on(block, device).micro_ms + on(block, device).update_ms;
  }

  struct Stage {
    int device, first, end;  // blocks
  };
  std::vector<Stage> stages_of(const StageSplit& split) const {
    std::vector<Stage> stages;
    for (std::size_t s = 0; s < split.devices.size(); ++s) {
      const int first = s == 0 ? 0 : stages.back().end;
      stages.push_back({split.devices[s], first, first + split.blocks[s]});
    }
    ++stages.back().end;  // what is after the blocks
    return stages;
  }

  // A dynamic program; empty if no split has the memory for what a stage holds and, if asked, for the activations of
  // the micro batches in flight.
  StageSplit balanced(const std::vector<int>& devices, bool activations) const {
    const std::size_t stages = devices.size(), units = std::size_t(blocks_) + 1;
    std::vector<std::vector<double>> least(stages + 1, std::vector<double>(units + 1, never));
    std::vector<std::vector<std::size_t>> from(stages + 1, std::vector<std::size_t>(units + 1, 0));
    least[0][0] = 0;
    for (std::size_t s = 0; s < stages; ++s) {
      const bool last = s + 1 == stages;
      const double in_flight = activations ? std::min(micro_batches_, double(stages - s)) : 0;
      const double memory = cluster_.devices[std::size_t(devices[s])].memory_mb * 1e6;
      for (std::size_t first = 0; first < units; ++first) {
        if (least[s][first] == never) continue;
        double work = 0, bytes = 0;
        for (std::size_t end = first + 1; end <= units; ++end) {
          const BlockTimes& unit = times_[end - 1];
          work += work_ms(int(end) - 1, devices[s]);
          bytes += double(unit.held) + in_flight * double(unit.activations);
          if (bytes > memory) break;
          if (last != (end == units)) continue;
          if (const double most = std::max(least[s][first], work); most < least[s + 1][end])
            least[s + 1][end] = most, from[s + 1][end] = first;
        }
      }
    }
    StageSplit split;
    if (least[stages][units] == never) return split;
    split.devices = devices;
    split.blocks.resize(stages);
    for (std::size_t s = stages, end = units; s > 0; end = from[s][end], --s)
      split.blocks[s - 1] = int(end - from[s][end]) - (s == stages ? 1 : 0);
    return split;
  }

  const Cluster& cluster_;
  const double micro_batches_;
  const int blocks_;
  const std::vector<BlockTimes> times_;
};

bool is_split(const StageSplit& split) {
  for (std::size_t s = 0; s < split.blocks.size(); ++s)
    if (split.blocks[s] < (s + 1 == split.blocks.size() && s > 0 ? 0 : 1)) return false;
  return !split.blocks.empty();
}

// Borders between neighbours shifted by a block, two devices swapped, one replaced by one that is not used, a stage
// merged with the next, or cut in two on a device that is not used.
std::vector<StageSplit> neighbours(const StageSplit& of, int devices) {
  std::vector<StageSplit> found;
  const auto add = [&](StageSplit split) {
    if (is_split(split)) found.push_back(std::move(split));
  };
  std::vector<int> unused;
  for (int device = 0; device < devices; ++device)
    if (std::ranges::count(of.devices, device) == 0) unused.push_back(device);
  for (std::size_t s = 0; s < of.devices.size(); ++s) {
    for (const int device : unused) {
      StageSplit other = of;
      other.devices[s] = device;
      add(other);
      StageSplit cut = of;
      cut.devices.insert(cut.devices.begin() + std::ptrdiff_t(s) + 1, device);
      cut.blocks.insert(cut.blocks.begin() + std::ptrdiff_t(s) + 1, of.blocks[s] / 2);
      cut.blocks[s] -= of.blocks[s] / 2;
      add(cut);
    }
    for (std::size_t t = s + 1; t < of.devices.size(); ++t) {
      StageSplit swapped = of;
      std::swap(swapped.devices[s], swapped.devices[t]);
      add(swapped);
      std::swap(swapped.blocks[s], swapped.blocks[t]);
      add(swapped);
    }
    if (s + 1 == of.devices.size()) continue;
    for (const int more : {1, -1}) {
      StageSplit shifted = of;
      shifted.blocks[s] += more;
      shifted.blocks[s + 1] -= more;
      add(shifted);
    }
    for (const std::size_t dropped : {s, s + 1}) {
      StageSplit merged = of;
      merged.blocks[2 * s + 1 - dropped] += merged.blocks[dropped];
      merged.blocks.erase(merged.blocks.begin() + std::ptrdiff_t(dropped));
      merged.devices.erase(merged.devices.begin() + std::ptrdiff_t(dropped));
      add(merged);
    }
  }
  return found;
}

class StageSearch {
 public:
  StageSearch(const config::Config& config, const Cluster& cluster, std::vector<BlockTimes> times, double bound_ms,
              const StageSearchOptions& options)
      : cluster_(cluster),
        bound_ms_(bound_ms),
        loads_(cluster, std::move(times), config.train.gradient_accumulation_steps),
        asked_schedule_(config.train.pipeline_schedule),
        asked_(config, cluster),
        judged_(judged(config)),
        planner_(judged_, cluster),
        options_(options) {}

  Result<StageAnswer> run() {
    const auto start = std::chrono::steady_clock::now();
    const auto is_over = [&] { return seconds_since(start) > options_.seconds; };
    StageAnswer answer;
    answer.bound_ms = bound_ms_;
    try_split(even_split(), &answer.even);
    if (answer.even.step_ms <= 0) answer.no_even = last_error_.message;
    std::vector<StageSplit> begun = loads_.balanced_splits();
    std::ranges::stable_sort(begun, {}, [&](const StageSplit& split) { return loads_.estimate_ms(split); });
    if (begun.size() > std::size_t(most_begun)) begun.resize(most_begun);
    for (const StageSplit& split : begun)
      if (best_.step_ms <= 0 || !best_.fits() || !is_over()) try_split(split);
    for (bool better = best_.step_ms > 0; better;) {
      better = false;
      std::vector<StageSplit> next = neighbours(best_.split, int(cluster_.devices.size()));
      std::ranges::stable_sort(next, {}, [&](const StageSplit& split) { return loads_.estimate_ms(split); });
      for (const StageSplit& split : next) {
        if (is_over()) break;
        better |= try_split(split);
      }
    }
    if (best_.step_ms > 0 && !best_.fits()) return out_of_memory(best_);
    if (best_.step_ms <= 0) return last_error_;
    answer.best = best_;
    if (judged_.train.pipeline_schedule != asked_schedule_) {
      LANCET_ASSIGN(answer.best, asked_.plan(best_.split));
      if (!answer.best.fits()) return out_of_memory(answer.best);
      if (answer.even.step_ms > 0) {
        const bool is_best = answer.even.split == answer.best.split;
        Result<PlannedStages> even = is_best ? Result<PlannedStages>(answer.best) : asked_.plan(answer.even.split);
        if (!even.ok()) answer.no_even = even.error().message;
        answer.even = even.ok() ? *std::move(even) : PlannedStages();
      }
    }
    answer.planned = planner_.planned() + asked_.planned();
    return answer;
  }

 private:
  // A search over stages takes long for each split. Zero bubble ranks them; where that fits, the search is never
  // predicted longer.
  static config::Config judged(config::Config config) {
    if (config.train.pipeline_schedule == config::PipelineSchedule::searched)
      config.train.pipeline_schedule = config::PipelineSchedule::zero_bubble;
    return config;
  }

  // True if it is the best so far: what lacks least memory, then what is fastest. kept: the split as planned.
  bool try_split(const StageSplit& split, PlannedStages* kept = nullptr) {
    if (std::ranges::count(tried_, split) > 0) return false;
    if (!kept && best_.step_ms > 0 && best_.fits() && loads_.slowest_ms(split) >= clearly_more * best_.step_ms)
      return false;
    tried_.push_back(split);
    auto planned = planner_.plan(split);
    if (!planned.ok()) {
      last_error_ = planned.error();
      return false;
    }
    if (kept) *kept = *planned;
    if (best_.step_ms > 0 && std::pair(planned->lacking, planned->step_ms) >= std::pair(best_.lacking, best_.step_ms))
      return false;
    best_ = *std::move(planned);
    return true;
  }

  Error out_of_memory(const PlannedStages& planned) const {
    std::string stages;
    for (std::size_t s = 0; s < planned.bytes.size(); ++s) {
      const Cluster::Device& device = cluster_.devices[std::size_t(planned.split.devices[s])];
      stages += fmt::format("{}{} {} of {:.0f} MB", s > 0 ? ", " : "", device.name, planned.bytes[s] / 1'000'000,
                            device.memory_mb);
    }
    return config_error(
        fmt::format("expected a split whose stages fit their devices, found none; the nearest needs {}", stages));
  }

  StageSplit even_split() const {
    StageSplit split;
    const int stages = std::min(int(cluster_.devices.size()), loads_.blocks());
    for (int s = 0; s < stages; ++s) {
      split.devices.push_back(s);
      split.blocks.push_back(loads_.blocks() / stages + (s < loads_.blocks() % stages ? 1 : 0));
    }
    return split;
  }

  const Cluster& cluster_;
  const double bound_ms_;
  const Loads loads_;
  const config::PipelineSchedule asked_schedule_;
  StagePlanner asked_;
  const config::Config judged_;
  StagePlanner planner_;  // by judged_
  const StageSearchOptions& options_;
  PlannedStages best_;
  std::vector<StageSplit> tried_;
  Error last_error_;  // of the planner
};

// The step as one rank has it.
Result<config::Config> of_one_rank(const config::Config& config) {
  if (config.mesh != config::MeshSizes{})
    return config_error("mesh: expected none, since --stages chooses the stages, each of one rank");
  if (config.train.pipeline_schedule == config::PipelineSchedule::interleaved)
    return config_error(
        "train.pipeline_schedule: expected 1f1b, zero_bubble or searched for stages of one run of blocks, found "
        "\"interleaved\"");
  if (config.overlap.policy != "sequential")
    return config_error("overlap.policy: expected sequential for stages, found " + config.overlap.policy);
  LANCET_TRY(config::check(config, 1));
  config::Config alone = config;
  alone.device = config::Device::emulated;
  return alone;
}

}  // namespace

std::vector<std::string> PlannedStages::settings() const {
  std::vector<std::string> settings{"device=emulated", fmt::format("mesh.stage={}", split.devices.size())};
  if (split.devices.size() > 1) settings.push_back(fmt::format("mesh.stage_blocks=[{}]", fmt::join(split.blocks, ",")));
  settings.push_back("emulated.hardware=" + hardware);
  return settings;
}

Result<PlannedStages> StagePlanner::plan(const StageSplit& split) {
  ++planned_;
  PlannedStages result{.split = split, .hardware = hardware_of(cluster_, split.devices)};
  const int stages = int(split.devices.size());
  config::Config config = config_;
  config.emulated.hardware = result.hardware;
  config.mesh.stage = stages;
  if (stages > 1) config.mesh.stage_blocks.assign(split.blocks.begin(), split.blocks.end());
  auto made = run::plan_offline(config, {.ranks = stages});
  if (!made.ok()) {
    Error error = made.error();
    // The line begins with what the caller did not write.
    if (error.message.starts_with(result.hardware + ": ")) error.message.erase(0, result.hardware.size() + 2);
    return error;
  }
  run::PlannedStep planned = *std::move(made);
  if (planned.stages.empty()) planned.stages.push_back(planned.plan);
  result.compute_ms = planned.stage_times.compute;
  result.least_ms = planned.stage_times.least;
  for (int stage = 0; stage < stages; ++stage) {
    const ir::Plan& plan = planned.stages[std::size_t(stage)];
    result.bytes.push_back(schedule::plan_bytes(plan));
    const double limit = cluster_.devices[std::size_t(split.devices[std::size_t(stage)])].memory_mb * 1e6;
    result.lacking = std::max(result.lacking, result.bytes.back() - std::int64_t(limit));
  }
  if (stages == 1) result.compute_ms = {planned.report.policies.at(0).timeline.compute};
  result.step_ms = run::predicted_ms(planned.stages, config.train.gradient_accumulation_steps).value_or(0);
  return result;
}

Result<StageAnswer> place_stages(const config::Config& config, const Cluster& cluster,
                                 const StageSearchOptions& options) {
  LANCET_ASSIGN(const config::Config alone, of_one_rank(config));
  LANCET_ASSIGN(std::vector<BlockTimes> times, block_times(alone, cluster));
  LANCET_ASSIGN(const double bound_ms, least_of_splits_ms(alone, cluster));
  return StageSearch(alone, cluster, std::move(times), bound_ms, options).run();
}

}  // namespace lancet::placement
