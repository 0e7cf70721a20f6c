// The search is list scheduling (list_schedule.cpp) over the graph of all stages, each a rank class. One pass, forward
// or backward, goes before the other, and within a pass the earlier micro batch, then what has the longest chain to the
// end of the step, over all stages. Weight gradients (stage_graph.h: W) are fillers: they run where nothing else does.
//
// A stage begins the forward pass of a micro batch only if less than `ahead` are between its own and the first whose
// backward pass has not ended, and if its memory has room for what the pass keeps and for a backward pass. Where there
// is no room for a backward pass, W goes before all others. The search begins with the `ahead` of 1F1B and with more,
// since a message's way back and forth takes time in which others can run. What is alive at once is less than the
// arena, and a stage need not have all of a pass at once, so the memory that the stages count on is searched, too: it
// begins with more than they have, and is taken down where a planned arena is too large.
//
// A receive has no operand, so nothing in the program keeps it from running far ahead of its reader, and its memory
// from being occupied. It therefore needs the computation that has ended last when it starts. What is recomputed
// could run right after the forward pass, and free nothing. It needs what its backward pass computes before it, or the
// gradient that this pass begins with, so that it may run beside an all-to-all.
//
// What is searched are a few settings of each stage, not an order, and they are those of a pipeline that is full. They
// are searched on a few of the micro batches, and then used for all, so that the time of a search hardly grows with the
// micro batches.
#include "lancet/schedule/stage_graph.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>

#include "lancet/base/check.h"
#include "lancet/ir/dependencies.h"
#include "lancet/ir/micro_batches.h"
#include "lancet/ops/catalogue.h"
#include "lancet/schedule/plan_memory.h"
#include "orders.h"

namespace lancet::schedule {

// The memory that a stage counts on, relative to what it has: at first, at the next try at most, and at the last.
constexpr double most_memory = 1.4, less_memory = 0.985, least_memory = 0.5;

using Kind = PassKind;

// The memory of a stage: its tensors, and what a micro batch takes if it runs alone in the order of the program.
struct StageMemory {
  Blocks blocks;
  std::int64_t kept = 0, forward = 0;  // at the end of the forward pass, and the most in it
  std::int64_t backward = 0;           // the most in the backward pass, on top of what is kept

  StageMemory(const ir::Program& program, const std::vector<Kind>& kinds) : blocks(program) {
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
  // What a forward pass needs besides room for a backward pass.
  std::int64_t next() const { return std::max(kept, forward - backward); }
  // Of all tensors.
  std::int64_t all() const { return std::accumulate(blocks.bytes.begin(), blocks.bytes.end(), std::int64_t{0}); }
};

namespace {

// The dependencies with those of what is recomputed.
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

// The nodes of the graph as jobs of rank classes. A weight gradient is a filler.
std::vector<Job> jobs_of(std::span<const RankClass> stages, const StageGraph& graph,
                         const std::vector<std::vector<Kind>>& kinds, std::span<const StageMemory> memory) {
  const auto member_of = [&](const StageNode::Member& member) {
    const auto stage = std::size_t(member.stage);
    const ir::Instruction& at = stages[stage].program.instructions[member.instruction];
    JobMember made{.of = member.stage, .stream = at.stream, .blocks = memory[stage].blocks.of[member.instruction]};
    made.arrives = ops::kind(at) == ops::Kind::receive;
    // What arrives for a micro batch does so while the one before it runs.
    if (kinds[stage][member.instruction] == Kind::forward) made.begins = at.micro_batch - (made.arrives ? 1 : 0);
    if (kinds[stage][member.instruction] == Kind::backward) made.ends = at.micro_batch;
    return made;
  };
  std::vector<Job> jobs;
  for (const StageNode& node : graph.nodes) {
    const StageNode::Member& first = node.members.front();
    JobMember own = member_of(first);
    Job job{.of = own.of, .stream = own.stream, .ms = node.ms, .needs = {}, .blocks = std::move(own.blocks)};
    job.begins = own.begins;
    job.ends = own.ends;
    job.arrives = own.arrives;
    job.filler = kinds[std::size_t(first.stage)][first.instruction] == Kind::weight;
    for (const auto& [before, lag] : node.before) {
      job.needs.push_back(before);
      job.lags.push_back(lag);
    }
    for (std::size_t i = 1; i < node.members.size(); ++i) job.others.push_back(member_of(node.members[i]));
    jobs.push_back(std::move(job));
  }
  return jobs;
}

}  // namespace

class StagesSearch::Search {
 public:
  Search(std::span<const RankClass> stages, const ir::Mesh& mesh) : work_(stages), mesh_(mesh) {
    std::vector<RankClass> late;
    needed_.reserve(stages.size());
    for (const RankClass& stage : stages) {
      kinds_.push_back(pass_kinds(stage.program, stage.needed));
      memory_.emplace_back(stage.program, kinds_.back());
      needed_.push_back(with_late_recompute(stage, kinds_.back()));
      late.push_back({stage.program, needed_.back(), stage.op_costs, stage.interference, stage.launch_ms});
    }
    graph_ = stage_graph(late, mesh);
    jobs_.emplace(jobs_of(stages, graph_, kinds_, memory_));
    for (const StageNode& node : graph_.nodes) least_ms_.push_back(node.tail_ms);
  }

