// The simulation is ir::verify_ranks with times. Each stream of each stage advances until its next instruction has to
// wait. An instruction starts at the latest of three times: the end of the one before it on its stream, the ends of its
// dependencies, and the time at which all its peers on other stages are ready. The order in which the streams are
// visited does not change the times.
#include "lancet/schedule/simulate_stages.h"

#include <algorithm>
#include <array>
#include <optional>

#include "lancet/base/check.h"
#include "lancet/ir/groups.h"
#include "lancet/ir/stream_times.h"

namespace lancet::schedule {
namespace {

class Stages {
 public:
  Stages(std::span<const StageWork> stages, const mesh::Mesh& mesh, double launch_ms)
      : work_(stages), mesh_(mesh), launch_ms_(launch_ms) {
    for (const StageWork& work : stages) {
      State& state = states_.emplace_back();
      state.when.resize(work.program.instructions.size());
      state.ended.resize(work.program.instructions.size());
      for (std::size_t i = 0; i < state.when.size(); ++i)
        state.order[std::size_t(work.program.instructions[i].stream)].push_back(i);
    }
  }

  StagesTimeline run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (int stage = 0; stage < int(states_.size()); ++stage)
        for (int stream = 0; stream < ir::stream_count; ++stream)
          while (try_next(stage, stream)) moved = true;
    }
    StagesTimeline result;
    for (std::size_t stage = 0; stage < states_.size(); ++stage) result.stages.push_back(timeline(stage));
    for (const Timeline& stage : result.stages) result.makespan = std::max(result.makespan, stage.makespan);
    return result;
  }

 private:
  struct State {
    std::array<std::vector<std::size_t>, ir::stream_count> order;
    std::array<std::size_t, ir::stream_count> next{};
    std::array<double, ir::stream_count> free{};
    std::vector<ir::Interval> when;
    std::vector<char> ended;
  };

  const ir::Instruction& at(int stage, std::size_t i) const {
    return work_[std::size_t(stage)].program.instructions[i];
  }

  // The instruction at the head of the stream, if all that it needs has ended, and when it may start.
  struct Head {
    std::size_t instruction;
    double ready;
  };
  std::optional<Head> head(int stage, int stream) const {
    const State& state = states_[std::size_t(stage)];
    const auto& order = state.order[std::size_t(stream)];
    const std::size_t next = state.next[std::size_t(stream)];
    if (next == order.size()) return std::nullopt;
    Head head{order[next], state.free[std::size_t(stream)]};
    for (const ir::InstructionId before : work_[std::size_t(stage)].needed[head.instruction]) {
      if (!state.ended[before.index()]) return std::nullopt;
      const bool same = int(at(stage, before.index()).stream) == stream;
      head.ready = std::max(head.ready, state.when[before.index()].end + (same ? 0 : launch_ms_));
    }
    return head;
  }

  void end(int stage, int stream, const Head& head, double start, double ms) {
    State& state = states_[std::size_t(stage)];
    state.when[head.instruction] = {start, start + ms};
    state.ended[head.instruction] = 1;
    state.free[std::size_t(stream)] = start + ms;
    ++state.next[std::size_t(stream)];
  }

  double cost(int stage, const Head& head) const {
    return work_[std::size_t(stage)].op_costs[head.instruction].alone_ms();
  }

  // Whether these are the two ends of a message, or one collective: else another group's comes first there.
  static bool meet(const ir::Instruction& a, const ir::Instruction& b) {
    return ir::between_stages(a.stream) || ir::key_of(a) == ir::key_of(b);
  }

  bool try_next(int stage, int stream) {
    const auto mine = head(stage, stream);
    if (!mine) return false;
    std::vector<std::pair<int, int>> others;  // stage and stream of those that it meets
    const ir::Instruction& in = at(stage, mine->instruction);
    for (const int other : stages_met(in, mesh_, stage))
      if (other != stage)
        others.emplace_back(other, ir::between_stages(in.stream) ? int(ir::opposite(in.stream)) : stream);
    double start = mine->ready, ms = cost(stage, *mine);
    std::vector<Head> heads;
    for (const auto& [other, its] : others) {
      const auto theirs = head(other, its);
      if (!theirs || !meet(in, at(other, theirs->instruction))) return false;
      start = std::max(start, theirs->ready);
      ms = std::max(ms, cost(other, *theirs));
      heads.push_back(*theirs);
    }
    end(stage, stream, *mine, start, ms);
    for (std::size_t i = 0; i < others.size(); ++i) end(others[i].first, others[i].second, heads[i], start, ms);
    return true;
  }

  Timeline timeline(std::size_t stage) {
    State& state = states_[stage];
    for (std::size_t i = 0; i < state.ended.size(); ++i)
      LANCET_CHECK(state.ended[i], "the stages wait for one another: stage {} in {} at {}", stage, at(int(stage), i).op,
                   at(int(stage), i).label);
    Timeline result;
    result.when = std::move(state.when);
    for (const ir::Interval& interval : result.when) result.makespan = std::max(result.makespan, interval.end);
    const auto times = ir::stream_times(work_[stage].program, std::span<const ir::Interval>(result.when));
    result.compute = times.busy[0];
    result.all_to_all = times.busy[1];
    result.all_reduce = times.busy[2];
    result.communication = times.communication;
    result.exposed = times.exposed;
    return result;
  }

  const std::span<const StageWork> work_;
  const mesh::Mesh& mesh_;
  const double launch_ms_;
  std::vector<State> states_;
};

}  // namespace

StagesTimeline simulate_stages(std::span<const StageWork> stages, const mesh::Mesh& mesh, double launch_ms) {
  return Stages(stages, mesh, launch_ms).run();
}

}  // namespace lancet::schedule
