#include "lancet/cost/costs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <algorithm>
#include <map>
#include <set>

#include "lancet/base/check.h"
#include "lancet/base/hash.h"
#include "lancet/ir/groups.h"
#include "lancet/ir/micro_batches.h"
#include "lancet/ops/catalogue.h"
#include "lancet/ops/peer_parts.h"

namespace lancet::cost {
namespace {

bool is_view(const ir::Program& program, const ir::Instruction& instruction) {
  const ops::Work work = ops::work(program, instruction);
  return work.flops == 0 && work.bytes == 0;
}

// Of the rows that an all-to-all moves, whether they leave the rank or not.
double bytes_of_rows(const ir::Program& program, const ir::Instruction& all_to_all) {
  const ir::TensorType& first = program.type(all_to_all.operands[0]);
  const std::int64_t slots = first.shape[0] * first.shape[1];
  const std::int64_t rows = std::min(slots, all_to_all.attributes.integer("tokens", slots));
  return double(rows * first.shape[2] * size_of(first.dtype));
}

}  // namespace

// Numbers of a formula (eps, coefficient, weight_decay) are reals and have no influence on time, nor have the seeds by
// which updates round and routers draw. Attributes that decide sizes, layouts and loop counts are integers or words.
std::string op_key(const ir::Program& program, const ir::Instruction& instruction) {
  std::vector<std::string> types, attributes;
  for (ir::TensorId id : instruction.operands) types.push_back(ir::to_string(program.type(id)));
  for (const auto& [name, value] : instruction.attributes.items()) {
    const auto& skipped = ops::part_attributes;  // parts cost the same; types hold their size
    if (name == "rounding_seed" || name == "seed" || std::find(skipped.begin(), skipped.end(), name) != skipped.end())
      continue;
    if (const auto* integer = std::get_if<std::int64_t>(&value))
      attributes.push_back(fmt::format("{}={}", name, *integer));
    if (const auto* text = std::get_if<std::string>(&value)) attributes.push_back(fmt::format("{}={}", name, *text));
  }
  std::sort(attributes.begin(), attributes.end());
  const std::string call = fmt::format("{}({})", instruction.op, fmt::join(types, ", "));
  return attributes.empty() ? call : fmt::format("{} {{{}}}", call, fmt::join(attributes, ", "));
}

std::int64_t all_to_all_ranks(const ir::Program& program, const ir::Instruction& instruction) {
  if (instruction.attributes.has("ranks")) return instruction.attributes.integer("ranks");
  if (ops::kind(instruction) == ops::Kind::collective) return instruction.attributes.integer("shards");
  // rows i32[E/W, W+1], an operand of the all-to-alls
  LANCET_CHECK(instruction.operands.size() > 2, "{} has no tensor of rows", instruction.op);
  return program.type(instruction.operands[2]).shape[1] - 1;
}

bool is_local(const ir::Program& program, const ir::Instruction& instruction) {
  if (ir::between_stages(instruction.stream)) return false;
  if (is_view(program, instruction)) return false;
  if (instruction.stream == ir::Stream::compute) return true;
  return instruction.stream == ir::Stream::expert && all_to_all_ranks(program, instruction) == 1;
}

double bytes_sent(const ir::Program& program, const ir::Instruction& instruction) {
  if (instruction.stream == ir::Stream::compute || is_view(program, instruction)) return 0;
  if (instruction.stream == ir::Stream::reduce) {
    // A reduce-scatter sends the elements of all ranks' shards, of which its results are one rank's.
    const bool shards = ops::kind(instruction) == ops::Kind::flat_reduce_scatter;
    double bytes = 0;
    for (ir::TensorId id : shards ? instruction.results : instruction.operands)
      bytes += double(ir::bytes(program.type(id)));
    if (shards) bytes *= double(instruction.attributes.integer("shards"));
    return instruction.attributes.has("message") ? bytes / 2 : bytes;  // bf16 for f32
  }
  if (ir::between_stages(instruction.stream) || ops::kind(instruction) == ops::Kind::collective)
    return ops::work(program, instruction).sent;
  const ir::TensorType& first = program.type(instruction.operands[0]);
  const auto ranks = double(all_to_all_ranks(program, instruction));
  double others = (ranks - 1) / ranks;  // the share of the buffer that goes to other ranks
  if (const std::int64_t peers = reached(instruction); peers >= 0)
    others = peers > 0 ? double(peers) / double(peers + instruction.attributes.integer("own", 0)) : 0;
  if (ops::kind(instruction) == ops::Kind::counts) return 4 * double(first.shape[0]) * others;
  return bytes_of_rows(program, instruction) * others;
}

std::int64_t reached(const ir::Instruction& instruction) { return instruction.attributes.integer("peers", -1); }

OpCost own_rows_cost(const Costs& costs, const ir::Program& program, const ir::Instruction& instruction) {
  const double ms = costs.all_to_all_core().ms(bytes_of_rows(program, instruction));
  return {ms, ms};
}

Reach reach_of(const ir::Instruction& instruction) {
  if (ops::is_ring_step(instruction) && instruction.attributes.integer("shards") > 2)
    return {.shift = instruction.attributes.integer(ops::ring_shift)};
  return {.on_host = reached(instruction) > 0 && instruction.attributes.integer("near", 0) != 0};
}

std::string to_string(const Reach& reach) {
  if (reach.shift > 0) return fmt::format("neighbour {}", reach.shift);
  return reach.on_host ? "on_host" : "all_to_all";
}

std::optional<std::string> Costs::unknown_messages(const ir::Instruction& instruction) const {
  const ir::Axes group = ir::group_of(instruction);
  if (knows(group)) return {};
  return group.empty() ? "collectives over all ranks" : "collectives over the mesh's axes " + ir::to_string(group);
}

double Costs::message_ms(double bytes, const ir::Instruction& instruction) const {
  return all_to_all_ms(bytes, ir::group_of(instruction));
}

OpCost Costs::all_to_all(const ir::Program& program, const ir::Instruction& instruction) const {
  const double bytes = bytes_sent(program, instruction), ms = message_ms(bytes, instruction);
  return {ms, std::min(ms, all_to_all_core().ms(bytes))};
}

OpCost Costs::transfer(const ir::Program& program, const ir::Instruction& instruction) const {
  const double bytes = ops::work(program, instruction).bytes;
  const ir::Axes stages{ir::Axis::stage};
  const double ms = all_to_all_ms(bytes, knows(stages) ? stages : ir::Axes());
  return {ms, std::min(ms, all_to_all_core().ms(bytes))};
}

double Costs::reduce_ms(double bytes, const ir::Instruction& instruction) const {
  return all_reduce_ms(bytes, ir::group_of(instruction));
}

std::shared_ptr<const Costs> Costs::of_stage(int) const { return {std::shared_ptr<void>(), this}; }

double share_of_all_reduce(const ir::Instruction& instruction) {
  const ops::Kind kind = ops::kind(instruction);
  return kind == ops::Kind::flat_reduce_scatter || kind == ops::Kind::flat_all_gather ? 0.5 : 1;
}

OpCost reduce_cost(const Costs& costs, const ir::Program& program, const ir::Instruction& instruction) {
  const double bytes = bytes_sent(program, instruction), share = share_of_all_reduce(instruction);
  const double ms = share * costs.reduce_ms(bytes, instruction);
  return {ms, std::min(ms, share * costs.all_reduce_core().ms(bytes))};
}

Result<OpCost> op_cost(const Costs& costs, const ir::Program& program, const ir::Instruction& at) {
  if (ir::is_repeat(at)) {
    const double rounds = costs.rounds(at);
    OpCost all;
    for (ir::Instruction part : at.body) {
      if (rounds == 0) break;
      part.repeated = 1;
      LANCET_ASSIGN(const OpCost cost, op_cost(costs, program, part));
      all.ms += rounds * cost.ms;
      all.core_ms += rounds * (part.stream == ir::Stream::compute ? cost.ms : cost.core_ms);
    }
    return all;
  }
  if (ir::between_stages(at.stream)) return costs.transfer(program, at);
  if (is_local(program, at)) {
    const bool copies = at.stream != ir::Stream::compute;
    auto ms = costs.op_ms(program, at);
    if (!ms && copies) ms = costs.all_to_all_ms(0);
    if (!ms) return config_error(op_key(program, at));
    return OpCost{*ms, copies ? *ms : 0};
  }
  if (at.stream == ir::Stream::compute || is_view(program, at)) return OpCost();
  if (auto unknown = costs.unknown_messages(at)) return config_error(*std::move(unknown));
  if (at.stream != ir::Stream::expert) return reduce_cost(costs, program, at);
  return reached(at) == 0 ? own_rows_cost(costs, program, at) : costs.all_to_all(program, at);
}

Result<std::vector<OpCost>> op_costs(const Costs& costs, const ir::Program& program) {
  std::vector<OpCost> op_costs;
  std::string first;
  std::set<std::string> missing;
  std::map<std::pair<std::int32_t, std::int64_t>, double> of_experts;  // by layer and part, since its last all-to-all
  for (const ir::Instruction& instruction : program.instructions) {
    const auto cost = op_cost(costs, program, instruction);
    op_costs.push_back(cost.ok() ? *cost : OpCost());
    const bool travels = ops::kind(instruction) == ops::Kind::all_to_all;
    if (travels || ops::is_of_experts(instruction)) {
      double& computed =
          of_experts[{ir::block_of(instruction.label).value_or(-1), instruction.attributes.integer("part", 0)}];
      const double least = costs.least_share(instruction);
      // In parts, one follows the other on the links, early or not. Groups of peers get theirs from all ranks.
      const bool is_whole = !instruction.attributes.has("parts") || reached(instruction) >= 0;
      if (travels && is_whole) op_costs.back().early_ms = std::min((1 - least) * computed, least * op_costs.back().ms);
      computed = travels ? 0 : computed + op_costs.back().ms;
    }
    if (cost.ok()) continue;
    if (missing.empty()) first = cost.error().message;
    missing.insert(cost.error().message);
  }
  if (!missing.empty())
    return config_error(
        fmt::format("expected the time of every op in the profile, found none of {}{}: measure this config "
                    "and mesh with lancet profile",
                    first, missing.size() > 1 ? fmt::format(" and {} more", missing.size() - 1) : ""));
  return op_costs;
}

int hosts_of(int ranks, int local_ranks) { return (ranks + local_ranks - 1) / local_ranks; }

int Layout::ranks_sharing_host(ir::Axes axes) const {
  if (!even || hosts == 1) return 1;
  if (axes.empty()) return on_host() < ranks && on_host() * hosts == ranks ? on_host() : 1;
  LANCET_CHECK(mesh.ranks() == ranks, "a layout of {} ranks has a mesh of {}", ranks, mesh.ranks());
  int of_all = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    if (mesh.place(rank, axes) != 0) continue;  // each group once
    const Layout one = group(mesh.group(rank, axes));
    if (!one.even || one.hosts == 1 || (of_all > 0 && one.on_host() != of_all)) return 1;
    of_all = one.on_host();
  }
  return of_all;
}