  // The order with these settings; if each with less memory needs too much, as far as they say, nothing.
  std::optional<StagesOrder> with(std::vector<StageSettings> settings, std::span<const std::int64_t> most_bytes) {
    most_bytes_ = most_bytes;
    best_.reset();
    try_within_memory(settings);
    for (std::size_t stage = 0; !best_ && stage < settings.size(); ++stage)
      settings[stage].memory = first_memory(int(stage));
    if (!best_) try_within_memory(std::move(settings));
    return best_;
  }

  const std::vector<StageSettings>& settings() const { return best_settings_; }

  // An order that is shorter than those found before within less memory; else nothing.
  std::optional<StagesOrder> run(std::span<const std::int64_t> most_bytes) {
    return shorter(most_bytes, [&] { try_all(); });
  }
  // The same, of orders with these settings alone.
  std::optional<StagesOrder> run(std::span<const std::int64_t> most_bytes,
                                 std::span<const std::vector<StageSettings>> known) {
    return shorter(most_bytes, [&] {
      for (std::vector<StageSettings> settings : known) {
        for (std::size_t stage = 0; stage < settings.size(); ++stage) settings[stage].memory = first_memory(int(stage));
        try_within_memory(std::move(settings));
      }
    });
  }

 private:
  std::optional<StagesOrder> shorter(std::span<const std::int64_t> most_bytes, const auto& search) {
    most_bytes_ = most_bytes;
    const double before = best_ ? best_->makespan : std::numeric_limits<double>::infinity();
    search();
    return best_ && best_->makespan < before ? best_ : std::nullopt;
  }

  void try_all() {
    const int stages = int(work_.size());
    for (const bool weights_first : {false, true})
      for (const bool backward_first : {false, true})
        for (int more = 0; more < std::max(4, stages); ++more) {
          std::vector<StageSettings> settings;
          for (int stage = 0; stage < stages; ++stage)
            settings.push_back({backward_first, weights_first, false, stages - stage + more, first_memory(stage)});
          try_within_memory(std::move(settings));
        }
    if (best_) {
      std::vector<StageSettings> fitting = best_settings_;
      for (StageSettings& of : fitting) of.best_filler = true;
      try_within_memory(std::move(fitting));
    }
    for (std::size_t stage = 0; best_ && stage < work_.size(); ++stage) change(stage);
  }

  std::int64_t first_memory(int stage) const {
    const std::int64_t all = memory_[std::size_t(stage)].all();
    return std::int64_t(most_memory * double(std::min(most_bytes_[std::size_t(stage)], all)));
  }

