// The search is list scheduling over the graph of all stages. Events are the ends of nodes and the times at which what
// they need has arrived; after each, every free stream starts the most urgent node that is ready, and what several
// stages do together starts once all of their streams are free. One pass, forward or backward, goes before the other,
// and within a pass the earlier micro batch, then what has the longest chain to the end of the step, over all stages.
// Weight gradients (stage_graph.h: W) and updates run where nothing else does.
//
// A stage begins the forward pass of a micro batch only if less than `ahead` are between its own and the first whose
// backward pass has not ended, and if its memory has room for what the pass keeps and for a backward pass. Where there
// is no room for a backward pass, W goes before all others. The search begins with the `ahead` of 1F1B and with more,
// since a message's way back and forth takes time in which others can run. What is alive at once is less than the
// arena, and a stage need not have all of a pass at once, so the memory that the stages count on is searched, too: it
// begins with more than they have, and is taken down where a planned arena is too large.
//
// A receive has no operand, so nothing in the program keeps it from running far ahead of its reader, and its memory
// from being occupied. It therefore needs the computation that has ended last when it starts. What is computed again
// could run right after the forward pass, and free nothing. It needs what its backward pass computes before it, or the
// gradient that this pass begins with, so that it may run beside an all-to-all.
//
// What is searched are a few settings of each stage, not an order, and they are those of a pipeline that is full. They
// are searched on a few of the micro batches, and then used for all, so that the time of a search hardly grows with the
// micro batches.
#include "lancet/schedule/stage_graph.h"

#include <algorithm>
#include <numeric>
#include <queue>
#include <set>
#include <tuple>

#include "lancet/base/check.h"
#include "lancet/ir/dependencies.h"
#include "lancet/ir/micro_batches.h"
#include "lancet/ops/catalogue.h"
#include "lancet/schedule/plan_memory.h"
#include "orders.h"