std::pair<int, int> Layout::hosts_of_stage(int stage) const {
  const int of_stage = ranks / mesh[ir::Axis::stage], first = stage * of_stage;
  return {first / on_host(), (first + of_stage - 1) / on_host()};
}

Layout Layout::group(ir::Axes axes) const {
  if (axes.empty()) return *this;
  LANCET_CHECK(mesh.ranks() == ranks, "a layout of {} ranks has a mesh of {}", ranks, mesh.ranks());
  return group(mesh.group(0, axes));
}

Layout Layout::group(std::span<const int> members) const {
  std::map<int, int> by_host;  // the members on each host
  for (const int rank : members) ++by_host[rank / on_host()];
  Layout group{int(members.size()), int(by_host.size())};
  group.even =
      even && std::ranges::all_of(by_host, [&](const auto& on) { return on.second == by_host.begin()->second; });
  group.beside = std::max(1, on_host() / group.on_host());
  return group;
}

// The costs of a machine whose times were measured on evenly spread tokens, under another load. The rank of the fullest
// experts decides: its rows are multiplied, and the others wait for the messages that it receives.
namespace {

class LoadedCosts final : public Costs {
 public:
  LoadedCosts(const Costs& even, std::shared_ptr<const Loads> loads) : even_(even), loads_(std::move(loads)) {}

