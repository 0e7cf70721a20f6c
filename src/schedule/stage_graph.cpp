#include "lancet/schedule/stage_graph.h"

#include <algorithm>
#include <array>
#include <map>
#include <queue>
#include <string>

#include "lancet/base/check.h"
#include "lancet/ir/groups.h"
#include "lancet/ir/plan.h"
#include "lancet/ir/stream_times.h"

namespace lancet::schedule {
namespace {

ir::Mesh of_stages(const ir::Mesh& mesh) {
  ir::Mesh stages;
  stages[ir::Axis::stage] = mesh[ir::Axis::stage];
  return stages;
}

// What meets has the same name: a link and its direction, or a collective's stages and key.
std::string name_of(const ir::Instruction& at, const std::vector<int>& met) {
  std::string name = ir::between_stages(at.stream) ? "" : ir::key_of(at);
  // The stream that sends names a message.
  const bool next = at.stream == ir::Stream::send_next || at.stream == ir::Stream::receive_previous;
  if (ir::between_stages(at.stream)) name = next ? "next" : "previous";
  for (const int stage : met) name += ' ' + std::to_string(stage);
  return name;
}

class Builder {
 public:
  Builder(std::span<const StageWork> stages, const ir::Mesh& mesh, double launch_ms)
      : work_(stages), mesh_(mesh), launch_ms_(launch_ms) {}

  StageGraph build() {
    for (std::size_t stage = 0; stage < work_.size(); ++stage) add_nodes(int(stage));
    for (std::size_t stage = 0; stage < work_.size(); ++stage) add_edges(stage);
    set_chains();
    return std::move(graph_);
  }

 private:
  void add_nodes(int stage) {
    const auto& instructions = work_[std::size_t(stage)].program.instructions;
    auto& nodes = graph_.of_stage.emplace_back();
    std::map<std::string, int> turns;
    for (std::size_t i = 0; i < instructions.size(); ++i) {
      const std::vector<int> met = stages_met(instructions[i], mesh_, stage);
      std::int32_t node = std::int32_t(graph_.nodes.size());
      if (met.size() > 1) {
        const std::string name = name_of(instructions[i], met);
        node = meetings_.try_emplace({name, turns[name]++}, node).first->second;
      }
      if (node == std::int32_t(graph_.nodes.size())) graph_.nodes.emplace_back();
      StageNode& at = graph_.nodes[std::size_t(node)];
      at.members.push_back({stage, i});
      at.ms = std::max(at.ms, work_[std::size_t(stage)].op_costs[i].ms);
      nodes.push_back(node);
    }
  }

  void add_edges(std::size_t stage) {
    const StageWork& work = work_[stage];
    for (std::size_t i = 0; i < work.needed.size(); ++i)
      for (const ir::InstructionId before : work.needed[i]) {
        const bool same = work.program.instructions[before.index()].stream == work.program.instructions[i].stream;
        const std::int32_t from = graph_.of_stage[stage][before.index()], to = graph_.of_stage[stage][i];
        graph_.nodes[std::size_t(to)].before.push_back({from, same ? 0 : launch_ms_});
        graph_.nodes[std::size_t(from)].after.push_back({to, same ? 0 : launch_ms_});
      }
  }

  // Each node comes after all that it depends on.
  std::vector<std::int32_t> sorted() const {
    std::vector<std::size_t> missing;
    std::vector<std::int32_t> result;
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
      missing.push_back(graph_.nodes[i].before.size());
      if (missing.back() == 0) result.push_back(std::int32_t(i));
    }
    for (std::size_t i = 0; i < result.size(); ++i)
      for (const StageNode::Edge& edge : graph_.nodes[std::size_t(result[i])].after)
        if (--missing[std::size_t(edge.node)] == 0) result.push_back(edge.node);
    LANCET_CHECK(result.size() == graph_.nodes.size(), "the stages wait for one another: {} of {} nodes can be reached",
                 result.size(), graph_.nodes.size());
    return result;
  }

