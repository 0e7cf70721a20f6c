// Fills the network part of a profile. For each collective, and for messages to some ranks of a group that the plans
// have (cost::Reach), it times 1 KiB, 2 KiB, 4 KiB, ... up to the largest message of the plans, of all ranks and of
// each group of ranks that the plans name, or until one takes more than 2 s; beyond that the cost model extrapolates
// with the last slope. A time is the slowest rank's, and the median of repetitions that last about 0.1 s together. A
// profile whose sizes suffice is not measured again. The launch time and the interference do not depend on the plans
// and are measured once. The host's meter is here; device_network.cpp has that of accelerators.
#include "network_profile.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <thread>

#include "lancet/backend/cpu/buffer.h"
#include "lancet/base/clock.h"
#include "lancet/comm/collect.h"
#include "lancet/ir/groups.h"
#include "lancet/ops/catalogue.h"

namespace lancet::profiler {
namespace {

using Clock = std::chrono::steady_clock;
using backend::cpu::Buffer;

constexpr double smallest_bytes = 1024;
constexpr double size_seconds = 0.1;  // duration of all repetitions of one size
constexpr double longest_call = 2;    // seconds; larger messages are extrapolated with the last slope
constexpr int fewest = 3, most = 25;  // repetitions

// Milliseconds of a collective call: all ranks start at once, the slowest rank's time counts; the median over
// repetitions.
Result<double> time_call(comm::Communicator& world, const std::function<Status()>& call) {
  auto timed = [&](int times) -> Result<std::vector<double>> {
    std::vector<double> ms;
    for (int i = 0; i < times; ++i) {
      LANCET_TRY(world.barrier());
      const auto start = Clock::now();
      LANCET_TRY(call());
      ms.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
    }
    for (double& each : ms) {
      LANCET_ASSIGN(each, comm::largest(world, each));
    }
    return ms;
  };
  LANCET_ASSIGN(const std::vector<double> pilot, timed(2));  // the first touches the memory
  const double seconds = std::max(1e-7, pilot[1] * 1e-3);
  if (seconds > longest_call / 2) return pilot[1];
  LANCET_ASSIGN(const std::vector<double> ms, timed(std::clamp(int(size_seconds / seconds), fewest, most)));
  return median(ms);
}

// Times powers of two until one is at least `largest` or takes longer than longest_call. ms_of(bytes) times one size.
template <class MsOf>
Result<std::vector<cost::Point>> time_sizes(const ProfilerOptions& options, double largest, MsOf&& ms_of) {
  std::vector<cost::Point> points;
  for (double bytes = smallest_bytes;; bytes *= 2) {
    LANCET_TRY(check_interrupted(options));
    LANCET_ASSIGN(const double ms, ms_of(std::size_t(bytes)));
    points.push_back({bytes, ms});
    if ((bytes >= largest && points.size() > 2) || ms > longest_call * 1e3) return points;
  }
}

struct Messages {
  std::map<cost::Reach, double> sent = {{cost::Reach(), 0}};  // the largest bytes_sent, by reach
  double all_reduce = 0;                                      // the largest vector
  std::int64_t segments = 1;                                  // of an all-to-all, to each rank: its experts
};

// By group of ranks; those of all ranks are always there.
std::map<ir::Axes, Messages> messages_of(std::span<const ir::Plan> plans, const ir::Mesh& mesh) {
  std::map<ir::Axes, Messages> by_group{{ir::Axes(), Messages()}};
  for (const ir::Plan& plan : plans)
    for (const ir::Instruction& instruction : plan.program.instructions) {
      if (instruction.stream == ir::Stream::compute) continue;
      const ir::Axes axes = ir::group_of(instruction);
      if (!axes.empty() && mesh.size(axes) == 1) continue;  // a rank alone sends nothing
      Messages& messages = by_group[cost::measured_group(mesh, axes)];
      const double bytes = cost::bytes_sent(plan.program, instruction);
      if (instruction.stream == ir::Stream::reduce) messages.all_reduce = std::max(messages.all_reduce, bytes);
      if (instruction.stream != ir::Stream::expert) continue;
      double& largest = messages.sent[cost::reach_of(instruction)];
      largest = std::max(largest, bytes);
      const bool counts = ops::kind(instruction) == ops::Kind::counts;
      if (!counts && ops::kind(instruction) != ops::Kind::all_to_all) continue;
      const ir::TensorId rows = counts ? instruction.results[0] : instruction.operands[2];
      messages.segments = std::max(messages.segments, plan.program.type(rows).shape[0]);
    }
  return by_group;
}

// Measures the time from a signal to the start of the stream that waits for it. Two threads act as two streams of the
// executor: one sleeps on a counter, the other sets it.
double measure_launch_ms() {
  constexpr std::int32_t rounds = 41;
  std::atomic<std::int32_t> done{0}, ready{0};
  std::vector<Clock::time_point> signalled(rounds), started(rounds);
  std::jthread waiter([&] {
    for (std::int32_t i = 0; i < rounds; ++i) {
      ready.store(i + 1, std::memory_order_release);
      for (std::int32_t now = done.load(std::memory_order_acquire); now <= i;
           now = done.load(std::memory_order_acquire))
        done.wait(now, std::memory_order_acquire);
      started[std::size_t(i)] = Clock::now();
    }
  });
  for (std::int32_t i = 0; i < rounds; ++i) {
    while (ready.load(std::memory_order_acquire) <= i) std::this_thread::yield();
    const auto asleep = Clock::now() + std::chrono::microseconds(300);  // a wait spins a little before it sleeps
    while (Clock::now() < asleep) {
    }
    signalled[std::size_t(i)] = Clock::now();
    done.store(i + 1, std::memory_order_release);
    done.notify_all();
  }
  waiter.join();
  std::vector<double> ms;
  for (std::size_t i = 1; i < rounds; ++i)
    ms.push_back(std::chrono::duration<double, std::milli>(started[i] - signalled[i]).count());
  std::nth_element(ms.begin(), ms.begin() + rounds / 4, ms.end());
  return ms[rounds / 4];  // the first quartile, since other work on the waiter's core only adds time, and much of it
}

class HostMeter final : public NetworkMeter {
 public:
  HostMeter(const ProfilerOptions& options, comm::Communicator& expert, comm::Communicator& reduce)
      : options_(options), world_(*options.world), expert_(expert), reduce_(reduce) {}

