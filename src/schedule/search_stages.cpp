// The search is list scheduling over the graph of all stages. Events are the ends of nodes and the times at which what
// they need has arrived; after each, every free stream starts the most urgent node that is ready, and what several
// stages do together starts once all of their streams are free. One pass, forward or backward, goes before the other,
// and within a pass the earlier micro batch, then what has the longest chain to the end of the step, over all stages.
// Weight gradients (pipeline_order.h: W) and updates run where nothing else does.
//
// Memory is bounded by the micro batches in flight. A stage begins the forward pass of a micro batch only if less than
// `ahead` are between its own and the first whose backward pass has not ended; and W goes before all others once the
// backward passes of `delay` later micro batches have ended. The search begins with those of zero bubble and with more,
// since a message's way back and forth takes time in which others can run, measures the arenas, and takes a stage's
// delay down, then its `ahead`, where it needs too much.
//
// A receive has no operand, so nothing in the program keeps it from running far ahead of its reader, and its memory
// from being occupied. It therefore needs the computation that has ended last when it starts.
#include "lancet/schedule/search_stages.h"

#include <algorithm>
#include <limits>
#include <queue>
#include <set>
#include <tuple>

#include "lancet/base/check.h"
#include "lancet/ir/dependencies.h"
#include "lancet/ir/micro_batches.h"
#include "lancet/ops/catalogue.h"
#include "lancet/schedule/plan_memory.h"
#include "lancet/schedule/stage_graph.h"
#include "reorder.h"

namespace lancet::schedule {
namespace {

struct Settings {
  bool backward_first = false;
  std::vector<int> ahead, delay;  // by stage
};

// What an instruction is to the search.
enum class Kind : std::uint8_t { forward, backward, weight, late };

// By instruction of a stage.
std::vector<Kind> kinds_of(const ir::Program& program, const Dependencies& dependencies) {
  const std::vector<bool> weights = waiting_weights(program, dependencies), closes = ir::closes_step(program);
  std::vector<Kind> kinds;
  std::vector<bool> in_backward(std::size_t(ir::micro_batches(program)));
  for (std::size_t i = 0; i < closes.size(); ++i) {
    const ir::Instruction& at = program.instructions[i];
    const bool late = closes[i] || at.stream == ir::Stream::reduce;
    if (!late && at.role != ir::Role::forward) in_backward[std::size_t(at.micro_batch)] = true;
    kinds.push_back(late                                       ? Kind::late
                    : weights[i]                               ? Kind::weight
                    : in_backward[std::size_t(at.micro_batch)] ? Kind::backward
                                                               : Kind::forward);
  }
  return kinds;
}

// The micro batches of a stage whose backward pass has ended: all before the first that has some left.
class Progress {
 public:
  explicit Progress(int micro_batches) : left_(std::size_t(micro_batches)) {}
  void add(int micro) { ++left_[std::size_t(micro)]; }
  void end(int micro) {
    --left_[std::size_t(micro)];
    while (done_ < left_.size() && left_[done_] == 0) ++done_;
  }
  int done() const { return int(done_); }

 private:
  std::vector<int> left_;
  std::size_t done_ = 0;
};

class ListStages {
 public:
  ListStages(std::span<const StageWork> stages, const StageGraph& graph, const std::vector<std::vector<Kind>>& kinds,
             const Settings& settings)
      : work_(stages),
        graph_(graph),
        kinds_(kinds),
        settings_(settings),
        missing_(graph.nodes.size()),
        ready_ms_(graph.nodes.size()),
        busy_(stages.size()),
        ready_(stages.size()),
        order_(stages.size()),
        computed_(stages.size()),
        follows_(stages.size()) {
    for (std::size_t stage = 0; stage < stages.size(); ++stage) {
      const ir::Program& program = stages[stage].program;
      backward_.emplace_back(ir::micro_batches(program));
      for (std::size_t i = 0; i < program.instructions.size(); ++i)
        if (kinds[stage][i] == Kind::backward) backward_.back().add(program.instructions[i].micro_batch);
    }
    for (std::size_t i = 0; i < missing_.size(); ++i)
      if ((missing_[i] = graph.nodes[i].before.size()) == 0) make_ready(std::int32_t(i));
  }

  // By stage, its instructions by their start.
  std::vector<Order> run() {
    start_what_may();
    while (!events_.empty()) {
      now_ = events_.top().ms;
      for (; !events_.empty() && events_.top().ms <= now_; events_.pop()) happen(events_.top());
      start_what_may();
    }
    for (std::size_t stage = 0; stage < order_.size(); ++stage)
      LANCET_CHECK(order_[stage].size() == work_[stage].program.instructions.size(),
                   "{} of {} instructions of stage {} are in its order", order_[stage].size(),
                   work_[stage].program.instructions.size(), stage);
    return std::move(order_);
  }

