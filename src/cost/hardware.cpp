// The formulas are in hardware.h. HardwareCosts applies Routing: expert ops are as slow as those of the rank with the
// fullest experts, and all-to-alls send only the tokens that are kept but wait for the rank that receives most. Units:
// rates are converted to units per millisecond.
#include "lancet/cost/hardware.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "lancet/base/check.h"
#include "lancet/base/hash.h"
#include "lancet/comm/mpi.h"
#include "lancet/ir/groups.h"
#include "lancet/ops/catalogue.h"
#include "lancet/ops/peer_parts.h"

namespace lancet::cost {
namespace {

// The part of an all-reduce's vector whose messages are under way: of two rounds, three of the four times that their
// bytes move.
double bytes_under_way(int ranks) {
  return 1.5 * ranks * double(comm::floats_of_rank(std::size_t(ranks)) * sizeof(float));
}

constexpr double us = 1e-3;  // in milliseconds

// The efficiency at n: linear between the points, constant beyond the last, and proportional to n below the first, as
// the number of tiles that are in flight falls faster than the depth of each.
double share_at(const std::vector<Efficiency>& points, double n) {
  if (n <= points.front().n) return points.front().share * std::max(n, 1.0) / points.front().n;
  for (std::size_t i = 1; i < points.size(); ++i)
    if (n <= points[i].n) {
      const Efficiency &a = points[i - 1], &b = points[i];
      return a.share + (b.share - a.share) * (n - a.n) / (b.n - a.n);
    }
  return points.back().share;
}

// The time of an op's arithmetic, without memory accesses.
double arithmetic_ms(const Hardware::Device& device, const ir::Program& program, const ir::Instruction& at,
                     double flops) {
  const bool bf16 = !at.operands.empty() && program.type(at.operands[0]).dtype == DType::bf16;
  const double peak = (bf16 ? device.bf16_tflops : device.fp32_tflops) * 1e9;  // flops a millisecond
  const ops::Kind kind = ops::kind(at);
  if (kind == ops::Kind::attention) return flops / (peak * device.attention_efficiency);
  if (kind != ops::Kind::product) return flops / (device.vector_tflops * 1e9);
  // Expert ops are one product per expert.
  const double each = flops / (ops::is_over_expert_rows(at) ? double(program.type(at.operands[0]).shape[0]) : 1);
  return flops / (peak * share_at(bf16 ? device.bf16_efficiency : device.fp32_efficiency, std::cbrt(each / 2)));
}

// The instruction with its tokens multiplied by a factor.
ir::Instruction with_tokens(ir::Instruction at, double factor) {
  if (factor != 1 && ops::is_over_expert_rows(at))
    at.attributes.set("tokens", std::int64_t(std::llround(factor * double(at.attributes.integer("tokens")))));
  return at;
}

// The share at a size among the entries of one number of places.
double share_of_size(std::span<const LinkShare> entries, double mb) {
  if (mb <= entries.front().mb) return entries.front().share;
  for (std::size_t i = 1; i < entries.size(); ++i)
    if (mb <= entries[i].mb)
      return std::lerp(entries[i - 1].share, entries[i].share,
                       std::log(mb / entries[i - 1].mb) / std::log(entries[i].mb / entries[i - 1].mb));
  return entries.back().share;
}

double link_bytes_per_ms(const Hardware& h, const LinkShares& shares, double devices, double bytes) {
  return h.node.link_gb_per_s * share_at(shares, devices, bytes) * 1e6;
}
double nic_bytes_per_ms(const Hardware& h, const LinkShares& shares, double nodes, double bytes) {
  return h.network.nics * h.network.nic_gbit_per_s / 8 * share_at(shares, nodes, bytes) * 1e6;
}

}  // namespace

double share_at(const LinkShares& shares, double places, double bytes) {
  const double mb = bytes * 1e-6;
  double before_places = 0, before_share = 0;
  for (std::size_t first = 0, end = 0; first < shares.size(); first = end) {
    const double here = shares[first].places;
    for (end = first; end < shares.size() && shares[end].places == here;) ++end;
    const double share = share_of_size(std::span(shares).subspan(first, end - first), mb);
    if (places <= here)
      return first == 0
                 ? share
                 : std::lerp(before_share, share, std::log(places / before_places) / std::log(here / before_places));
    before_places = here, before_share = share;
  }
  return before_share;
}

int Hardware::nodes(int ranks) const { return int(std::ceil(ranks / node.devices)); }

Hardware Hardware::part_of_node(int devices, int hosts) const {
  Hardware part = *this;
  const auto of_large = [](const LinkShares& shares, int places) {
    return LinkShares{{1, 1, share_at(shares, places, std::numeric_limits<double>::max())}};
  };
  part.node.all_to_all_efficiency = part.node.all_reduce_efficiency = of_large(node.all_to_all_efficiency, devices);
  part.network.all_to_all_efficiency = part.network.all_reduce_efficiency =
      of_large(network.all_to_all_efficiency, hosts);
  part.network.nics *= devices / node.devices;
  part.node.devices = devices;
  part.network.over_mpi = true;
  return part;
}

std::int64_t Hardware::free_bytes() const {
  return std::int64_t((device.memory_gib - device.reserved_gib) * double(1 << 30));
}

double op_ms(const Hardware& hardware, const ir::Program& program, const ir::Instruction& instruction) {
  const ops::Work work = ops::work(program, instruction);
  const Hardware::Device& device = hardware.device;
  const double memory = work.bytes / (device.memory_gb_per_s * device.memory_efficiency * 1e6);
  return work.launches * device.launch_us * us +
         std::max(memory, arithmetic_ms(device, program, instruction, work.flops));
}

double Routing::fullest() const {
  if (loads) return loads->mean().first.fullest;
  return std::min(imbalance, capacity) / std::min(capacity, 1.0);
}

// The integral of min(x u^(x-1), c) over the experts, relative to that of even routing.
double Routing::kept() const {
  if (loads) return loads->mean().first.kept;
  const double x = imbalance, c = capacity;
  if (x <= c || x == 1) return 1;
  const double cut = std::pow(c / x, 1 / (x - 1));
  return (std::pow(cut, x) + c * (1 - cut)) / std::min(c, 1.0);
}

double all_to_all_ms(const Hardware& hardware, const Layout& layout, double bytes, const Spread& spread) {
  if (layout.ranks == 1 || bytes <= 0) return 0;
  const double others = layout.ranks - 1, local = layout.on_host() - 1, away = others - local;
  double within = spread.fullest * bytes * local / others, between = bytes * away / others;
  if (spread.within_host) within = *spread.within_host ? spread.fullest * bytes : 0, between = bytes;
  const auto links_ms = [&](double sent) {
    return sent / link_bytes_per_ms(hardware, hardware.node.all_to_all_efficiency, local + 1, sent);
  };
  if (layout.hosts == 1 || spread.within_host.value_or(false)) return hardware.node.latency_us * us + links_ms(within);
  const Hardware::Network& network = hardware.network;
  const double nics = nic_bytes_per_ms(hardware, network.all_to_all_efficiency, layout.hosts, between);
  const double nic_ms =
      (local > 0 ? spread.fullest_host : spread.fullest) * between * layout.on_host() * layout.beside / nics;
  const double messages = std::max(away * spread.share, 1.0), nodes = std::max((layout.hosts - 1) * spread.share, 1.0);
  const double direct =
      network.latency_us * us + std::max({links_ms(within), nic_ms, (messages - 1) * network.message_us * us});
  // Bytes for other nodes pass a link first, except for the share that is on the right device already.
  const double gathered = within + between * local / (local + 1);
  const double two_steps = (network.latency_us + hardware.node.latency_us) * us + links_ms(gathered) +
                           std::max(nic_ms, (nodes - 1) * network.message_us * us);
  return local > 0 && !network.over_mpi ? std::min(direct, two_steps) : direct;
}

double permute_ms(const Hardware& hardware, const Layout& layout, double bytes, std::int64_t shift) {
  if (layout.ranks == 1 || bytes <= 0) return 0;
  const double local = layout.on_host();
  const double crossing = layout.hosts > 1 ? std::min(double(shift), local) : 0;  // ranks that send to another node
  const double links =
      crossing < local ? bytes / link_bytes_per_ms(hardware, hardware.node.all_to_all_efficiency, local, bytes) : 0;
  if (layout.hosts == 1) return hardware.node.latency_us * us + links;
  const double nics = crossing * layout.beside * bytes /
                      nic_bytes_per_ms(hardware, hardware.network.all_to_all_efficiency, layout.hosts, bytes);
  return hardware.network.latency_us * us + std::max(links, nics);
}

double all_reduce_ms(const Hardware& hardware, const Layout& layout, double bytes) {
  if (layout.ranks == 1 || bytes <= 0) return 0;
  const double local = layout.on_host(), hosts = layout.hosts;
  const double within =
      2 * bytes * (local - 1) / local / link_bytes_per_ms(hardware, hardware.node.all_reduce_efficiency, local, bytes);
  if (layout.hosts == 1) return hardware.node.latency_us * us + within;
  const double vectors = (hardware.network.over_mpi ? local : 1) * layout.beside;  // of each node
  const double between = 2 * vectors * bytes * (hosts - 1) / hosts /
                         nic_bytes_per_ms(hardware, hardware.network.all_reduce_efficiency, hosts, bytes);
  const double latency =
      (local > 1 ? hardware.node.latency_us : 0) + 2 * std::ceil(std::log2(hosts)) * hardware.network.hop_us;
  return latency * us + std::max(within, between);
}

HardwareCosts::HardwareCosts(Hardware hardware, Layout layout, std::optional<Profile> measured, Routing routing)
    : hardware_(std::move(hardware)), layout_(layout), measured_(std::move(measured)), routing_(routing) {
  const bool fills_nodes = layout_.hosts > 1 && layout_.hosts == hardware_.nodes(layout_.ranks);
  if (fills_nodes && std::fmod(layout_.ranks, hardware_.node.devices) != 0) layout_.even = false;  // the last has fewer
}

std::int64_t HardwareCosts::ranks_on_host(ir::Axes group) const {
  return network_measured(group) ? measured_->ranks_on_host(group) : layout_.ranks_sharing_host(group);
}

std::optional<std::string> HardwareCosts::unknown_messages(const ir::Instruction& instruction) const {
  if (!network_measured(ir::group_of(instruction))) return {};
  return measured_->unknown_messages(instruction);
}

std::optional<double> HardwareCosts::compute_ms(std::string_view op_key) const {
  return measured_ ? measured_->compute_ms(op_key) : std::nullopt;
}

std::optional<double> HardwareCosts::op_ms(const ir::Program& program, const ir::Instruction& instruction) const {
  if (measured_)
    if (const auto ms = measured_->compute_ms(op_key(program, instruction)))
      return routing_.loads ? measured_->under(routing_.loads)->op_ms(program, instruction) : ms;
  if (!ops::is_of_experts(instruction)) return cost::op_ms(hardware_, program, instruction);
  const RoundLoad load = load_of(instruction);
  const double rows = routing_.host && !load.hosts.empty() ? load.hosts[*routing_.host] : load.fullest;
  return cost::op_ms(hardware_, program, with_tokens(instruction, rows));
}

RoundLoad HardwareCosts::load_of(const ir::Instruction& at) const {
  if (routing_.padded) {
    const double whole = std::max(routing_.capacity, 1.0);
    return {whole, whole, {}, whole};
  }
  if (!routing_.loads) return {routing_.fullest(), routing_.kept(), {}, routing_.kept()};
  const RankLoad& load = routing_.loads->of(at);
  return at.repeated > 0 ? load.further : load.first;
}

double HardwareCosts::rounds(const ir::Instruction& repeat) const {
  return routing_.loads ? routing_.loads->of(repeat).rounds : 0;
}

double HardwareCosts::least_share(const ir::Instruction& at) const {
  return routing_.loads ? routing_.loads->of(at).first.least / routing_.loads->of(at).first.fullest : 1;
}

OpCost HardwareCosts::all_to_all(const ir::Program& program, const ir::Instruction& instruction) const {
  if (network_measured(ir::group_of(instruction)))
    return routing_.loads ? measured_->under(routing_.loads)->all_to_all(program, instruction)
                          : measured_->all_to_all(program, instruction);
  double bytes = bytes_sent(program, instruction);
  Spread spread;
  if (ops::kind(instruction) != ops::Kind::counts && ops::kind(instruction) != ops::Kind::collective) {
    const RoundLoad load = load_of(instruction);
    bytes = routing_.padded ? bytes_sent(program, with_tokens(instruction, load.kept)) : bytes * load.kept;
    if (load.kept > 0) spread = {load.fullest / load.kept, load.fullest_host / load.kept};
  }
  const double ms = sent_ms(instruction, bytes, spread);
  return {ms, std::min(ms, all_to_all_core().ms(bytes))};
}

double HardwareCosts::message_ms(double bytes, const ir::Instruction& instruction) const {
  if (network_measured(ir::group_of(instruction))) return measured_->message_ms(bytes, instruction);
  return sent_ms(instruction, bytes);
}

double HardwareCosts::sent_ms(const ir::Instruction& instruction, double bytes, Spread spread) const {
  const Layout layout = layout_of(instruction);
  if (ops::is_ring_step(instruction))
    return permute_ms(hardware_, layout, bytes, instruction.attributes.integer(ops::ring_shift));
  const std::int64_t peers = reached(instruction);
  const bool tells_near = peers > 0 && instruction.attributes.has("near");
  if (tells_near && layout.hosts > 1 && layout_.ranks_sharing_host(ir::group_of(instruction)) > 1)
    spread.within_host = instruction.attributes.integer("near", 0) != 0;
  if (peers > 0)
    spread.share = double(peers) / (spread.within_host ? layout.ranks - layout.on_host() : layout.ranks - 1);
  return cost::all_to_all_ms(hardware_, layout, bytes, spread);
}

// The ranks that send to certain other stages at once, and share a host's NICs, are those of one stage on a host.
Layout HardwareCosts::layout_of(const ir::Instruction& instruction) const {
  const int stages = layout_.mesh[ir::Axis::stage];
  if (stages == 1) return layout_.group(ir::group_of(instruction));
  const int of_stage = layout_.ranks / stages, rank = stage_ * of_stage;
  const bool crosses = ir::between_stages(instruction.stream);
  const std::vector<int> ranks = crosses ? std::vector{rank, *ir::neighbour(layout_.mesh, rank, instruction.stream)}
                                         : ir::ranks_of(ir::key_of(instruction), layout_.mesh, rank);
  Layout layout = layout_.group(ranks);
  if (crosses || instruction.attributes.has(ir::stages_attribute)) layout.beside = std::min(layout.beside, of_stage);
  return layout;
}

double HardwareCosts::transfer_ms(double bytes, const ir::Instruction& instruction) const {
  return cost::all_to_all_ms(hardware_, layout_of(instruction), bytes);
}

OpCost HardwareCosts::transfer(const ir::Program& program, const ir::Instruction& instruction) const {
  if (network_measured({ir::Axis::stage})) return measured_->transfer(program, instruction);
  const double bytes = ops::work(program, instruction).bytes, ms = transfer_ms(bytes, instruction);
  return {ms, std::min(ms, all_to_all_core().ms(bytes))};
}

double HardwareCosts::reduce_ms(double bytes, const ir::Instruction& instruction) const {
  if (network_measured(ir::group_of(instruction))) return measured_->reduce_ms(bytes, instruction);
  return cost::all_reduce_ms(hardware_, layout_of(instruction), bytes);
}

double HardwareCosts::latency_ms(const ir::Instruction& instruction) const {
  if (ir::between_stages(instruction.stream)) return transfer_ms(1, instruction);
  return sent_ms(instruction, 1);
}

double HardwareCosts::all_to_all_ms(double bytes, ir::Axes group) const {
  if (network_measured(group)) return measured_->all_to_all_ms(bytes, group);
  return cost::all_to_all_ms(hardware_, layout_.group(group), bytes);
}
double HardwareCosts::all_reduce_ms(double bytes, ir::Axes group) const {
  if (network_measured(group)) return measured_->all_reduce_ms(bytes, group);
  return cost::all_reduce_ms(hardware_, layout_.group(group), bytes);
}

// Computation loses the share of the device that moves the bytes for the whole time of the message.
CoreCost HardwareCosts::core(double latency_ms, double ms_per_mb) const {
  const Hardware::Overlap& overlap = hardware_.overlap;
  return {overlap.core_share * latency_ms, overlap.core_share * ms_per_mb + overlap.core_ms_per_mb};
}
CoreCost HardwareCosts::all_to_all_core() const {
  if (network_measured()) return measured_->all_to_all_core();
  const double small = all_to_all_ms(1);
  return core(small, (all_to_all_ms(1e9) - small) * 1e-3);
}
CoreCost HardwareCosts::all_reduce_core() const {
  if (network_measured()) return measured_->all_reduce_core();
  const double small = all_reduce_ms(1);
  return core(small, (all_reduce_ms(1e9) - small) * 1e-3);
}

double HardwareCosts::launch_ms() const {
  return network_measured() ? measured_->launch_ms() : hardware_.overlap.signal_us * us;
}
Interference HardwareCosts::interference() const {
  if (network_measured()) return measured_->interference();
  Interference result{hardware_.overlap.network_beside_compute, hardware_.overlap.network_beside_network};
  if (hardware_.network.over_mpi)
    result.queue_ms = cost::all_reduce_ms(hardware_, layout_, bytes_under_way(layout_.ranks)) -
                      cost::all_reduce_ms(hardware_, layout_, std::numeric_limits<double>::min());
  return result;
}

HardwareCosts HardwareCosts::of_loads(std::shared_ptr<const Loads> loads) const {
  Routing routing = routing_;
  routing.loads = std::move(loads);
  return HardwareCosts(hardware_, layout_, measured_, routing).at_stage(stage_);
}

HardwareCosts HardwareCosts::at_stage(int stage) const {
  HardwareCosts costs = *this;
  costs.stage_ = stage;
  return costs;
}

std::shared_ptr<const Costs> HardwareCosts::of_stage(int stage) const {
  return std::make_shared<HardwareCosts>(at_stage(stage));
}

std::unique_ptr<const Costs> HardwareCosts::under(std::shared_ptr<const Loads> loads) const {
  return std::make_unique<HardwareCosts>(of_loads(std::move(loads)));
}

std::string HardwareCosts::identity() const {
  std::string all = fmt::format("{} {} {} {}", hardware_.identity, layout_.ranks, layout_.hosts,
                                measured_ ? measured_->identity() : "");
  if (hardware_.network.over_mpi) all += " over mpi";
  if (layout_.mesh.wide().count() > 1) all += " " + ir::to_string(layout_.mesh);
  if (routing_.loads) all += " " + routing_.loads->identity();
  if (routing_.host) all += fmt::format(" host {}", *routing_.host);
  if (routing_.imbalance != 1 || routing_.padded)
    all += fmt::format(" {} {} {}", routing_.imbalance, routing_.capacity, routing_.padded);
  return hex(hash64(all));
}

std::string HardwareCosts::describe() const {
  std::string text = fmt::format("{}, declared: {} rank{} on {} node{}", hardware_.name, layout_.ranks,
                                 layout_.ranks == 1 ? "" : "s", layout_.hosts, layout_.hosts == 1 ? "" : "s");
  if (measured_)
    text += fmt::format("; measured {} of {} take precedence", network_measured() ? "ops and communication" : "ops",
                        to_string(measured_->machine));
  return text;
}

namespace {

double slower(double a, double b) { return std::max(a, b); }
std::optional<double> slower(const std::optional<double>& a, const std::optional<double>& b) { return std::max(a, b); }
CoreCost slower(const CoreCost& a, const CoreCost& b) {
  return {std::max(a.per_message_ms, b.per_message_ms), std::max(a.per_mb_ms, b.per_mb_ms)};
}
OpCost slower(const OpCost& a, const OpCost& b) { return {std::max(a.ms, b.ms), std::max(a.core_ms, b.core_ms)}; }
Interference slower(const Interference& a, const Interference& b) {
  return {std::min(a.network_beside_compute, b.network_beside_compute),
          std::min(a.network_beside_network, b.network_beside_network), std::max(a.queue_ms, b.queue_ms)};
}

template <class Cost>
auto slowest_of(const std::vector<HardwareCosts>& machines, const Cost& cost) {
  auto slowest = cost(machines.front());
  for (const HardwareCosts& machine : machines) slowest = slower(slowest, cost(machine));
  return slowest;
}

}  // namespace

std::optional<double> SlowestCosts::compute_ms(std::string_view op_key) const {
  return slowest_of(machines_, [&](const HardwareCosts& m) { return m.compute_ms(op_key); });
}
std::optional<double> SlowestCosts::op_ms(const ir::Program& program, const ir::Instruction& instruction) const {
  return slowest_of(machines_, [&](const HardwareCosts& m) { return m.op_ms(program, instruction); });
}
double SlowestCosts::all_to_all_ms(double bytes, ir::Axes group) const {
  return slowest_of(machines_, [&](const HardwareCosts& m) { return m.all_to_all_ms(bytes, group); });
}
double SlowestCosts::all_reduce_ms(double bytes, ir::Axes group) const {
  return slowest_of(machines_, [&](const HardwareCosts& m) { return m.all_reduce_ms(bytes, group); });
}
double SlowestCosts::message_ms(double bytes, const ir::Instruction& instruction) const {
  return slowest_of(machines_, [&](const HardwareCosts& m) { return m.message_ms(bytes, instruction); });
}
OpCost SlowestCosts::all_to_all(const ir::Program& program, const ir::Instruction& instruction) const {
  return slowest_of(machines_, [&](const HardwareCosts& m) { return m.all_to_all(program, instruction); });
}
OpCost SlowestCosts::transfer(const ir::Program& program, const ir::Instruction& instruction) const {
  return slowest_of(machines_, [&](const HardwareCosts& m) { return m.transfer(program, instruction); });
}
double SlowestCosts::reduce_ms(double bytes, const ir::Instruction& instruction) const {
  return slowest_of(machines_, [&](const HardwareCosts& m) { return m.reduce_ms(bytes, instruction); });
}
CoreCost SlowestCosts::all_to_all_core() const {
  return slowest_of(machines_, [](const HardwareCosts& m) { return m.all_to_all_core(); });
}
CoreCost SlowestCosts::all_reduce_core() const {
  return slowest_of(machines_, [](const HardwareCosts& m) { return m.all_reduce_core(); });
}
double SlowestCosts::launch_ms() const {
  return slowest_of(machines_, [](const HardwareCosts& m) { return m.launch_ms(); });
}
Interference SlowestCosts::interference() const {
  return slowest_of(machines_, [](const HardwareCosts& m) { return m.interference(); });
}

std::optional<std::int64_t> SlowestCosts::free_bytes() const {
  std::int64_t least = machines_.front().hardware().free_bytes();
  for (const HardwareCosts& machine : machines_) least = std::min(least, machine.hardware().free_bytes());
  return least;
}

std::unique_ptr<const Costs> SlowestCosts::under(std::shared_ptr<const Loads> loads) const {
  std::vector<HardwareCosts> machines;
  for (const HardwareCosts& machine : machines_) machines.push_back(machine.of_loads(loads));
  return std::make_unique<SlowestCosts>(std::move(machines));
}

std::shared_ptr<const Costs> SlowestCosts::of_stage(int stage) const {
  const auto [first, last] = machines_.front().layout().hosts_of_stage(stage);
  std::vector<HardwareCosts> machines;
  for (std::size_t host = 0; host < machines_.size(); ++host)
    if (machines_.size() == 1 || (int(host) >= first && int(host) <= last))
      machines.push_back(machines_[host].at_stage(stage));
  return std::make_shared<SlowestCosts>(std::move(machines));
}

std::string SlowestCosts::identity() const {
  if (machines_.size() == 1) return machines_.front().identity();
  std::string all;
  for (const HardwareCosts& machine : machines_) all += machine.identity();
  return hex(hash64(all));
}

}  // namespace lancet::cost
