// The profiler handles the plans with missing op keys one after the other. It replays all instructions of a plan once,
// to warm up and to let gates decide. It then chooses up to eight instructions of each key, together with those before
// them that bring the caches into their usual state, and replays the chosen ones in several sweeps. A later plan
// measures only keys that earlier plans have not added. Messages are measured last (network_profile.cpp).
#include "lancet/profiler/profiler.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "lancet/base/clock.h"
#include "lancet/comm/collect.h"
#include "network_profile.h"
#include "replay.h"

namespace lancet::profiler {
namespace {

using Clock = std::chrono::steady_clock;

// A rank that fails alone would let the others wait for it.
Status agreed(comm::Communicator* world, const Status& mine) { return world ? comm::agree(*world, mine) : mine; }

Status mean_over_ranks(comm::Communicator* world, std::vector<float>& values) {
  if (!world || world->size() == 1) return {};
  LANCET_TRY(world->all_reduce_sum(values));
  for (float& value : values) value /= float(world->size());
  return {};
}

// The instructions to sample, by key: all of a key's instructions in a plan, or eight of them, evenly spaced.
constexpr std::size_t most_instances = 8;
using Instances = std::map<std::string, std::vector<std::size_t>>;

Instances instances_of(const ir::Program& program, const std::set<std::string>& keys) {
  Instances all;
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    if (!cost::is_local(program, program.instructions[i])) continue;
    if (const std::string key = cost::op_key(program, program.instructions[i]); keys.contains(key))
      all[key].push_back(i);
  }
  for (auto& [_, indices] : all) {
    if (indices.size() <= most_instances) continue;
    std::vector<std::size_t> some;
    for (std::size_t i = 0; i < most_instances; ++i)
      some.push_back(indices[i * (indices.size() - 1) / (most_instances - 1)]);
    indices = std::move(some);
  }
  return all;
}

// The bytes that an access pattern must touch to evict everything else from the caches: twice the last level.
double context_bytes() {
  const long cache = ::sysconf(_SC_LEVEL3_CACHE_SIZE);
  return 2.0 * double(std::clamp<long>(cache, 16 << 20, 256 << 20));
}

double touched_bytes(const ir::Program& program, const ir::Instruction& instruction) {
  double bytes = 0;
  for (ir::TensorId id : instruction.operands) bytes += double(ir::bytes(program.type(id)));
  for (ir::TensorId id : instruction.results) bytes += double(ir::bytes(program.type(id)));
  return bytes;
}

// Chooses the instances, and before each as many instructions as determine the caches' contents.
std::vector<bool> with_context(const ir::Program& program, const Instances& instances) {
  std::vector<bool> chosen(program.instructions.size());
  for (const auto& [_, indices] : instances)
    for (std::size_t index : indices) chosen[index] = true;
  double wanted = 0;
  for (std::size_t i = chosen.size(); i-- > 0;) {
    if (chosen[i]) {
      wanted = context_bytes();
    } else if (wanted > 0) {
      chosen[i] = true;
      wanted -= touched_bytes(program, program.instructions[i]);
    }
  }
  return chosen;
}

struct Quartiles {
  double first, median, third;
};
Quartiles quartiles(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  auto at = [&](double share) {
    const double rank = share * double(values.size() - 1);
    const std::size_t low = std::size_t(rank), high = std::min(low + 1, values.size() - 1);
    return values[low] + (rank - double(low)) * (values[high] - values[low]);
  };
  return {at(0.25), at(0.5), at(0.75)};
}

// The time of one key. samples[i]: milliseconds of instruction i, by sweep.
cost::OpTime time_of(const std::vector<std::size_t>& indices, const std::vector<std::vector<double>>& samples) {
  cost::OpTime time;
  for (std::size_t index : indices) {
    const Quartiles q = quartiles(samples[index]);
    time.ms += q.median / double(indices.size());
    if (q.median > 0) time.spread += (q.third - q.first) / 2 / q.median / double(indices.size());
    time.samples += int(samples[index].size());
  }
  return time;
}

constexpr int fewest_sweeps = 5, fewest_slow_sweeps = 3, most_sweeps = 200;
constexpr double slow_seconds = 4;  // a sweep that lasts longer is repeated less often

class PlanProfiler {
 public:
  PlanProfiler(const ir::Plan& plan, const ProfilerOptions& options) : plan_(plan), options_(options) {}

  // Adds the times of these keys, means over the ranks, to the profile.
  Status run(const std::set<std::string>& keys, cost::Profile& profile) {
    const Instances instances = instances_of(plan_.program, keys);
    auto replay = Replay::create(plan_, options_.threads, options_.accelerator);
    LANCET_TRY(agreed(options_.world, replay.ok() ? Status() : Status(replay.error())));
    replay_ = std::move(replay).value();
    std::vector<std::int64_t> nanoseconds;
    LANCET_TRY(sweep(std::vector<bool>(plan_.program.instructions.size(), true), nanoseconds));
    const std::vector<bool> chosen = with_context(plan_.program, instances);
    LANCET_ASSIGN(const int sweeps, agree_on_sweeps(chosen));
    std::vector<std::vector<double>> samples(nanoseconds.size());
    for (int s = 0; s < sweeps; ++s) {
      LANCET_TRY(sweep(chosen, nanoseconds));
      for (std::size_t i = 0; i < samples.size(); ++i) samples[i].push_back(double(nanoseconds[i]) * 1e-6);
    }
    return add(instances, samples, profile);
  }

