// Executes the plans of all ranks together, without their kernels. Each pass over the streams lets every stream run on
// as far as it can: a local instruction ends when the instructions that it waits for have ended, a collective when all
// ranks of its group are in it. If a pass moves no stream and some are left, they wait for one another.
#include "lancet/ir/verify_ranks.h"

#include <fmt/format.h>

#include <array>
#include <map>
#include <optional>

#include "lancet/ir/groups.h"

namespace lancet::ir {
namespace {

class Ranks {
 public:
  Ranks(std::span<const Plan* const> plans, const mesh::Mesh& mesh) : plans_(plans), mesh_(mesh) {
    for (std::size_t rank = 0; rank < plans.size(); ++rank) {
      State& state = states_.emplace_back();
      const auto& instructions = plans[rank]->program.instructions;
      state.ended.resize(instructions.size());
      for (std::size_t i = 0; i < instructions.size(); ++i)
        state.order[std::size_t(instructions[i].stream)].push_back(i);
    }
  }

  Status run() {
    LANCET_TRY(known_axes());
    for (bool moved = true; moved;) {
      moved = false;
      for (int rank = 0; rank < int(states_.size()); ++rank)
        for (int stream = 0; stream < stream_count; ++stream)
          while (true) {
            LANCET_ASSIGN(const bool ended, try_next(rank, stream));
            if (!ended) break;
            moved = true;
          }
    }
    return all_ended();
  }

 private:
  struct State {
    std::array<std::vector<std::size_t>, stream_count> order;  // of each stream: its instructions
    std::array<std::size_t, stream_count> next{};              // index into order
    std::vector<char> ended;                                   // of each instruction
  };

  const Instruction& instruction(int rank, std::size_t i) const {
    return plans_[std::size_t(rank)]->program.instructions[i];
  }

  std::string describe(int rank, std::size_t i) const {
    const Instruction& in = instruction(rank, i);
    return fmt::format("rank {} in {} ({}, instruction {})", rank, in.op, in.label, i);
  }

  static bool local(const Instruction& in) { return in.stream == Stream::compute; }

  std::vector<int> group(int rank, const Instruction& in) const { return ranks_of(key_of(in), mesh_, rank); }

  Status known_axes() const {
    for (int rank = 0; rank < int(states_.size()); ++rank)
      for (std::size_t i = 0; i < states_[std::size_t(rank)].ended.size(); ++i)
        if (!has_sound_axes(instruction(rank, i)))
          return internal_error(describe(rank, i) +
                                ": expected axes of the mesh, outermost first, such as data,expert");
    return {};
  }

  // The instruction that the stream is at, if its waits have ended.
  std::optional<std::size_t> ready(int rank, int stream) const {
    const State& state = states_[std::size_t(rank)];
    const auto& order = state.order[std::size_t(stream)];
    const std::size_t at = state.next[std::size_t(stream)];
    if (at == order.size()) return std::nullopt;
    const Plan& plan = *plans_[std::size_t(rank)];
    if (!plan.waits.empty())
      for (const InstructionId wait : plan.waits[order[at]])
        if (!state.ended[wait.index()]) return std::nullopt;
    return order[at];
  }

  std::vector<std::int64_t> sizes(int rank, const Instruction& in) const {
    std::vector<std::int64_t> sizes;
    const Program& program = plans_[std::size_t(rank)]->program;
    for (const TensorId result : in.results) sizes.push_back(bytes(program.type(result)));
    return sizes;
  }

  void end(int rank, int stream) {
    State& state = states_[std::size_t(rank)];
    state.ended[state.order[std::size_t(stream)][state.next[std::size_t(stream)]++]] = 1;
  }

  // Ends the instruction that the stream is at, on all ranks of its group; false if it must wait.
  Result<bool> try_next(int rank, int stream) {
    const auto mine = ready(rank, stream);
    if (!mine) return false;
    const Instruction& in = instruction(rank, *mine);
    if (local(in)) {
      end(rank, stream);
      return true;
    }
    if (between_stages(in.stream)) return try_transfer(rank, *mine);
    const std::vector<int> members = group(rank, in);
    for (const int other : members) {
      const auto theirs = ready(other, stream);
      if (!theirs) return false;
      const Instruction& there = instruction(other, *theirs);
      if (group(other, there) != members) return false;  // another group's collective comes first there
      if (there.op != in.op || sizes(other, there) != sizes(rank, in))
        return internal_error(fmt::format("two instructions meet in one collective: {} and {}", describe(rank, *mine),
                                          describe(other, *theirs)));
    }
    for (const int member : members) end(member, stream);
    return true;
  }

  // Ends a message between stages on both of its ranks; false if it must wait.
  Result<bool> try_transfer(int rank, std::size_t mine) {
    const Instruction& in = instruction(rank, mine);
    const auto peer = neighbour(mesh_, rank, in.stream);
    if (!peer)
      return internal_error(fmt::format("{}: expected a neighbouring stage, found none", describe(rank, mine)));
    const int there = int(opposite(in.stream));
    const auto theirs = ready(*peer, there);
    if (!theirs) return false;
    const auto sent = message(rank, in), received = message(*peer, instruction(*peer, *theirs));
    if (sent != received)
      return internal_error(fmt::format("a message between stages differs: {} with {} bytes and {} with {} bytes",
                                        describe(rank, mine), sent, describe(*peer, *theirs), received));
    end(rank, int(in.stream));
    end(*peer, there);
    return true;
  }

  // Bytes that a stream between stages carries: what it sends, or the result that it receives.
  std::int64_t message(int rank, const Instruction& in) const {
    const Program& program = plans_[std::size_t(rank)]->program;
    std::int64_t sum = 0;
    for (const TensorId id : in.results.empty() ? in.operands : in.results) sum += bytes(program.type(id));
    return sum;
  }

  Status all_ended() const {
    std::string waiting;
    for (int rank = 0; rank < int(states_.size()); ++rank)
      for (int stream = 0; stream < stream_count; ++stream) {
        const State& state = states_[std::size_t(rank)];
        if (state.next[std::size_t(stream)] == state.order[std::size_t(stream)].size()) continue;
        const std::size_t at = state.order[std::size_t(stream)][state.next[std::size_t(stream)]];
        waiting += (waiting.empty() ? "" : "; ") + describe(rank, at);
      }
    return waiting.empty() ? Status() : internal_error("ranks wait for one another: " + waiting);
  }

  std::span<const Plan* const> plans_;
  const mesh::Mesh& mesh_;
  std::vector<State> states_;
};

}  // namespace

Status verify_ranks(std::span<const Plan* const> plans, const mesh::Mesh& mesh) {
  if (int(plans.size()) != mesh.ranks())
    return internal_error(fmt::format("expected the plans of {} ranks, found {}", mesh.ranks(), plans.size()));
  return Ranks(plans, mesh).run();
}

}  // namespace lancet::ir
