// The stages run together as ranks do in ir::verify_ranks, with times. An instruction starts at the latest of three
// times: the end of the one before it on its stream, the ends of its dependencies, and the time at which all its peers
// on other stages are ready.
#include "lancet/schedule/stage_graph.h"

#include <algorithm>
#include <array>

#include "lancet/base/check.h"
#include "lancet/ir/groups.h"
#include "lancet/ir/run_together.h"
#include "lancet/ir/stream_times.h"

namespace lancet::schedule {
namespace {

using ir::InstructionOf;

class Stages final : public ir::Meetings {
 public:
  Stages(std::span<const StageWork> stages, const ir::Mesh& mesh, double launch_ms)
      : work_(stages), mesh_(mesh), launch_ms_(launch_ms) {
    for (const StageWork& work : stages) states_.emplace_back().when.resize(work.program.instructions.size());
  }

  StagesTimeline run() {
    std::vector<ir::Participant> participants;
    for (const StageWork& work : work_) participants.push_back({work.program, work.needed});
    const std::vector<InstructionOf> left = ir::run_together(participants, *this).value();
    LANCET_CHECK(left.empty(), "the stages wait for one another: stage {} in {} at {}", left[0].participant,
                 at(left[0]).op, at(left[0]).label);
    StagesTimeline result;
    for (std::size_t stage = 0; stage < states_.size(); ++stage) result.stages.push_back(timeline(stage));
    for (const Timeline& stage : result.stages) result.makespan = std::max(result.makespan, stage.makespan);
    return result;
  }

  Result<std::vector<std::pair<int, ir::Stream>>> others(const InstructionOf& mine) override {
    const ir::Instruction& in = at(mine);
    std::vector<std::pair<int, ir::Stream>> others;
    for (const int stage : stages_met(in, mesh_, mine.participant))
      if (stage != mine.participant)
        others.emplace_back(stage, ir::between_stages(in.stream) ? ir::opposite(in.stream) : in.stream);
    return others;
  }

  // The two ends of a message, or one collective.
  Result<bool> meet(const InstructionOf& mine, const InstructionOf& theirs) override {
    return ir::between_stages(at(mine).stream) || ir::key_of(at(mine)) == ir::key_of(at(theirs));
  }

  void end(std::span<const InstructionOf> together) override {
    double start = 0, ms = 0;
    for (const InstructionOf& each : together) {
      start = std::max(start, ready(each));
      ms = std::max(ms, work_[std::size_t(each.participant)].op_costs[each.instruction].ms);
    }
    for (const InstructionOf& each : together) {
      State& state = states_[std::size_t(each.participant)];
      state.when[each.instruction] = {start, start + ms};
      state.free[std::size_t(at(each).stream)] = start + ms;
    }
  }

 private:
  struct State {
    std::array<double, ir::stream_count> free{};  // of each stream, the end of the last instruction
    std::vector<ir::Interval> when;
  };

  const ir::Instruction& at(const InstructionOf& of) const {
    return work_[std::size_t(of.participant)].program.instructions[of.instruction];
  }

  double ready(const InstructionOf& of) const {
    const State& state = states_[std::size_t(of.participant)];
    const StageWork& work = work_[std::size_t(of.participant)];
    const ir::Stream stream = at(of).stream;
    double ready = state.free[std::size_t(stream)];
    for (const ir::InstructionId before : work.needed[of.instruction]) {
      const bool same = work.program.instructions[before.index()].stream == stream;
      ready = std::max(ready, state.when[before.index()].end + (same ? 0 : launch_ms_));
    }
    return ready;
  }

  Timeline timeline(std::size_t stage) {
    Timeline result;
    result.when = std::move(states_[stage].when);
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
  const ir::Mesh& mesh_;
  const double launch_ms_;
  std::vector<State> states_;
};

}  // namespace

StagesTimeline simulate_stages(std::span<const StageWork> stages, const ir::Mesh& mesh, double launch_ms) {
  return Stages(stages, mesh, launch_ms).run();
}

}  // namespace lancet::schedule
