#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "lancet/ir/groups.h"
#include "lancet/ir/plan.h"

namespace lancet::ir {
namespace {

class Ranks final : public Meetings {
 public:
  Ranks(std::span<const Plan* const> plans, const Mesh& mesh) : plans_(plans), mesh_(mesh), order_(plans.size()) {}

  Result<std::vector<std::vector<PlacedInstruction>>> run() {
    std::vector<Participant> participants;
    for (const Plan* plan : plans_) participants.push_back({plan->program, plan->waits});
    LANCET_ASSIGN(const std::vector<InstructionOf> left, run_together(participants, *this));
    std::string waiting;
    for (const InstructionOf& each : left) waiting += (waiting.empty() ? "" : "; ") + describe(each);
    if (!waiting.empty()) return internal_error("ranks wait for one another: " + waiting);
    return std::move(order_);
  }

  Result<std::vector<std::pair<int, Stream>>> others(const InstructionOf& mine) override {
    const Instruction& in = instruction(mine);
    std::vector<std::pair<int, Stream>> others;
    if (in.stream == Stream::compute) return others;
    if (between_stages(in.stream)) {
      const auto peer = neighbour(mesh_, mine.participant, in.stream);
      if (!peer) return internal_error(fmt::format("{}: expected a neighbouring stage, found none", describe(mine)));
      others.emplace_back(*peer, opposite(in.stream));
      return others;
    }
    for (const int rank : group(mine))
      if (rank != mine.participant) others.emplace_back(rank, in.stream);
    return others;
  }

  Result<bool> meet(const InstructionOf& mine, const InstructionOf& theirs) override {
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
  void end(std::span<const InstructionOf> together) override {
    std::size_t results = 1;
    for (const InstructionOf& each : together) {
      order_[std::size_t(each.participant)].push_back({id_of(each.instruction), place_});
      results = std::max(results, instruction(each).results.size());
    }
    place_ += std::int64_t(results);
  }

 private:
  const Program& program(const InstructionOf& of) const { return plans_[std::size_t(of.participant)]->program; }
  const Instruction& instruction(const InstructionOf& of) const { return program(of).instructions[of.instruction]; }
  std::vector<int> group(const InstructionOf& of) const {
    return ranks_of(key_of(instruction(of)), mesh_, of.participant);
  }

  std::string describe(const InstructionOf& of) const {
    const Instruction& in = instruction(of);
    return fmt::format("rank {} in {} ({}, instruction {})", of.participant, in.op, in.label, of.instruction);
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
  std::vector<std::vector<PlacedInstruction>> order_;  // by rank
  std::int64_t place_ = 0;
};

}  // namespace

Result<std::vector<std::vector<PlacedInstruction>>> order_together(std::span<const Plan* const> plans,
                                                                   const Mesh& mesh) {
  if (int(plans.size()) != mesh.ranks())
    return internal_error(fmt::format("expected the plans of {} ranks, found {}", mesh.ranks(), plans.size()));
  return Ranks(plans, mesh).run();
}

Status verify_ranks(std::span<const Plan* const> plans, const Mesh& mesh) {
  LANCET_TRY(order_together(plans, mesh));
  return {};
}

// Each pass over the streams lets every stream run on as far as it can. If a pass moves no stream and some are left,
// they wait for one another. The order in which the streams are visited changes neither who ends nor who waits.
namespace {

class Together {
 public:
  Together(std::span<const Participant> participants, Meetings& meetings)
      : participants_(participants), meetings_(meetings) {
    for (const Participant& participant : participants) {
      const auto& instructions = participant.program.instructions;
      State& state = states_.emplace_back();
      state.ended.resize(instructions.size());
      for (std::size_t i = 0; i < instructions.size(); ++i)
        state.order[std::size_t(instructions[i].stream)].push_back(i);
    }
  }

  Result<std::vector<InstructionOf>> run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (int participant = 0; participant < int(states_.size()); ++participant)
        for (int stream = 0; stream < stream_count; ++stream)
          for (;; moved = true) {
            LANCET_ASSIGN(const bool ended, try_next(participant, Stream(stream)));
            if (!ended) break;
          }
    }
    std::vector<InstructionOf> left;
    for (int participant = 0; participant < int(states_.size()); ++participant)
      for (int stream = 0; stream < stream_count; ++stream)
        if (const auto at = next(participant, Stream(stream))) left.push_back({participant, *at});
    return left;
  }

 private:
  struct State {
    std::array<std::vector<std::size_t>, stream_count> order;  // of each stream: its instructions
    std::array<std::size_t, stream_count> next{};              // index into order
    std::vector<char> ended;                                   // of each instruction
  };

  // The instruction that the stream is at.
  std::optional<std::size_t> next(int participant, Stream stream) const {
    const State& state = states_[std::size_t(participant)];
    const auto& order = state.order[std::size_t(stream)];
    const std::size_t next = state.next[std::size_t(stream)];
    return next < order.size() ? std::optional(order[next]) : std::nullopt;
  }

  // The same, if what it needs has ended.
  std::optional<std::size_t> ready(int participant, Stream stream) const {
    const auto at = next(participant, stream);
    const Participant& of = participants_[std::size_t(participant)];
    if (!at || of.needed.empty()) return at;
    const auto has_ended = [&](InstructionId id) { return states_[std::size_t(participant)].ended[id.index()] != 0; };
    return std::ranges::all_of(of.needed[*at], has_ended) ? at : std::nullopt;
  }

  // Ends the instruction that the stream is at, for all who are in it; false if it has to wait.
  Result<bool> try_next(int participant, Stream stream) {
    const auto mine = ready(participant, stream);
    if (!mine) return false;
    std::vector<InstructionOf> together{{participant, *mine}};
    LANCET_ASSIGN(const auto others, meetings_.others(together[0]));
    for (const auto& [other, its] : others) {
      const auto theirs = ready(other, its);
      if (!theirs) return false;
      together.push_back({other, *theirs});
      LANCET_ASSIGN(const bool meets, meetings_.meet(together[0], together.back()));
      if (!meets) return false;
    }
    for (const auto& [of, instruction] : together) {
      State& state = states_[std::size_t(of)];
      state.ended[instruction] = 1;
      ++state.next[std::size_t(participants_[std::size_t(of)].program.instructions[instruction].stream)];
    }
    meetings_.end(together);
    return true;
  }

  const std::span<const Participant> participants_;
  Meetings& meetings_;
  std::vector<State> states_;
};

}  // namespace

Result<std::vector<InstructionOf>> run_together(std::span<const Participant> participants, Meetings& meetings) {
  return Together(participants, meetings).run();
}

}  // namespace lancet::ir