  // By stage and new place: the instruction, by its new place, that a receive waits for; none for others.
  const std::vector<std::vector<ir::InstructionId>>& follows() const { return follows_; }

 private:
  // Urgency: the pass, the micro batch, the longest tail, the number.
  using Entry = std::tuple<int, int, double, std::int32_t>;
  struct Event {
    double ms;
    bool ends;  // else it becomes ready
    std::int32_t node;
    bool operator>(const Event& other) const { return std::tie(ms, node) > std::tie(other.ms, other.node); }
  };

  const StageNode& node(std::int32_t id) const { return graph_.nodes[std::size_t(id)]; }
  const ir::Instruction& at(const StageNode::Member& of) const {
    return work_[std::size_t(of.stage)].program.instructions[of.instruction];
  }
  Kind kind(const StageNode::Member& of) const { return kinds_[std::size_t(of.stage)][of.instruction]; }
  bool& busy(const StageNode::Member& of) { return busy_[std::size_t(of.stage)][std::size_t(at(of).stream)]; }

  bool is_overdue(const StageNode::Member& of) const {
    const std::size_t stage = std::size_t(of.stage);
    return kind(of) == Kind::weight && at(of).micro_batch + settings_.delay[stage] < backward_[stage].done();
  }

  Entry entry(std::int32_t id) const {
    const StageNode::Member& member = node(id).members.front();
    const Kind of = kind(member);
    const bool waits = (of == Kind::weight && !is_overdue(member)) || of == Kind::late;
    const int pass = waits ? 2 : settings_.backward_first == (of == Kind::forward) ? 1 : 0;
    if (of == Kind::weight && !waits) return {-1, at(member).micro_batch, -node(id).tail_ms, id};
    return {pass, waits ? 0 : at(member).micro_batch, -node(id).tail_ms, id};
  }

  void make_ready(std::int32_t id) {
    const StageNode& of = node(id);
    if (of.members.size() > 1)
      meetings_.insert(entry(id));
    else
      ready_[std::size_t(of.members[0].stage)][std::size_t(at(of.members[0]).stream)].insert(entry(id));
  }

  // Weight gradients that become overdue are urgent from here on.
  void end_backward(const StageNode::Member& of) {
    Progress& progress = backward_[std::size_t(of.stage)];
    const int before = progress.done();
    progress.end(at(of).micro_batch);
    if (progress.done() == before) return;
    std::set<Entry>& ready = ready_[std::size_t(of.stage)][std::size_t(ir::Stream::compute)];
    std::set<Entry> renewed;
    for (const Entry& each : ready) renewed.insert(entry(std::get<3>(each)));
    ready = std::move(renewed);
  }

  void happen(const Event& event) {
    if (!event.ends) return make_ready(event.node);
    for (const StageNode::Member& member : node(event.node).members) {
      busy(member) = false;
      if (kind(member) == Kind::backward) end_backward(member);
      if (at(member).stream == ir::Stream::compute)
        computed_[std::size_t(member.stage)] = place_[std::size_t(event.node)];
    }
    for (const auto& [after, lag] : node(event.node).after) {
      double& ready = ready_ms_[std::size_t(after)];
      ready = std::max(ready, now_ + lag);
      if (--missing_[std::size_t(after)] > 0) continue;
      if (ready <= now_)
        make_ready(after);
      else
        events_.push({ready, false, after});
    }
  }

  bool may_start(std::int32_t id) {
    return std::ranges::all_of(node(id).members, [&](const StageNode::Member& member) {
      if (busy(member)) return false;
      if (kind(member) != Kind::forward) return true;
      const std::size_t stage = std::size_t(member.stage);
      // What arrives for a micro batch does so while the one before it runs.
      const int micro = at(member).micro_batch - (ops::kind(at(member)) == ops::Kind::receive ? 1 : 0);
      return micro < backward_[stage].done() + settings_.ahead[stage];
    });
  }

  void start_what_may() {
    start_from(meetings_, false);
    for (auto& stage : ready_)
      for (auto& stream : stage) start_from(stream, true);
  }

  void start_from(std::set<Entry>& ready, bool one_stream) {
    for (auto next = ready.begin(); next != ready.end();) {
      const std::int32_t id = std::get<3>(*next);
      if (!may_start(id)) {
        if (one_stream && busy(node(id).members[0])) return;
        ++next;
        continue;
      }
      next = ready.erase(next);
      start(id);
    }
  }

