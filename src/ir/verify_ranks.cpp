#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "lancet/ir/groups.h"
#include "lancet/ir/plan.h"

namespace lancet::ir {
namespace {

// Executes the plans of all ranks without their kernels. Each stream runs its instructions in order, each once those
// that it waits for have ended and all whom it meets are in it. A pass over the streams lets every stream run on as far
// as it can. If a pass moves no stream and some are left, they wait for one another. The order in which the streams are
// visited changes neither who ends nor who waits.
class Ranks {
 public:
  Ranks(std::span<const Plan* const> plans, const Mesh& mesh)
      : plans_(plans), mesh_(mesh), states_(plans.size()), order_(plans.size()) {
    for (std::size_t rank = 0; rank < plans.size(); ++rank) {
      const auto& instructions = plans[rank]->program.instructions;
      states_[rank].ended.resize(instructions.size());
      for (std::size_t i = 0; i < instructions.size(); ++i)
        states_[rank].order[std::size_t(instructions[i].stream)].push_back(i);
    }
  }

  Result<std::vector<std::vector<PlacedInstruction>>> run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (int rank = 0; rank < int(states_.size()); ++rank)
        for (int stream = 0; stream < stream_count; ++stream)
          for (;; moved = true) {
            LANCET_ASSIGN(const bool ended, try_next(rank, Stream(stream)));
            if (!ended) break;
          }
    }
    std::string waiting;
    for (int rank = 0; rank < int(states_.size()); ++rank)
      for (int stream = 0; stream < stream_count; ++stream)
        if (const auto at = next(rank, Stream(stream)))
          waiting += (waiting.empty() ? "" : "; ") + describe({rank, *at});
    if (!waiting.empty()) return internal_error("ranks wait for one another: " + waiting);
    return std::move(order_);
  }

 private:
  struct InstructionOf {
    int rank;
    std::size_t instruction;
  };
  struct State {
    std::array<std::vector<std::size_t>, stream_count> order;  // of each stream: its instructions
    std::array<std::size_t, stream_count> next{};              // index into order
    std::vector<char> ended;                                   // of each instruction
  };

  // The instruction that the stream is at.
  std::optional<std::size_t> next(int rank, Stream stream) const {
    const State& state = states_[std::size_t(rank)];
    const auto& order = state.order[std::size_t(stream)];
    const std::size_t next = state.next[std::size_t(stream)];
    return next < order.size() ? std::optional(order[next]) : std::nullopt;
  }

  // The same, if what it needs has ended.
  std::optional<std::size_t> ready(int rank, Stream stream) const {
    const auto at = next(rank, stream);
    const auto& waits = plans_[std::size_t(rank)]->waits;
    if (!at || waits.empty()) return at;
    const auto has_ended = [&](InstructionId id) { return states_[std::size_t(rank)].ended[id.index()] != 0; };
    return std::ranges::all_of(waits[*at], has_ended) ? at : std::nullopt;
  }

  // Ends the instruction that the stream is at, for all who are in it; false if it has to wait.
  Result<bool> try_next(int rank, Stream stream) {
    const auto mine = ready(rank, stream);
    if (!mine) return false;
    std::vector<InstructionOf> together{{rank, *mine}};
    LANCET_ASSIGN(const auto others, others_of(together[0]));
    for (const auto& [other, its] : others) {
      const auto theirs = ready(other, its);
      if (!theirs) return false;
      together.push_back({other, *theirs});
      LANCET_ASSIGN(const bool meets, meet(together[0], together.back()));
      if (!meets) return false;
    }
    for (const InstructionOf& each : together) {
      State& state = states_[std::size_t(each.rank)];
      state.ended[each.instruction] = 1;
      ++state.next[std::size_t(instruction(each).stream)];
    }
    end(together);
    return true;
  }

