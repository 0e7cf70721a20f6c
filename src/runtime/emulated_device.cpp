#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <span>
#include <vector>

#include "drawn_routing.h"
#include "lancet/base/clock.h"
#include "lancet/base/log.h"
#include "lancet/comm/collect.h"
#include "lancet/ir/groups.h"
#include "lancet/ops/catalogue.h"
#include "lancet/ops/peer_parts.h"
#include "lancet/runtime/emulated_device.h"

namespace lancet::runtime {
namespace {

constexpr int calibrations = 7, large_calibrations = 3;
constexpr double most_unlike = 0.1;    // of a declared time
constexpr double least_message = 16;   // bytes to an expert, which are rounded up
constexpr double most_overhead = 0.2;  // of an all-to-all's time

// The host of this rank among unlike ones; 0 if all are alike.
std::size_t host_of(const EmulatedDevice::Options& options) {
  return options.hosts.size() == 1 ? 0 : std::size_t(options.rank / options.layout.on_host());
}

// Messages wait for the fullest of all ranks. Unlike hosts compute the experts of their own.
cost::HardwareCosts costs_on(std::size_t host, const EmulatedDevice::Options& options) {
  const ir::Mesh& mesh = options.layout.mesh;
  const int stage = mesh.ranks() == options.layout.ranks ? mesh.coordinate(options.rank, ir::Axis::stage) : 0;
  cost::Routing routing{.capacity = options.loads->model().slots, .loads = options.loads};
  if (options.hosts.size() > 1) routing.host = host;
  return cost::HardwareCosts(options.hosts[host], options.layout, {}, routing).at_stage(stage);
}

std::vector<cost::HardwareCosts> costs_of_hosts(const EmulatedDevice::Options& options) {
  std::vector<cost::HardwareCosts> costs;
  for (std::size_t host = 0; host < options.hosts.size(); ++host) costs.push_back(costs_on(host, options));
  return costs;
}

// The key of the ranks that an instruction goes over. The two ends of a message between stages are in a group of all
// stages, in which each rank sends to one other.
std::string group_key(const ir::Instruction& at) {
  return ir::between_stages(at.stream) ? std::string(ir::name(ir::Axis::stage)) : ir::key_of(at);
}

// The median time of a call on the slowest rank, in nanoseconds of the host.
template <class Call>
Result<double> slowest_ns(comm::Communicator& world, int repeats, const Call& call) {
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) {
    LANCET_TRY(world.barrier());
    const auto start = std::chrono::steady_clock::now();
    LANCET_TRY(call());
    times.push_back(seconds_since(start) * 1e9);
  }
  return comm::largest(world, median(times));
}

}  // namespace

EmulatedDevice::EmulatedDevice(Options options)
    : options_(std::move(options)),
      routing_(std::make_unique<DrawnRouting>(options_.loads)),
      costs_(costs_on(host_of(options_), options_)),
      slowest_costs_(costs_of_hosts(options_)) {}

EmulatedDevice::~EmulatedDevice() = default;

std::string EmulatedDevice::hardware_names() const {
  std::vector<std::string_view> names;
  for (const cost::Hardware& host : options_.hosts) names.push_back(host.name);
  return fmt::format("{}", fmt::join(names, ";"));
}

std::int64_t EmulatedDevice::free_bytes(int stage) const {
  if (options_.hosts.size() == 1) return options_.hosts[0].free_bytes();
  const auto [first, last] = options_.layout.hosts_of_stage(stage);
  const auto hosts = std::span(options_.hosts).subspan(std::size_t(first), std::size_t(last - first + 1));
  return std::ranges::min(hosts, {}, &cost::Hardware::free_bytes).free_bytes();
}

const EmulatedDevice::Overhead& EmulatedDevice::overhead(const std::string& group) const {
  const auto found = overheads_.find(group);
  LANCET_CHECK(found != overheads_.end(), "the latency of the group '{}' was not measured", group);
  return found->second;
}

double EmulatedDevice::overhead_ns(const std::string& group, int others) const {
  const std::map<int, double>& measured = overhead(group).sent_ns;
  const auto found = measured.find(others);
  LANCET_CHECK(found != measured.end(), "messages to {} ranks of the group '{}' were not measured", others, group);
  return found->second;
}