namespace lancet::schedule {
namespace {

// The memory that a stage counts on, relative to what it has: at first, at the next try at most, and at the last.
constexpr double most_memory = 1.4, less_memory = 0.985, least_memory = 0.5;

// Of a stage.
struct Settings {
  bool backward_first = false;
  bool weights_first = false;  // W goes before all others where there is no room for a forward pass, either
  int ahead = 0;
  std::int64_t memory = 0;  // bytes that it counts on
};

using Kind = PassKind;

// The dependencies with those of what is computed again.
Dependencies with_late_recompute(const RankClass& stage, const std::vector<Kind>& kinds) {
  Dependencies needed = stage.needed, extra(needed.size());
  std::vector<ir::InstructionId> last(std::size_t(ir::micro_batches(stage.program)));
  for (std::size_t i = 0; i < needed.size(); ++i) {
    const ir::Instruction& at = stage.program.instructions[i];
    ir::InstructionId& before = last[std::size_t(std::max(at.micro_batch, 0))];
    if (at.role == ir::Role::recompute) {
      if (before.valid()) extra[i].push_back(before);
    } else if (kinds[i] <= Kind::backward &&
               (at.stream == ir::Stream::compute || ops::kind(at) == ops::Kind::receive)) {
      before = ir::id_of(i);
    }
  }
  join(needed, extra);
  return needed;
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

// The memory of a stage: its tensors, and what a micro batch takes if it runs alone in the order of the program.
struct StageMemory {
  Blocks blocks;
  std::int64_t kept = 0, forward = 0;  // at the end of the forward pass, and the most in it
  std::int64_t backward = 0;           // the most in the backward pass, on top of what is kept

  StageMemory(const ir::Program& program, const std::vector<Kind>& kinds);
  // What a forward pass needs besides room for a backward pass.
  std::int64_t next() const { return std::max(kept, forward - backward); }
  // Of all tensors.
  std::int64_t all() const { return std::accumulate(blocks.bytes.begin(), blocks.bytes.end(), std::int64_t{0}); }
};

StageMemory::StageMemory(const ir::Program& program, const std::vector<Kind>& kinds) : blocks(program) {
  LiveBlocks alive = blocks.live();
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    if (program.instructions[i].micro_batch > 0 || kinds[i] == Kind::late) continue;
    alive.start(blocks.of[i]);
    if (kinds[i] == Kind::forward)
      forward = std::max(forward, alive.bytes());
    else
      backward = std::max(backward, alive.bytes() - kept);
    alive.finish(blocks.of[i]);
    if (kinds[i] == Kind::forward) kept = alive.bytes();
  }
}

class ListStages {
 public:
  ListStages(std::span<const RankClass> stages, const StageGraph& graph, const std::vector<std::vector<Kind>>& kinds,
             std::span<const StageMemory> memory, std::span<const Settings> settings)
      : work_(stages),
        graph_(graph),
        kinds_(kinds),
        memory_(memory),
        settings_(settings),
        begun_(stages.size(), -1),
        missing_(graph.nodes.size()),
        ready_ms_(graph.nodes.size()),
        busy_(stages.size()),
        ready_(stages.size()),
        weights_(stages.size()),
        order_(stages.size()),
        computed_(stages.size()),
        follows_(stages.size()) {
    for (std::size_t stage = 0; stage < stages.size(); ++stage) {
      const ir::Program& program = stages[stage].program;
      alive_.push_back(memory[stage].blocks.live());
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
  const std::vector<std::int32_t>& blocks_of(const StageNode::Member& of) const {
    return memory_[std::size_t(of.stage)].blocks.of[of.instruction];
  }
  Kind kind(const StageNode::Member& of) const { return kinds_[std::size_t(of.stage)][of.instruction]; }
  bool& busy(const StageNode::Member& of) { return busy_[std::size_t(of.stage)][std::size_t(at(of).stream)]; }

  // Room for the backward pass of a micro batch, and for `bytes` more.
  bool has_room(std::size_t stage, std::int64_t bytes) const {
    return alive_[stage].bytes() + memory_[stage].backward + bytes <= settings_[stage].memory;
  }

  Entry entry(std::int32_t id) const {
    const StageNode::Member& member = node(id).members.front();
    const Kind of = kind(member);
    const bool backward_first = settings_[std::size_t(member.stage)].backward_first;
    const int pass = of == Kind::late ? 2 : backward_first == (of == Kind::forward) ? 1 : 0;
    return {pass, of == Kind::late ? 0 : at(member).micro_batch, -node(id).tail_ms, id};
  }

  void make_ready(std::int32_t id) {
    const StageNode& of = node(id);
    const std::size_t stage = std::size_t(of.members[0].stage);
    if (of.members.size() > 1)
      meetings_.insert(entry(id));
    else if (kind(of.members[0]) == Kind::weight && at(of.members[0]).stream == ir::Stream::compute)
      weights_[stage].insert(entry(id));
    else
      ready_[stage][std::size_t(at(of.members[0]).stream)].insert(entry(id));
  }

  void happen(const Event& event) {
    if (!event.ends) return make_ready(event.node);
    for (const StageNode::Member& member : node(event.node).members) {
      busy(member) = false;
      alive_[std::size_t(member.stage)].finish(blocks_of(member));
      if (kind(member) == Kind::backward) backward_[std::size_t(member.stage)].end(at(member).micro_batch);
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
      // What arrives for a micro batch does so while the one before it runs.
      const bool receives = ops::kind(at(member)) == ops::Kind::receive;
      return may_begin(std::size_t(member.stage), at(member).micro_batch - (receives ? 1 : 0));
    });
  }

  bool may_begin(std::size_t stage, int micro) const {
    const int done = backward_[stage].done();
    if (micro <= std::max(done, begun_[stage])) return true;
    return micro < done + settings_[stage].ahead && has_room(stage, memory_[stage].next());
  }

  void start_what_may() {
    start_from(meetings_, false);
    for (std::size_t stage = 0; stage < ready_.size(); ++stage) {
      if (!has_room(stage, settings_[stage].weights_first ? memory_[stage].next() : 0))
        start_from(weights_[stage], true);
      for (auto& stream : ready_[stage]) start_from(stream, true);
      start_from(weights_[stage], true);
    }
  }

  void start_from(std::set<Entry>& ready, bool one_stream) {
    for (auto next = ready.begin(); next != ready.end();) {
      const std::int32_t id = std::get<3>(*next);
      if (!may_start(id)) {
        if (one_stream && busy(node(id).members[0])) return;
        // Where a forward pass may not begin, those of later micro batches may not, either.
        if (one_stream && kind(node(id).members[0]) == Kind::forward)
          next = ready.lower_bound({std::get<0>(*next) + 1, -1, 0, 0});
        else
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
      alive_[stage].start(blocks_of(member));
      const bool receives = ops::kind(at(member)) == ops::Kind::receive;
      follows_[stage].push_back(receives ? computed_[stage] : ir::InstructionId());
      if (kind(member) == Kind::forward && !receives) begun_[stage] = std::max(begun_[stage], at(member).micro_batch);
      if (at(member).stream == ir::Stream::compute) place_[std::size_t(id)] = ir::id_of(order_[stage].size());
      order_[stage].push_back(ir::id_of(member.instruction));
    }
    events_.push({now_ + node(id).ms, true, id});
  }

  const std::span<const RankClass> work_;
  const StageGraph& graph_;
  const std::vector<std::vector<Kind>>& kinds_;
  const std::span<const StageMemory> memory_;
  const std::span<const Settings> settings_;
  std::vector<LiveBlocks> alive_;     // by stage
  std::vector<int> begun_;            // by stage, the last micro batch whose forward pass has begun
  std::vector<std::size_t> missing_;  // by node, what it depends on and has not ended
  std::vector<double> ready_ms_;      // by node
  std::vector<std::array<bool, ir::stream_count>> busy_;
  std::vector<std::array<std::set<Entry>, ir::stream_count>> ready_;  // what one stage does alone
  std::vector<std::set<Entry>> weights_;                              // by stage
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
  Search(std::span<const RankClass> stages, const ir::Mesh& mesh, std::span<const std::int64_t> most_bytes)
      : work_(stages), mesh_(mesh), most_bytes_(most_bytes) {
    std::vector<RankClass> late;
    needed_.reserve(stages.size());
    for (const RankClass& stage : stages) {
      kinds_.push_back(pass_kinds(stage.program, stage.needed));
      memory_.emplace_back(stage.program, kinds_.back());
      needed_.push_back(with_late_recompute(stage, kinds_.back()));
      late.push_back({stage.program, needed_.back(), stage.op_costs, stage.interference, stage.launch_ms});
    }
    graph_ = stage_graph(late, mesh);
  }

  // The order with these settings; if each with less memory needs too much, as far as they say, nothing.
  std::optional<StagesOrder> with(std::vector<Settings> settings) {
    try_within_memory(settings);
    for (std::size_t stage = 0; !best_ && stage < settings.size(); ++stage)
      settings[stage].memory = first_memory(int(stage));
    if (!best_) try_within_memory(std::move(settings));
    return std::move(best_);
  }

  const std::vector<Settings>& settings() const { return best_settings_; }

  std::optional<StagesOrder> run() {
    const int stages = int(work_.size());
    for (const bool weights_first : {false, true})
      for (const bool backward_first : {false, true})
        for (int more = 0; more < stages; ++more) {
          std::vector<Settings> settings;
          for (int stage = 0; stage < stages; ++stage)
            settings.push_back({backward_first, weights_first, stages - stage + more, first_memory(stage)});
          try_within_memory(std::move(settings));
        }
    for (std::size_t stage = 0; best_ && stage < work_.size(); ++stage) change(stage);
    return std::move(best_);
  }

 private:
  std::int64_t first_memory(int stage) const {
    const std::int64_t all = memory_[std::size_t(stage)].all();
    return std::int64_t(most_memory * double(std::min(most_bytes_[std::size_t(stage)], all)));
  }

  // Changes one setting of a stage after the other.
  void change(std::size_t stage) {
    const auto with = [&](auto set) {
      std::vector<Settings> settings = best_settings_;
      set(settings[stage]);
      try_within_memory(std::move(settings));
    };
    with([](Settings& of) { of.backward_first = !of.backward_first; });
    with([](Settings& of) { of.weights_first = !of.weights_first; });
    with([](Settings& of) { ++of.ahead; });
    with([](Settings& of) { of.ahead = std::max(1, of.ahead - 1); });
    with([&](Settings& of) { of.memory = first_memory(int(stage)); });
  }

  // Counts on less where a stage needs too much memory, until none does.
  void try_within_memory(std::vector<Settings> settings) {
    for (bool fits = false; !fits;) {
      StagesOrder found = listed(settings);
      if (best_ && found.makespan >= best_->makespan * (1 - 1e-9)) return;
      fits = true;
      for (std::size_t stage = 0; stage < work_.size(); ++stage) {
        const double most = double(most_bytes_[stage]);
        const PipelineOrder& order = found.stages[stage];
        const double arena = double(arena_bytes(order.program, order.needed));
        if (arena <= most) continue;
        fits = false;
        const double memory = double(settings[stage].memory) * std::min(less_memory, most / arena);
        if (memory < least_memory * most) return;
        settings[stage].memory = std::int64_t(memory);
      }
      if (!fits) continue;
      best_ = std::move(found);
      best_settings_ = settings;
    }
  }

  StagesOrder listed(std::span<const Settings> settings) const {
    ListStages list(work_, graph_, kinds_, memory_, settings);
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
    std::vector<RankClass> work;
    for (std::size_t stage = 0; stage < orders.size(); ++stage)
      work.push_back({result.stages[stage].program, result.stages[stage].needed, op_costs[stage],
                      work_[stage].interference, work_[stage].launch_ms});
    result.makespan = simulate(work, mesh_).makespan;
    return result;
  }

  const std::span<const RankClass> work_;
  const ir::Mesh& mesh_;
  const std::span<const std::int64_t> most_bytes_;
  StageGraph graph_;
  std::vector<std::vector<Kind>> kinds_;
  std::vector<StageMemory> memory_;   // by stage
  std::vector<Dependencies> needed_;  // by stage
  std::optional<StagesOrder> best_;
  std::vector<Settings> best_settings_;  // by stage
};

}  // namespace

std::optional<StagesOrder> search_stages(std::span<const RankClass> stages, std::span<const RankClass> few,
                                         const ir::Mesh& mesh, std::span<const std::int64_t> most_bytes) {
  if (std::ranges::any_of(most_bytes, [](std::int64_t most) { return most <= 0; })) return std::nullopt;
  Search search(few, mesh, most_bytes);
  auto found = search.run();
  if (!found || few.data() == stages.data()) return found;
  return Search(stages, mesh, most_bytes).with(search.settings());
}

}  // namespace lancet::schedule