  void set_chains() {
    const std::vector<std::int32_t> order = sorted();
    for (const std::int32_t id : order) {
      StageNode& node = graph_.nodes[std::size_t(id)];
      for (const auto& [before, lag] : node.before) {
        const StageNode& from = graph_.nodes[std::size_t(before)];
        node.head_ms = std::max(node.head_ms, from.head_ms + from.ms + lag);
      }
    }
    for (auto id = order.rbegin(); id != order.rend(); ++id) {
      StageNode& node = graph_.nodes[std::size_t(*id)];
      for (const auto& [after, lag] : node.after)
        node.tail_ms = std::max(node.tail_ms, lag + graph_.nodes[std::size_t(after)].tail_ms);
      node.tail_ms += node.ms;
    }
  }

  const std::span<const StageWork> work_;
  const ir::Mesh& mesh_;
  const double launch_ms_;
  StageGraph graph_;
  std::map<std::pair<std::string, int>, std::int32_t> meetings_;  // by name and turn
};

// A stream with nothing to respect but what each instruction has before and after it, and free to interrupt one: the
// available instruction with the longest chain after it runs. No order ends earlier (Carlier, 1982).
class OneStream {
 public:
  void add(const StageNode& node) { jobs_.push_back({node.head_ms, node.ms, node.tail_ms - node.ms}); }

  double makespan() {
    std::ranges::sort(jobs_, {}, &Job::head_ms);
    const auto shorter_tail = [](const Job& a, const Job& b) { return a.after_ms < b.after_ms; };
    std::priority_queue<Job, std::vector<Job>, decltype(shorter_tail)> available(shorter_tail);
    double now = 0, last = 0;
    for (std::size_t next = 0; next < jobs_.size() || !available.empty();) {
      if (available.empty()) now = std::max(now, jobs_[next].head_ms);
      for (; next < jobs_.size() && jobs_[next].head_ms <= now; ++next) available.push(jobs_[next]);
      Job job = available.top();
      available.pop();
      const double end = now + job.ms;
      if (next == jobs_.size() || end <= jobs_[next].head_ms) {
        now = end;
        last = std::max(last, end + job.after_ms);
        continue;
      }
      job.ms = end - jobs_[next].head_ms;
      now = jobs_[next].head_ms;
      available.push(job);
    }
    return last;
  }

 private:
  struct Job {
    double head_ms, ms, after_ms;
  };
  std::vector<Job> jobs_;
};

// The stages run together as ranks do in ir::verify_ranks, with times. An instruction starts at the latest of three
// times: the end of the one before it on its stream, the ends of its dependencies, and the time at which all its peers
// on other stages are ready.
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
    for (std::size_t stage = 0; stage < states_.size(); ++stage)
      result.stages.push_back(timeline_of(work_[stage].program, std::move(states_[stage].when)));
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

  const std::span<const StageWork> work_;
  const ir::Mesh& mesh_;
  const double launch_ms_;
  std::vector<State> states_;
};

}  // namespace

std::vector<int> stages_met(const ir::Instruction& instruction, const ir::Mesh& mesh, int stage) {
  const ir::Mesh stages = of_stages(mesh);
  if (ir::between_stages(instruction.stream)) {
    const int other = ir::neighbour(stages, stage, instruction.stream).value();
    return {std::min(stage, other), std::max(stage, other)};
  }
  if (instruction.stream == ir::Stream::compute || !ir::group_of(instruction, mesh).has(ir::Axis::stage))
    return {stage};
  const std::string key = ir::key_of(instruction);
  const std::size_t named = key.find(':');
  return ir::ranks_of(named == key.npos ? "stage" : "stage" + key.substr(named), stages, stage);
}

StageGraph stage_graph(std::span<const StageWork> stages, const ir::Mesh& mesh, double launch_ms) {
  return Builder(stages, mesh, launch_ms).build();
}

double least_makespan(const StageGraph& graph, std::span<const StageWork> stages) {
  std::map<std::pair<int, ir::Stream>, OneStream> streams;
  double least = 0;
  for (const StageNode& node : graph.nodes) {
    least = std::max(least, node.head_ms + node.tail_ms);
    for (const auto& [stage, instruction] : node.members)
      streams[{stage, stages[std::size_t(stage)].program.instructions[instruction].stream}].add(node);
  }
  for (auto& [_, stream] : streams) least = std::max(least, stream.makespan());
  return least;
}

StagesTimeline simulate_stages(std::span<const StageWork> stages, const ir::Mesh& mesh, double launch_ms) {
  return Stages(stages, mesh, launch_ms).run();
}

}  // namespace lancet::schedule