  void start(std::int32_t id) {
    place_.resize(graph_.nodes.size());
    for (const StageNode::Member& member : node(id).members) {
      const std::size_t stage = std::size_t(member.stage);
      busy(member) = true;
      const bool receives = ops::kind(at(member)) == ops::Kind::receive;
      follows_[stage].push_back(receives ? computed_[stage] : ir::InstructionId());
      if (at(member).stream == ir::Stream::compute) place_[std::size_t(id)] = ir::id_of(order_[stage].size());
      order_[stage].push_back(ir::id_of(member.instruction));
    }
    events_.push({now_ + node(id).ms, true, id});
  }

  const std::span<const StageWork> work_;
  const StageGraph& graph_;
  const std::vector<std::vector<Kind>>& kinds_;
  const Settings& settings_;
  std::vector<std::size_t> missing_;  // by node, what it depends on and has not ended
  std::vector<double> ready_ms_;      // by node
  std::vector<std::array<bool, ir::stream_count>> busy_;
  std::vector<std::array<std::set<Entry>, ir::stream_count>> ready_;  // what one stage does alone
  std::set<Entry> meetings_;
  std::vector<Progress> backward_;  // by stage
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  double now_ = 0;
  std::vector<Order> order_;
  std::vector<ir::InstructionId> place_;     // by node of the compute stream, its place in its stage's order
  std::vector<ir::InstructionId> computed_;  // by stage, the place of the computation that has ended last
  std::vector<std::vector<ir::InstructionId>> follows_;
};

class Search {
 public:
  Search(std::span<const StageWork> stages, const mesh::Mesh& mesh, double launch_ms, std::int64_t most_bytes)
      : work_(stages),
        mesh_(mesh),
        launch_ms_(launch_ms),
        most_bytes_(most_bytes),
        graph_(stage_graph(stages, mesh, launch_ms)) {
    for (const StageWork& stage : stages) kinds_.push_back(kinds_of(stage.program, stage.needed));
  }

  std::optional<StagesOrder> run() {
    const int stages = int(work_.size());
    for (const bool backward_first : {false, true})
      for (int more = 0; more < stages; ++more) {
        Settings settings{backward_first, {}, {}};
        for (int stage = 0; stage < stages; ++stage) {
          settings.ahead.push_back(stages - stage + more);
          settings.delay.push_back(stage + more);
        }
        try_within_memory(settings);
      }
    return std::move(best_);
  }

 private:
  // Takes fewer micro batches on the stages that need too much memory, until none does.
  void try_within_memory(Settings settings) {
    for (;;) {
      StagesOrder found = listed(settings);
      bool fits = true;
      for (std::size_t stage = 0; stage < work_.size(); ++stage) {
        const PipelineOrder& order = found.stages[stage];
        if (plan_memory(order.program, order.needed).arena_bytes <= most_bytes_) continue;
        fits = false;
        if (--settings.delay[stage] >= 0) continue;
        settings.delay[stage] = 0;
        if (--settings.ahead[stage] == 0) return;
      }
      if (!fits) continue;
      if (!best_ || found.makespan < best_->makespan * (1 - 1e-9)) best_ = std::move(found);
      return;
    }
  }

  StagesOrder listed(const Settings& settings) const {
    ListStages list(work_, graph_, kinds_, settings);
    const std::vector<Order> orders = list.run();
    StagesOrder result;
    std::vector<std::vector<cost::OpCost>> op_costs;
    for (std::size_t stage = 0; stage < orders.size(); ++stage) {
      PipelineOrder& of = result.stages.emplace_back();
      of.program = permuted(work_[stage].program, orders[stage]);
      of.needed = ir::dependencies(of.program);
      Dependencies extra(of.needed.size());
      for (std::size_t i = 0; i < extra.size(); ++i)
        if (const ir::InstructionId before = list.follows()[stage][i]; before.valid()) extra[i].push_back(before);
      join(of.needed, extra);
      auto& costs = op_costs.emplace_back();
      for (const ir::InstructionId id : orders[stage]) costs.push_back(work_[stage].op_costs[id.index()]);
    }
    std::vector<StageWork> work;
    for (std::size_t stage = 0; stage < orders.size(); ++stage)
      work.push_back({result.stages[stage].program, result.stages[stage].needed, op_costs[stage]});
    result.makespan = simulate_stages(work, mesh_, launch_ms_).makespan;
    return result;
  }

  const std::span<const StageWork> work_;
  const mesh::Mesh& mesh_;
  const double launch_ms_;
  const std::int64_t most_bytes_;
  const StageGraph graph_;
  std::vector<std::vector<Kind>> kinds_;
  std::optional<StagesOrder> best_;
};

}  // namespace

std::optional<StagesOrder> search_stages(std::span<const StageWork> stages, const mesh::Mesh& mesh, double launch_ms,
                                         std::int64_t most_bytes) {
  return Search(stages, mesh, launch_ms, most_bytes).run();
}

}  // namespace lancet::schedule