// A group of named stages has the ranks of other stages alone.
int EmulatedDevice::others_in(const std::string& group) const {
  if (group.empty()) return options_.layout.ranks - 1;
  std::size_t most = 1;
  for (int rank = 0; rank < options_.layout.ranks; ++rank)
    most = std::max(most, ir::ranks_of(group, options_.layout.mesh, rank).size());
  return int(most) - 1;
}

int EmulatedDevice::sent_to(const ir::Instruction& at) const {
  if (ir::between_stages(at.stream)) return 1;
  const int others = others_in(group_key(at));
  if (ops::is_ring_step(at)) return std::min(int(at.results.size()), others);  // a window to each of its neighbours
  return cost::reached(at) > 0 ? int(cost::reached(at)) : others;
}

double EmulatedDevice::message_latency_ns(const ir::Instruction& at) const {
  return costs_.latency_ms(at) * ns_per_ms - overhead_ns(group_key(at), sent_to(at)) / options_.dilation;
}

double EmulatedDevice::all_reduce_latency_ns(const ir::Instruction& at) const {
  return costs_.reduce_ms(1, at) * ns_per_ms - overhead(group_key(at)).all_reduce_ns / options_.dilation;
}

// Messages are of a byte, to the next ranks. The groups of some axes measure at the same time, as they communicate in a
// step.
Status EmulatedDevice::measure(comm::Communicator& world, comm::Communicator& ranks, const std::string& group,
                               const std::set<int>& numbers) {
  const bool is_new = !overheads_.contains(group);
  Overhead& overhead = overheads_[group];
  for (const int others : numbers) {
    if (overhead.sent_ns.contains(others)) continue;
    std::vector<comm::Segment> sends, receives;
    std::vector<std::byte> bytes(2 * std::size_t(others));
    for (int i = 0; i < others; ++i) {
      sends.push_back({(ranks.rank() + i + 1) % ranks.size(), bytes.data() + i, 1});
      receives.push_back({(ranks.rank() + ranks.size() - i - 1) % ranks.size(), bytes.data() + others + i, 1});
    }
    LANCET_ASSIGN(overhead.sent_ns[others], slowest_ns(world, calibrations, [&]() -> Status {
                    return ranks.size() == 1 ? Status() : ranks.send_receive(sends, receives);
                  }));
  }
  if (!is_new) return {};
  std::vector<float> sums(std::size_t(ranks.size()));
  LANCET_ASSIGN(overhead.all_reduce_ns, slowest_ns(world, calibrations, [&] { return ranks.all_reduce_sum(sums); }));
  return {};
}

Status EmulatedDevice::calibrate(comm::Communicator& world, const std::vector<const ir::Program*>& programs) {
  if (world.size() == 1) return {};
  std::map<std::string, std::set<int>> used{{"", {}}};  // by group, the numbers of ranks sent to
  for (const ir::Program* program : programs) {
    const auto keys = ir::used_keys(*program);
    for (const std::string& group : keys[std::size_t(ir::Stream::reduce)]) used[group];
    LANCET_TRY(ir::for_each_kernel(*program, [&](const ir::Instruction& at, ir::Stream) -> Status {
      if (at.stream == ir::Stream::expert || ir::between_stages(at.stream)) used[group_key(at)].insert(sent_to(at));
      return {};
    }));
  }
  for (auto& [group, numbers] : used) {
    numbers.insert(others_in(group));
    if (group.empty()) {
      LANCET_TRY(measure(world, world, group, numbers));
      continue;
    }
    LANCET_ASSIGN(const auto ranks, world.split(ir::ranks_of(group, options_.layout.mesh, world.rank())));
    LANCET_TRY(measure(world, *ranks, group, numbers));
  }
  return {};
}

