// Each pass over the streams lets every stream run on as far as it can. If a pass moves no stream and some are left,
// they wait for one another. The order in which the streams are visited changes neither who ends nor who waits.
#include "lancet/ir/run_together.h"

#include <algorithm>
#include <array>
#include <optional>

namespace lancet::ir {
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