  // Changes one setting of a stage after the other.
  void change(std::size_t stage) {
    const auto with = [&](auto set) {
      std::vector<StageSettings> settings = best_settings_;
      set(settings[stage]);
      try_within_memory(std::move(settings));
    };
    with([](StageSettings& of) { of.backward_first = !of.backward_first; });
    with([](StageSettings& of) { of.weights_first = !of.weights_first; });
    with([](StageSettings& of) { of.best_filler = !of.best_filler; });
    with([](StageSettings& of) { ++of.ahead; });
    with([](StageSettings& of) { of.ahead = std::max(1, of.ahead - 1); });
    with([&](StageSettings& of) { of.memory = first_memory(int(stage)); });
  }

  // Counts on less where a stage needs too much memory, until none does. What is alive at once in a list schedule is
  // known before its order is simulated, or packed into arenas. An order is evaluated if its list schedule is shorter
  // than the best evaluated one.
  void try_within_memory(std::vector<StageSettings> settings) {
    const std::vector<double> urgency = urgencies(settings);
    const std::size_t stages = work_.size();
    StagesOrder found{std::vector<PipelineOrder>(stages), 0, std::vector<std::int64_t>(stages)};
    Listed last{std::vector<Order>(stages), std::vector<Dependencies>(stages)};
    while (counts_on_enough(settings)) {
      const ListSchedule list =
          list_schedule(*jobs_, urgency, classes(settings), {least_ms_, best_ ? best_->makespan : ListBound().most_ms});
      if (best_ && list.makespan >= best_->makespan) return;
      if (!fits(list.peak_bytes, settings)) continue;
      Listed now = listed(list);
      if (now.of != last.of || now.needed != last.needed) {
        found.makespan = simulated(now);
        if (best_ && found.makespan >= best_->makespan * (1 - 1e-9)) return;
        for (std::size_t stage = 0; stage < stages; ++stage) {
          if (now.of[stage] == last.of[stage] && now.needed[stage] == last.needed[stage]) continue;
          PipelineOrder& of = found.stages[stage];
          of = {permuted(work_[stage].program, now.of[stage]), renumbered(now.needed[stage], now.of[stage])};
          found.arenas[stage] = arena_bytes(of.program, of.needed);
        }
        last = std::move(now);
      }
      if (!fits(found.arenas, settings)) continue;
      best_ = std::move(found);
      best_settings_ = settings;
      return;
    }
  }

  bool counts_on_enough(std::span<const StageSettings> settings) const {
    for (std::size_t stage = 0; stage < settings.size(); ++stage)
      if (double(settings[stage].memory) < least_memory / most_memory * double(first_memory(int(stage)))) return false;
    return true;
  }

  // Whether no stage needs too much. Those that do count on less.
  bool fits(std::span<const std::int64_t> bytes, std::vector<StageSettings>& settings) const {
    bool fits = true;
    for (std::size_t stage = 0; stage < bytes.size(); ++stage) {
      const std::int64_t most = most_bytes_[stage];
      if (bytes[stage] <= most) continue;
      fits = false;
      std::int64_t& memory = settings[stage].memory;
      memory = std::int64_t(double(memory) * std::min(less_memory, double(most) / double(bytes[stage])));
    }
    return fits;
  }

  // One pass, forward or backward, goes before the other, then the earlier micro batch, then the longest chain.
  std::vector<double> urgencies(std::span<const StageSettings> settings) const {
    std::vector<std::tuple<int, int, double, std::size_t>> sorted;
    for (std::size_t id = 0; id < graph_.nodes.size(); ++id) {
      const StageNode& node = graph_.nodes[id];
      const auto& [stage, instruction] = node.members.front();
      const Kind kind = kinds_[std::size_t(stage)][instruction];
      const bool late = kind == Kind::late;
      const int pass = late ? 2 : settings[std::size_t(stage)].backward_first == (kind == Kind::forward) ? 1 : 0;
      const int micro = work_[std::size_t(stage)].program.instructions[instruction].micro_batch;
      sorted.emplace_back(pass, late ? 0 : micro, -node.tail_ms, id);
    }
    std::ranges::sort(sorted);
    std::vector<double> urgency(sorted.size());
    for (std::size_t place = 0; place < sorted.size(); ++place) urgency[std::get<3>(sorted[place])] = -double(place);
    return urgency;
  }