 private:
  Status sweep(const std::vector<bool>& chosen, std::vector<std::int64_t>& nanoseconds) {
    LANCET_TRY(check_interrupted(options_));
    if (options_.world) LANCET_TRY(options_.world->barrier());
    return replay_->sweep(chosen, nanoseconds);
  }

  Result<int> agree_on_sweeps(const std::vector<bool>& chosen) {
    std::vector<std::int64_t> nanoseconds;
    const auto start = Clock::now();
    LANCET_TRY(sweep(chosen, nanoseconds));
    std::vector<float> seconds{float(seconds_since(start))};
    LANCET_TRY(mean_over_ranks(options_.world, seconds));
    const double sweep_seconds = std::max<double>(seconds[0], 1e-9);
    const int fewest = sweep_seconds > slow_seconds ? fewest_slow_sweeps : fewest_sweeps;
    return std::clamp(int(options_.seconds / sweep_seconds), fewest, most_sweeps);
  }

  Status add(const Instances& instances, const std::vector<std::vector<double>>& samples, cost::Profile& profile) {
    std::vector<float> means;  // ms and spread of each key
    std::vector<cost::OpTime> times;
    for (const auto& [_, indices] : instances) {
      times.push_back(time_of(indices, samples));
      means.push_back(float(times.back().ms));
      means.push_back(float(times.back().spread));
    }
    LANCET_TRY(mean_over_ranks(options_.world, means));
    std::size_t at = 0;
    for (const auto& [key, _] : instances) {
      profile.ops[key] = {double(means[2 * at]), times[at].samples, double(means[2 * at + 1])};
      ++at;
    }
    return {};
  }

  const ir::Plan& plan_;
  const ProfilerOptions& options_;
  std::unique_ptr<Replay> replay_;
};

std::string cpu_model() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("model name"))
      if (const auto at = line.find(": "); at != std::string::npos) return line.substr(at + 2);
  return "unknown CPU";
}

// The widest instruction set extension among those that kernels distinguish.
std::string isa() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512bf16")) return "avx512bf16";
  if (__builtin_cpu_supports("avx512f")) return "avx512f";
  if (__builtin_cpu_supports("avx2")) return "avx2";
  return "x86-64";
#else
  return "generic";
#endif
}

std::set<std::string> missing_in(const ir::Program& program, const cost::Profile& profile) {
  std::set<std::string> keys;
  for (const ir::Instruction& instruction : program.instructions)
    if (cost::is_local(program, instruction))
      if (std::string key = cost::op_key(program, instruction); !profile.ops.contains(key)) keys.insert(std::move(key));
  return keys;
}

// Rank 0 binds the plans' kernels, which measures the algorithms of their products; all ranks use its choices.
// Collective.
Status choose_products(cost::Profile& profile, std::span<const ir::Plan> plans, const ProfilerOptions& options) {
  runtime::Accelerator& accelerator = *options.accelerator;
  std::string lines;
  Status bound;
  if (!options.world || options.world->rank() == 0) {
    accelerator.measure_products(true);
    for (const ir::Plan& plan : plans)
      if (bound.ok() && !missing_in(plan.program, profile).empty())
        if (auto replay = Replay::create(plan, options.threads, &accelerator); !replay.ok()) bound = replay.error();
    accelerator.measure_products(false);
    for (const auto& [product, algorithm] : accelerator.product_choices()) lines += product + '\n' + algorithm + '\n';
  }
  LANCET_TRY(agreed(options.world, bound));
  if (options.world) {
    LANCET_ASSIGN(lines, comm::broadcast_text(*options.world, lines, 0));
  }
  std::istringstream in(lines);
  for (std::string product, algorithm; std::getline(in, product) && std::getline(in, algorithm);)
    profile.products[product] = algorithm;
  return agreed(options.world, accelerator.add_product_choices(profile.products));
}

}  // namespace

cost::Device this_device(int threads, int local_ranks) { return {cpu_model(), isa(), threads, local_ranks}; }
cost::Device device_of(runtime::Accelerator& accelerator) {
  return {accelerator.device().name(), accelerator.device().architecture(), 1, 1, accelerator.build()};
}

std::vector<std::string> missing_ops(std::span<const ir::Plan> plans, const cost::Profile& profile) {
  std::set<std::string> keys;
  for (const ir::Plan& plan : plans) keys.merge(missing_in(plan.program, profile));
  return {keys.begin(), keys.end()};
}

bool lacks_times(std::span<const ir::Plan> plans, const cost::Profile& profile, int ranks) {
  return !missing_ops(plans, profile).empty() || (ranks > 1 && lacks_messages(plans, profile));
}

Result<ProfilerReport> fill_profile(cost::Profile& profile, std::span<const ir::Plan> plans,
                                    const ProfilerOptions& options) {
  const auto start = Clock::now();
  ProfilerReport report;
  if (options.accelerator && !missing_ops(plans, profile).empty()) LANCET_TRY(choose_products(profile, plans, options));
  report.seconds_of_choices = seconds_since(start);
  for (const ir::Plan& plan : plans) {
    const std::set<std::string> keys = missing_in(plan.program, profile);
    if (keys.empty()) continue;
    report.ops += int(keys.size());
    LANCET_TRY(PlanProfiler(plan, options).run(keys, profile));
  }
  const auto network_start = Clock::now();
  LANCET_ASSIGN(report.network, fill_network(profile, plans, options));
  report.seconds_of_network = seconds_since(network_start);
  report.seconds = seconds_since(start);
  return report;
}

}  // namespace lancet::profiler