  std::optional<double> compute_ms(std::string_view op_key) const override { return even_.compute_ms(op_key); }
  std::optional<double> op_ms(const ir::Program& program, const ir::Instruction& instruction) const override {
    auto ms = even_.op_ms(program, instruction);
    if (ms && ops::is_of_experts(instruction)) *ms *= fullest(instruction);
    return ms;
  }
  double all_to_all_ms(double bytes, ir::Axes group) const override { return even_.all_to_all_ms(bytes, group); }
  double all_reduce_ms(double bytes, ir::Axes group) const override { return even_.all_reduce_ms(bytes, group); }
  std::int64_t ranks_on_host(ir::Axes group) const override { return even_.ranks_on_host(group); }
  std::optional<std::int64_t> free_bytes() const override { return even_.free_bytes(); }
  bool knows(ir::Axes group) const override { return even_.knows(group); }
  std::optional<std::string> unknown_messages(const ir::Instruction& instruction) const override {
    return even_.unknown_messages(instruction);
  }
  double message_ms(double bytes, const ir::Instruction& instruction) const override {
    return even_.message_ms(bytes, instruction);
  }
  OpCost all_to_all(const ir::Program& program, const ir::Instruction& instruction) const override {
    if (const ops::Kind kind = ops::kind(instruction); kind == ops::Kind::counts || kind == ops::Kind::collective)
      return even_.all_to_all(program, instruction);
    const double bytes = fullest(instruction) * bytes_sent(program, instruction);
    const double ms = message_ms(bytes, instruction);
    return {ms, std::min(ms, all_to_all_core().ms(bytes))};
  }
  CoreCost all_to_all_core() const override { return even_.all_to_all_core(); }
  CoreCost all_reduce_core() const override { return even_.all_reduce_core(); }
  double launch_ms() const override { return even_.launch_ms(); }
  std::unique_ptr<const Costs> under(std::shared_ptr<const Loads> loads) const override { return even_.under(loads); }
  Interference interference() const override { return even_.interference(); }
  std::string identity() const override {
    return hex(hash64(fmt::format("{} {}", even_.identity(), loads_->identity())));
  }
  double rounds(const ir::Instruction& repeat) const override { return loads_->of(repeat).rounds; }

 private:
  double fullest(const ir::Instruction& at) const {
    const RankLoad& load = loads_->of(at);
    return at.repeated > 0 ? load.further.fullest : load.first.fullest;
  }

  const Costs& even_;
  const std::shared_ptr<const Loads> loads_;
};

}  // namespace

std::unique_ptr<const Costs> Costs::under(std::shared_ptr<const Loads> loads) const {
  return std::make_unique<LoadedCosts>(*this, std::move(loads));
}

}  // namespace lancet::cost