  // The others that have to be in it, each with its stream.
  Result<std::vector<std::pair<int, Stream>>> others_of(const InstructionOf& mine) const {
    const Instruction& in = instruction(mine);
    std::vector<std::pair<int, Stream>> others;
    if (in.stream == Stream::compute) return others;
    if (between_stages(in.stream)) {
      const auto peer = neighbour(mesh_, mine.rank, in.stream);
      if (!peer) return internal_error(fmt::format("{}: expected a neighbouring stage, found none", describe(mine)));
      others.emplace_back(*peer, opposite(in.stream));
      return others;
    }
    for (const int rank : group(mine))
      if (rank != mine.rank) others.emplace_back(rank, in.stream);
    return others;
  }

  // What one of them is at on that stream. False: it is another one, which comes first there.
  Result<bool> meet(const InstructionOf& mine, const InstructionOf& theirs) const {
    const Instruction &here = instruction(mine), &there = instruction(theirs);
    if (between_stages(here.stream)) {
      const auto sent = message(mine), received = message(theirs);
      if (sent == received) return true;
      return internal_error(fmt::format("a message between stages differs: {} with {} bytes and {} with {} bytes",
                                        describe(mine), sent, describe(theirs), received));
    }
    if (group(theirs) != group(mine)) return false;
    if (there.op == here.op && sizes(theirs) == sizes(mine)) return true;
    return internal_error(
        fmt::format("two instructions meet in one collective: {} and {}", describe(mine), describe(theirs)));
  }

  // All of them end at once, so that no rank that runs them in this order is elsewhere while others wait for it.
  void end(std::span<const InstructionOf> together) {
    std::size_t results = 1;
    for (const InstructionOf& each : together) {
      order_[std::size_t(each.rank)].push_back({id_of(each.instruction), place_});
      results = std::max(results, instruction(each).results.size());
    }
    place_ += std::int64_t(results);
  }

  const Program& program(const InstructionOf& of) const { return plans_[std::size_t(of.rank)]->program; }
  const Instruction& instruction(const InstructionOf& of) const { return program(of).instructions[of.instruction]; }
  std::vector<int> group(const InstructionOf& of) const { return ranks_of(key_of(instruction(of)), mesh_, of.rank); }

  std::string describe(const InstructionOf& of) const {
    const Instruction& in = instruction(of);
    return fmt::format("rank {} in {} ({}, instruction {})", of.rank, in.op, in.label, of.instruction);
  }

  std::vector<std::int64_t> sizes(const InstructionOf& of) const {
    std::vector<std::int64_t> sizes;
    for (const TensorId result : instruction(of).results) sizes.push_back(bytes(program(of).type(result)));
    return sizes;
  }

  // Bytes that a stream between stages carries: what it sends, or the result that it receives.
  std::int64_t message(const InstructionOf& of) const {
    const Instruction& in = instruction(of);
    std::int64_t sum = 0;
    for (const TensorId id : in.results.empty() ? in.operands : in.results) sum += bytes(program(of).type(id));
    return sum;
  }

  std::span<const Plan* const> plans_;
  const Mesh& mesh_;
  std::vector<State> states_;                          // by rank
  std::vector<std::vector<PlacedInstruction>> order_;  // likewise
  std::int64_t place_ = 0;
};

}  // namespace

Result<std::vector<std::vector<PlacedInstruction>>> order_together(std::span<const Plan* const> plans,
                                                                   const Mesh& mesh) {
  if (int(plans.size()) != mesh.ranks())
    return internal_error(fmt::format("expected the plans of {} ranks, found {}", mesh.ranks(), plans.size()));
  return Ranks(plans, mesh).run();
}

Result<std::vector<PlacedInstruction>> order_of_stage(std::span<const Plan> stages, std::size_t stage) {
  std::vector<const Plan*> plans;
  for (const Plan& plan : stages) plans.push_back(&plan);
  LANCET_ASSIGN(auto orders, order_together(plans, {{int(stages.size()), 1, 1, 1}}));
  return std::move(orders[stage]);
}

Status verify_ranks(std::span<const Plan* const> plans, const Mesh& mesh) {
  LANCET_TRY(order_together(plans, mesh));
  return {};
}

}  // namespace lancet::ir