  Result<double> message_ms(const Partners& partners, std::size_t bytes) override {
    const std::size_t each = partners.segment_bytes(expert_.rank(), bytes), message = each * partners.segments;
    const Buffer from = Buffer::zeroed(message * partners.to.size()),
                 to = Buffer::zeroed(message * partners.from.size());
    const auto sends = partners.segments_at(from.as<std::byte>(), partners.to, each),
               receives = partners.segments_at(to.as<std::byte>(), partners.from, each);
    return time_call(world_, [&] { return expert_.send_receive(sends, receives); });
  }
  Result<double> all_reduce_ms(std::size_t bytes) override {
    const Buffer values = Buffer::zeroed(bytes);
    return time_call(world_, [&] { return reduce_.all_reduce_sum(values.span<float>()); });
  }
  Result<double> launch_ms() override { return measure_launch_ms(); }
  Result<NetworkCosts> interference(const cost::NetworkTimes&) override {
    return measure_interference(expert_, reduce_, options_.threads, [&] { return check_interrupted(options_); });
  }

 private:
  const ProfilerOptions& options_;
  comm::Communicator &world_, &expert_, &reduce_;
};

bool reaches(const std::vector<cost::Point>& points, double bytes) {
  return !points.empty() && (points.back().bytes >= bytes || points.back().ms > longest_call * 1e3);
}

// A group has communicators on the streams whose instructions name it; another stream's serve as well.
MeasuredGroup group_in(const ProfilerOptions& options, ir::Axes axes) {
  const std::string name = ir::to_string(axes);
  const auto on = [&](ir::Stream stream) {
    const comm::Groups& groups = options.streams[std::size_t(stream)];
    const auto found = groups.find(name);
    return found == groups.end() ? comm::Group() : found->second;
  };
  MeasuredGroup group{on(ir::Stream::expert), on(ir::Stream::reduce)};
  if (group.expert.size == 1) group.expert = group.reduce;
  if (group.reduce.size == 1) group.reduce = group.expert;
  return group;
}

Result<std::unique_ptr<NetworkMeter>> make_meter(const ProfilerOptions& options, const MeasuredGroup& group,
                                                 ir::Axes axes, std::int64_t segments) {
  if (options.accelerator) return make_device_meter(options, group, segments);
  LANCET_CHECK(group.expert.comm && group.reduce.comm, "the profiler needs communicators of the axes '{}'",
               ir::to_string(axes));
  return std::unique_ptr<NetworkMeter>(std::make_unique<HostMeter>(options, *group.expert.comm, *group.reduce.comm));
}

// The times that the profile holds of a group of ranks, perhaps none.
cost::CollectiveTimes held_times(const cost::Profile& profile, ir::Axes group) {
  if (group.empty()) return profile.network;
  const auto it = profile.network.groups.find(cost::group_key(profile.mesh, group));
  return it == profile.network.groups.end() ? cost::CollectiveTimes() : it->second;
}

// True if the times do not go up to messages of these bytes.
bool lacks_sizes(const cost::CollectiveTimes& times, const cost::Reach& reach, double bytes) {
  const std::vector<cost::Point>* points = cost::points_of(times, reach);
  return !points || !reaches(*points, bytes);
}

bool lacks_messages(const Messages& messages, const cost::CollectiveTimes& times) {
  return !reaches(times.all_reduce, messages.all_reduce) || std::ranges::any_of(messages.sent, [&](const auto& sent) {
    return lacks_sizes(times, sent.first, sent.second);
  });
}

// Measures the sizes that a group's times do not reach. on_host: the ranks of the group that share a host.
Status fill_times(cost::CollectiveTimes& times, const Messages& messages, NetworkMeter& meter, const comm::Group& group,
                  int on_host, const ProfilerOptions& options) {
  const bool fresh = times.all_to_all.empty() || times.all_reduce.empty();
  for (const auto& [reach, largest] : messages.sent) {
    if (!(fresh && reach.all()) && !lacks_sizes(times, reach, largest)) continue;
    const Partners partners = partners_of(reach, group.place, group.size, on_host, messages.segments);
    LANCET_ASSIGN(auto points,
                  time_sizes(options, largest, [&](std::size_t bytes) { return meter.message_ms(partners, bytes); }));
    (reach.all() ? times.all_to_all : times.messages[cost::to_string(reach)]) = std::move(points);
  }
  if (fresh || !reaches(times.all_reduce, messages.all_reduce)) {
    LANCET_ASSIGN(times.all_reduce, time_sizes(options, messages.all_reduce,
                                               [&](std::size_t bytes) { return meter.all_reduce_ms(bytes); }));
  }
  return {};
}

// Measures what a profile holds once, whatever the plans.
Status fill_interference(cost::NetworkTimes& network, NetworkMeter& meter, comm::Communicator& world) {
  LANCET_ASSIGN(const double launch_ms, meter.launch_ms());
  LANCET_ASSIGN(network.launch_ms, comm::mean(world, launch_ms));
  LANCET_ASSIGN(const NetworkCosts beside, meter.interference(network));
  network.all_to_all_core = beside.all_to_all;
  network.all_reduce_core = beside.all_reduce;
  network.interference = beside.interference;
  return {};
}

}  // namespace

Partners partners_of(const cost::Reach& reach, int rank, int ranks, int on_host, std::int64_t segments) {
  if (reach.shift > 0) {
    const int shift = int(reach.shift % ranks);
    return {{(rank - shift + ranks) % ranks}, {(rank + shift) % ranks}};
  }
  Partners partners{.to = {}, .from = {}, .segments = std::size_t(segments)};
  for (int peer = 0; peer < ranks; ++peer)
    if (!reach.on_host || (peer / on_host == rank / on_host && peer != rank)) partners.to.push_back(peer);
  partners.from = partners.to;
  return partners;
}

std::size_t Partners::segment_bytes(int rank, std::size_t bytes) const {
  const std::size_t others = to.size() - std::size_t(std::ranges::count(to, rank));
  LANCET_CHECK(others > 0, "rank {} has no partners but itself", rank);
  return std::max<std::size_t>(1, bytes / (others * segments));
}

std::vector<comm::Segment> Partners::segments_at(std::byte* memory, const std::vector<int>& ranks,
                                                 std::size_t each) const {
  std::vector<comm::Segment> result;
  for (std::size_t i = 0; i < ranks.size() * segments; ++i)
    result.push_back({ranks[i / segments], memory + i * each, each});
  return result;
}

bool lacks_messages(std::span<const ir::Plan> plans, const cost::Profile& profile) {
  return std::ranges::any_of(messages_of(plans, profile.mesh), [&](const auto& of_group) {
    return lacks_messages(of_group.second, held_times(profile, of_group.first));
  });
}

Result<bool> fill_network(cost::Profile& profile, std::span<const ir::Plan> plans, const ProfilerOptions& options) {
  if (!options.world || options.world->size() == 1) return false;
  cost::NetworkTimes network = profile.network;  // the profile takes all of it or, after an error, nothing
  bool measured = false;
  for (const auto& [group, messages] : messages_of(plans, profile.mesh)) {
    cost::CollectiveTimes times = held_times(profile, group);
    if (!lacks_messages(messages, times)) continue;
    measured = true;
    const bool fresh = group.empty() && !network.measured();
    const MeasuredGroup measured_on = group_in(options, group);
    LANCET_ASSIGN(const auto meter, make_meter(options, measured_on, group, messages.segments));
    const int on_host = int(profile.ranks_on_host(group));
    LANCET_TRY(fill_times(times, messages, *meter, measured_on.expert, on_host, options));
    if (!group.empty()) network.groups[cost::group_key(profile.mesh, group)] = times;
    if (group.empty()) static_cast<cost::CollectiveTimes&>(network) = times;
    if (fresh) LANCET_TRY(fill_interference(network, *meter, *options.world));
  }
  profile.network = std::move(network);
  return measured;
}

}  // namespace lancet::profiler
