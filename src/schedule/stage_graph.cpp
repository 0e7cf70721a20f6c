#include "lancet/schedule/stage_graph.h"

#include <algorithm>
#include <map>
#include <queue>

#include "lancet/base/check.h"

namespace lancet::schedule {
namespace {

class Builder {
 public:
  Builder(std::span<const RankClass> stages, const ir::Mesh& mesh)
      : work_(stages), meetings_(meetings_of(stages, mesh)), node_of_(meetings_.members.size(), -1) {}

  StageGraph build() {
    for (std::size_t stage = 0; stage < work_.size(); ++stage) add_nodes(int(stage));
    for (std::size_t stage = 0; stage < work_.size(); ++stage) add_edges(stage);
    set_chains();
    return std::move(graph_);
  }

 private:
  void add_nodes(int stage) {
    auto& nodes = graph_.of_stage.emplace_back();
    for (std::size_t i = 0; i < work_[std::size_t(stage)].program.instructions.size(); ++i) {
      const std::int32_t meeting = meetings_.of[std::size_t(stage)][i];
      std::int32_t node = meeting < 0 ? -1 : node_of_[std::size_t(meeting)];
      if (node < 0) {
        node = std::int32_t(graph_.nodes.size());
        graph_.nodes.emplace_back();
        if (meeting >= 0) node_of_[std::size_t(meeting)] = node;
      }
      StageNode& at = graph_.nodes[std::size_t(node)];
      at.members.push_back({stage, i});
      at.ms = std::max(at.ms, work_[std::size_t(stage)].op_costs[i].ms);
      nodes.push_back(node);
    }
  }

  void add_edges(std::size_t stage) {
    const RankClass& work = work_[stage];
    for (std::size_t i = 0; i < work.needed.size(); ++i)
      for (const ir::InstructionId before : work.needed[i]) {
        const bool same = work.program.instructions[before.index()].stream == work.program.instructions[i].stream;
        const std::int32_t from = graph_.of_stage[stage][before.index()], to = graph_.of_stage[stage][i];
        graph_.nodes[std::size_t(to)].before.push_back({from, same ? 0 : work.launch_ms});
        graph_.nodes[std::size_t(from)].after.push_back({to, same ? 0 : work.launch_ms});
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

  const std::span<const RankClass> work_;
  const Meetings meetings_;
  std::vector<std::int32_t> node_of_;  // by meeting; -1: none yet
  StageGraph graph_;
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

}  // namespace

StageGraph stage_graph(std::span<const RankClass> stages, const ir::Mesh& mesh) {
  return Builder(stages, mesh).build();
}

double least_makespan(const StageGraph& graph, std::span<const RankClass> stages) {
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

}  // namespace lancet::schedule