Status EmulatedDevice::try_links(comm::Communicator& world, const ir::Plan& plan) const {
  double bytes = 0;
  for (const ir::Instruction& at : plan.program.instructions)
    if (ops::kind(at) == ops::Kind::all_to_all) bytes = std::max(bytes, cost::bytes_sent(plan.program, at));
  LANCET_ASSIGN(bytes, comm::largest(world, bytes));  // a stage may have no experts
  const int peers = world.size() - 1;
  const auto each = std::size_t(bytes / (options_.scale * std::max(peers, 1)));
  if (peers == 0 || each == 0) return {};
  std::vector<std::byte> sent(each), received(each * std::size_t(world.size()));
  std::vector<comm::Segment> sends, receives;
  for (int peer = 0; peer < world.size(); ++peer) {
    if (peer == world.rank()) continue;
    sends.push_back({peer, sent.data(), each});
    receives.push_back({peer, received.data() + std::size_t(peer) * each, each});
  }
  LANCET_ASSIGN(const double host_ns,
                slowest_ns(world, large_calibrations, [&] { return world.send_receive(sends, receives); }));
  const double ms = std::max(host_ns - overhead_ns("", world.size() - 1), 0.0) / options_.dilation / ns_per_ms;
  const double declared = slowest_costs_.all_to_all_ms(bytes) - slowest_costs_.all_to_all_ms(1);
  if (world.rank() == 0 && std::abs(ms / declared - 1) > most_unlike)
    log::warn(
        "links: the bytes of an all-to-all of {:.1f} MB take {:.2f} ms of the device's time here, declared are {:.2f}; "
        "scripts/emulate-cluster.sh up sets links for emulated.hardware, scale and dilation",
        bytes * 1e-6, ms, declared);
  return {};
}

Status EmulatedDevice::check(const ir::Plan& plan) const {
  const int ranks = options_.among();
  LANCET_TRY(check_transfers(plan.program));
  std::string group;  // of the all-to-alls
  double total = 0, count = 0, least_bytes = std::numeric_limits<double>::infinity();
  for (const ir::Instruction& at : plan.program.instructions) {
    if (ops::kind(at) != ops::Kind::all_to_all || ranks == 1) continue;
    const double all = double(options_.loads->model().experts), of_rank = all / ranks;  // experts; of the mean rank
    const std::int64_t reached = cost::reached(at);
    if (reached == 0) continue;  // it stays on the rank
    const double others = reached > 0 ? of_rank * double(reached) : all - of_rank;
    least_bytes = std::min(least_bytes, cost::bytes_sent(plan.program, at) / others);
    total += costs_.all_to_all(plan.program, at).ms * ns_per_ms;
    group = group_key(at);
    ++count;
  }
  if (count == 0) return {};
  if (least_bytes < least_message * options_.scale)
    return config_error(
        fmt::format("emulated.scale: expected at most {:.0f}, so that a message for an expert has {} bytes, found {}",
                    std::floor(least_bytes / least_message), least_message, options_.scale));
  const ir::Axes axes = ir::parse_axes(group).value_or(ir::Axes());
  return check_dilation(fmt::format("an all-to-all of {} ranks", ranks), costs_.all_to_all_ms(1, axes) * ns_per_ms,
                        overhead_ns(group, others_in(group)), total / count);
}

// Messages between stages, of which the receiver knows the bytes, too.
Status EmulatedDevice::check_transfers(const ir::Program& program) const {
  double latency = 0, overhead = 0, total = 0, count = 0;
  for (const ir::Instruction& at : program.instructions) {
    if (!ir::between_stages(at.stream)) continue;
    latency = costs_.latency_ms(at) * ns_per_ms;
    overhead = overhead_ns(group_key(at), 1);
    total += costs_.transfer(program, at).ms * ns_per_ms;
    ++count;
  }
  if (count == 0) return {};
  return check_dilation("a message between stages", latency, overhead, total / count);
}

// What a message takes here besides its bytes, beyond its declared latency, relative to its whole time: all in
// nanoseconds, the overhead in those of the host.
Status EmulatedDevice::check_dilation(const std::string& what, double declared, double overhead, double mean) const {
  const double late = most_late_pct / 100;
  const auto dilation = [&](double share) { return std::ceil(overhead / (declared + share * mean)); };
  const std::string found =
      fmt::format("{} takes {:.2f} ms on this machine even without bytes, its mean declared time is {:.2f} ms", what,
                  overhead / ns_per_ms, mean / ns_per_ms);
  if (options_.dilation < dilation(most_overhead))
    return config_error(fmt::format("emulated.dilation: expected at least {:.0f} ({}), found {}", dilation(late), found,
                                    options_.dilation));
  if (options_.rank == 0 && options_.dilation < dilation(late))
    log::warn("emulated.dilation: {:.0f} would do better than {}: {}", dilation(late), options_.dilation, found);
  return {};
}

}  // namespace lancet::runtime