  std::vector<ListClass> classes(std::span<const StageSettings> settings) const {
    std::vector<ListClass> classes;
    for (std::size_t stage = 0; stage < settings.size(); ++stage) {
      const StageMemory& memory = memory_[stage];
      ListClass& of = classes.emplace_back();
      of.options.shared_network = false;
      of.options.best_filler = settings[stage].best_filler;
      of.memory.bytes = memory.blocks.bytes;
      of.ahead = settings[stage].ahead;
      of.begin_bytes = settings[stage].memory - memory.backward - memory.next();
      of.options.memory_bytes =
          settings[stage].weights_first ? of.begin_bytes : settings[stage].memory - memory.backward;
    }
    return classes;
  }

  // By stage: its instructions by their start, and what each needs; a receive, the computation that has ended last.
  struct Listed {
    std::vector<Order> of;
    std::vector<Dependencies> needed;
  };

  Listed listed(const ListSchedule& list) const {
    Listed result{std::vector<Order>(work_.size()), {}};
    for (const RankClass& stage : work_) result.needed.push_back(stage.needed);
    std::vector<std::vector<std::pair<double, ir::InstructionId>>> computed(work_.size());  // and when it ends
    for (const ir::InstructionId id : list.order) {
      const StageNode& node = graph_.nodes[id.index()];
      for (const auto& [stage, instruction] : node.members) {
        const auto of = std::size_t(stage);
        const ir::Instruction& at = work_[of].program.instructions[instruction];
        if (ops::kind(at) == ops::Kind::receive) {
          const auto later = std::ranges::upper_bound(computed[of], list.end[id.index()] - node.ms, {},
                                                      [](const auto& one) { return one.first; });
          if (later != computed[of].begin()) result.needed[of][instruction].push_back(std::prev(later)->second);
        }
        if (at.stream == ir::Stream::compute) computed[of].emplace_back(list.end[id.index()], ir::id_of(instruction));
        result.of[of].push_back(ir::id_of(instruction));
      }
    }
    return result;
  }

  double simulated(const Listed& orders) const {
    std::vector<RankClass> classes;
    for (std::size_t stage = 0; stage < work_.size(); ++stage)
      classes.push_back({work_[stage].program, orders.needed[stage], work_[stage].op_costs, work_[stage].interference,
                         work_[stage].launch_ms, orders.of[stage]});
    return simulate(classes, mesh_).makespan;
  }

  const std::span<const RankClass> work_;
  const ir::Mesh& mesh_;
  std::span<const std::int64_t> most_bytes_;
  StageGraph graph_;
  std::vector<std::vector<Kind>> kinds_;
  std::vector<StageMemory> memory_;   // by stage
  std::optional<JobList> jobs_;       // by node
  std::vector<double> least_ms_;      // likewise: from its start to the end of the step
  std::vector<Dependencies> needed_;  // by stage
  std::optional<StagesOrder> best_;
  std::vector<StageSettings> best_settings_;  // by stage
};

StagesSearch::StagesSearch(std::span<const RankClass> stages, std::span<const RankClass> few, const ir::Mesh& mesh)
    : few_(std::make_unique<Search>(few, mesh)) {
  if (few.data() != stages.data()) all_ = std::make_unique<Search>(stages, mesh);
}
StagesSearch::~StagesSearch() = default;

std::optional<StagesOrder> StagesSearch::within(std::span<const std::int64_t> most_bytes,
                                                std::span<const std::vector<StageSettings>> known) {
  if (std::ranges::any_of(most_bytes, [](std::int64_t most) { return most <= 0; })) return std::nullopt;
  auto found = known.empty() ? few_->run(most_bytes) : few_->run(most_bytes, known);
  return found && all_ ? all_->with(few_->settings(), most_bytes) : found;
}

const std::vector<StageSettings>& StagesSearch::settings() const { return few_->settings(); }

}  // namespace lancet::schedule
