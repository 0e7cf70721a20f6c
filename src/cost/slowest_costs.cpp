#include "lancet/cost/slowest_costs.h"

#include <algorithm>

#include "lancet/base/hash.h"

namespace lancet::cost {
namespace {

template <class Cost>
auto slowest_of(const std::vector<HardwareCosts>& machines, const Cost& cost) {
  auto slowest = cost(machines.front());
  for (const HardwareCosts& machine : machines) slowest = std::max(slowest, cost(machine));
  return slowest;
}

CoreCost slower(const CoreCost& a, const CoreCost& b) {
  return {std::max(a.per_message_ms, b.per_message_ms), std::max(a.per_mb_ms, b.per_mb_ms)};
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

namespace {

template <class Cost>
OpCost slowest_message(const std::vector<HardwareCosts>& machines, const Cost& cost) {
  OpCost slowest;
  for (const HardwareCosts& machine : machines) {
    const OpCost of_machine = cost(machine);
    slowest.ms = std::max(slowest.ms, of_machine.ms);
    slowest.core_ms = std::max(slowest.core_ms, of_machine.core_ms);
  }
  return slowest;
}

}  // namespace

OpCost SlowestCosts::all_to_all(const ir::Program& program, const ir::Instruction& instruction) const {
  return slowest_message(machines_, [&](const HardwareCosts& m) { return m.all_to_all(program, instruction); });
}

OpCost SlowestCosts::transfer(const ir::Program& program, const ir::Instruction& instruction) const {
  return slowest_message(machines_, [&](const HardwareCosts& m) { return m.transfer(program, instruction); });
}

double SlowestCosts::reduce_ms(double bytes, const ir::Instruction& instruction) const {
  return slowest_of(machines_, [&](const HardwareCosts& m) { return m.reduce_ms(bytes, instruction); });
}

CoreCost SlowestCosts::all_to_all_core() const {
  CoreCost slowest;
  for (const HardwareCosts& machine : machines_) slowest = slower(slowest, machine.all_to_all_core());
  return slowest;
}

CoreCost SlowestCosts::all_reduce_core() const {
  CoreCost slowest;
  for (const HardwareCosts& machine : machines_) slowest = slower(slowest, machine.all_reduce_core());
  return slowest;
}

double SlowestCosts::launch_ms() const {
  return slowest_of(machines_, [](const HardwareCosts& m) { return m.launch_ms(); });
}

Interference SlowestCosts::interference() const {
  Interference slowest = machines_.front().interference();
  for (const HardwareCosts& machine : machines_) {
    const Interference one = machine.interference();
    slowest.network_beside_compute = std::min(slowest.network_beside_compute, one.network_beside_compute);
    slowest.network_beside_network = std::min(slowest.network_beside_network, one.network_beside_network);
    slowest.queue_ms = std::max(slowest.queue_ms, one.queue_ms);
  }
  return slowest;
}

std::optional<std::int64_t> SlowestCosts::free_bytes() const {
  std::int64_t least = machines_.front().hardware().free_bytes();
  for (const HardwareCosts& machine : machines_) least = std::min(least, machine.hardware().free_bytes());
  return least;
}

std::unique_ptr<const Costs> SlowestCosts::under(const RankLoad& load) const {
  std::vector<HardwareCosts> machines;
  for (const HardwareCosts& machine : machines_) machines.push_back(machine.of_load(load));
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
