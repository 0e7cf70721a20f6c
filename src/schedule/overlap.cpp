#include "lancet/schedule/overlap.h"

#include <fmt/format.h>
#include <algorithm>
#include <limits>
#include <optional>

#include "lancet/ir/dependencies.h"
#include "lancet/ir/micro_batches.h"
#include "lancet/schedule/simulate.h"
#include "lancet/schedule/stage_graph.h"
#include "orders.h"
#include "ranges.h"
#include "split_search.h"

namespace lancet::schedule {

Candidate program_order(const Step& step) {
  return as_it_is(step, "", step.program(), step.op_costs(), step.dependencies());
}

Candidate take_turns(const Step& step, const config::Overlap&, Candidate candidate) {
  Dependencies needed = turns(candidate.program, std::move(candidate.needed));
  return as_it_is(step, "compute and all-to-all take turns", std::move(candidate.program),
                  std::move(candidate.op_costs), std::move(needed));
}

namespace {

// The candidate with its weight gradients moved by these costs.
Candidate with_moved_dw(const Step& step, const std::string& how, const Candidate& candidate,
                        std::span<const cost::OpCost> costs, const cost::Interference& interference) {
  DwReport report;
  ir::Program program = dw_schedule(candidate.program, costs, interference, &report);
  std::vector<cost::OpCost> op_costs = cost::op_costs(step.costs(), program).value();
  Dependencies needed = ir::dependencies(program);
  return as_it_is(
      step,
      how + fmt::format("weight gradients cover {:.3g} of {:.3g} ms of all-to-all", report.covered_ms, report.slack_ms),
      std::move(program), std::move(op_costs), std::move(needed));
}

}  // namespace

Candidate move_dw(const Step& step, const config::Overlap&, Candidate candidate) {
  Candidate moved = with_moved_dw(step, "", candidate, candidate.op_costs, step.costs().interference());
  candidate.how = "weight gradients stay";
  return better(std::move(candidate), std::move(moved));
}

Candidate move_dw_greedily(const Step& step, const config::Overlap&, Candidate candidate) {
  std::vector<cost::OpCost> times;
  for (const cost::OpCost& op_cost : candidate.op_costs) times.push_back({op_cost.ms, 0});
  return with_moved_dw(step, candidate.how + (candidate.how.empty() ? "" : "; "), candidate, times, {});
}

Candidate chunk_all_reduces(const Step& step, const config::Overlap&, Candidate candidate) {
  ReduceReport report;
  Ordered ordered = reduce_schedule(candidate.program, candidate.op_costs, step.costs(), &report);
  std::vector<cost::OpCost> op_costs = cost::op_costs(step.costs(), ordered.program).value();
  Dependencies needed = ir::dependencies(ordered.program);
  join(needed, ordered.extra);
  if (report.chunk_bytes > 0) candidate.how += fmt::format("; all-reduces of {} KB", report.chunk_bytes >> 10);
  return as_it_is(step, std::move(candidate.how), std::move(ordered.program), std::move(op_costs), std::move(needed));
}

// The micro batches of a step are those of a pipeline of one stage. Weight gradients fill gaps. The search is on a few
// of them.
Candidate order_micro_batches(const Step& step, const config::Overlap& overlap, Candidate candidate) {
  constexpr int few = 6;
  const int count = ir::micro_batches(candidate.program);
  if (count == 1) return candidate;
  const auto class_of = [&](const Candidate& of, const Dependencies& needed) {
    return RankClass{of.program, needed, of.op_costs, step.costs().interference(), step.costs().launch_ms()};
  };
  const Dependencies needed = ir::dependencies(candidate.program);
  const RankClass all = class_of(candidate, needed);
  const bool is_long = candidate.one && count > few;
  const Candidate sample = is_long ? in_micro_batches(*candidate.one, few) : Candidate();
  const Dependencies needed_of_sample = ir::dependencies(sample.program);
  const RankClass some = class_of(sample, needed_of_sample);
  const std::int64_t most_bytes = overlap.memory_factor == 0
                                      ? std::numeric_limits<std::int64_t>::max()
                                      : std::int64_t(overlap.memory_factor * double(step.arena_bytes()));
  const ir::Mesh one_stage;
  auto found = StagesSearch({&all, 1}, {is_long ? &some : &all, 1}, one_stage).within({&most_bytes, 1});
  if (!found) return candidate;
  auto& [program, dependencies] = found->stages.front();
  std::vector<cost::OpCost> op_costs = cost::op_costs(step.costs(), program).value();
  Candidate ordered = as_it_is(step, "micro batches beside one another; " + candidate.how, std::move(program),
                               std::move(op_costs), std::move(dependencies));
  return better(std::move(candidate), std::move(ordered));
}

Candidate pipeline_both_passes(const Step& step, const config::Overlap& overlap, Candidate candidate) {
  candidate.how = "both passes whole";
  const auto in_parts = [&](Candidate best) {
    for (int parts : step.part_counts(step.token_cut())) {
      const auto split = split_step(step, split_of(step, {{0, int(step.forward_end()), parts}}, true));
      for (double lead : part_leads)
        replace_if_better(best, step, overlap, {.fill_gaps = false, .lead = lead, .backward_lead = lead}, *split,
                          fmt::format("both passes in {} parts", parts));
    }
    return best;
  };
  return or_forced_split(std::move(candidate), step, overlap, step.token_cut(), in_parts);
}

// The program with each pipeline in the order of its stages; all else stays in program order.
Candidate pipelines_with_copies(const Step& step, const config::Overlap& overlap, Candidate candidate) {
  if (step.part_counts(cut_named("batch")).empty()) return candidate;
  const std::vector<Range> ranges = choose_pipelines(step, overlap);
  const Split split = split_in_pipelines(step, ranges);
  const Rewritten rewritten = rewrite(step.program(), split);
  std::vector<Span> spans;
  for (const Range& range : ranges)
    spans.push_back(position_of(rewritten, std::size_t(range.begin), std::size_t(range.end)));
  const Order order = staged(rewritten.program, ir::dependencies(rewritten.program), spans);
  ir::Program program = permuted(rewritten.program, order);
  Dependencies needed = ir::dependencies(program);
  return as_it_is(step, describe(step, ranges), std::move(program), permuted(step.op_costs(rewritten, split), order),
                  std::move(needed));
}

// The backward pass is as in `sequential`.
Candidate split_forward(const Step& step, const config::Overlap& overlap, Candidate candidate) {
  candidate.how = "no range pays";
  const auto in_parts = [&](Candidate best) {
    for (const std::vector<Range>& ranges : range_choices(step, overlap)) {
      const Split split = split_of(step, ranges, false);
      std::string key = "forward in";
      for (const auto& [begin, end, parts, by_capacity] : ranges)
        key += fmt::format(" {}-{} {}{}", begin, end, parts, by_capacity ? "c" : "");
      const Rewritten rewritten = rewrite(step.program(), split);
      const Orders orders(rewritten.program, step.op_costs(rewritten, split),
                          {position_of(rewritten, 0, step.forward_end())});
      for (double lead : part_leads) {
        const auto ordered = [&](const ListOptions& options) {
          const Order order = orders.find(options).order;
          ir::Program program = orders.program(order);
          Dependencies needed = turns(program, orders.needed(order));
          return as_it_is(step, describe(step, ranges), std::move(program), orders.op_costs(order), std::move(needed));
        };
        replace_if_better(best, step, overlap, {.fill_gaps = false, .lead = lead}, key, ordered);
      }
    }
    return best;
  };
  return or_forced_split(std::move(candidate), step, overlap, step.token_cut(), in_parts);
}

// Each micro batch gets copies of the instructions and of all tensors that they make, and of the inputs that they read;
// parameters, states and the inputs of what closes the step are shared. The copies run one after the other in the
// program. What the candidate's policy adds to the dependencies (turns, chunks that wait for all-to-alls) is copied as
// well; the dependencies between micro batches, which go through the sums of gradients and through memory, are those of
// the whole program.
namespace {

using ir::InstructionId;
using ir::TensorId;
using ir::TensorKind;

class Copies {
 public:
  Copies(const Candidate& one, int count)
      : one_(one),
        source_(one.program),
        count_(count),
        closes_(ir::closes_step(source_)),
        belongs_(source_.tensors.size()),
        shared_(source_.tensors.size()) {
    for (std::size_t i = 0; i < closes_.size(); ++i)
      if (!closes_[i]) mark(source_.instructions[i]);
  }

  Candidate run() {
    result_.how = one_.how;
    result_.program.name = source_.name;
    result_.program.attributes = source_.attributes;
    for (std::size_t i = 0; i < source_.tensors.size(); ++i)
      if (source_.tensors[i].number < 0) shared_[i] = add_named(source_.tensors[i], 0);
    for (int micro = 0; micro < count_; ++micro) copy(micro);
    join(result_.needed, ir::dependencies(result_.program));
    return std::move(result_);
  }

 private:
  bool is_last(int micro) const { return micro + 1 == count_; }

  // Marks what each micro batch has of its own among the tensors of an instruction, with the memory that these are in.
  void mark(const ir::Instruction& at) {
    for (const auto* list : {&at.operands, &at.results})
      for (TensorId id : *list)
        for (; id.valid(); id = source_[id].storage)
          if (const TensorKind kind = source_[id].kind; kind != TensorKind::parameter && kind != TensorKind::state)
            belongs_[id.index()] = true;
    for (const ir::Instruction& part : at.body) mark(part);
  }

  TensorId add_named(const ir::Tensor& tensor, int micro) {
    const TensorId id =
        result_.program.add_named(tensor.kind, ir::of_micro_batch(tensor.name, micro), tensor.type, tensor.sharding);
    result_.program[id].flat_shard = tensor.flat_shard;
    return id;
  }

  void copy(int micro) {
    now_ = shared_;
    copy_tensors(micro);
    std::vector<InstructionId> position(source_.instructions.size());
    for (std::size_t i = 0; i < position.size(); ++i) {
      if (closes_[i] && !is_last(micro)) continue;
      position[i] = ir::id_of(result_.program.instructions.size());
      result_.program.instructions.push_back(copied(source_.instructions[i], closes_[i] ? 0 : micro));
      if (!one_.op_costs.empty()) result_.op_costs.push_back(one_.op_costs[i]);
      std::vector<InstructionId>& needed = result_.needed.emplace_back();
      for (const InstructionId before : one_.needed[i])
        if (position[before.index()].valid()) needed.push_back(position[before.index()]);
    }
    for (const ir::Output& output : source_.outputs) {
      const bool own = belongs_[output.tensor.index()];
      if (own || is_last(micro))
        result_.program.add_output(ir::of_micro_batch(output.name, own ? micro : 0), now_[output.tensor.index()]);
    }
  }

  // A tensor may be in the memory of one that comes after it in the table.
  void copy_tensors(int micro) {
    std::vector<std::size_t> made;
    for (std::size_t i = 0; i < belongs_.size(); ++i) {
      const ir::Tensor& tensor = source_.tensors[i];
      if (!belongs_[i] && (tensor.number < 0 || !is_last(micro))) continue;
      if (tensor.kind == TensorKind::input) {
        if (micro > 0) now_[i] = add_named(tensor, micro);
        continue;
      }
      now_[i] = tensor.kind == TensorKind::view ? result_.program.add_view(tensor.type)
                                                : result_.program.add_value(tensor.type);
      made.push_back(i);
    }
    for (const std::size_t i : made) {
      const ir::Tensor& tensor = source_.tensors[i];
      ir::Tensor& copy = result_.program[now_[i]];
      if (tensor.storage.valid()) copy.storage = now_[tensor.storage.index()];
      copy.slice = tensor.slice;
      copy.sharding = tensor.sharding;
    }
  }

  ir::Instruction copied(ir::Instruction at, int micro) const {
    for (auto* list : {&at.operands, &at.results, &at.writes})
      for (TensorId& id : *list) id = now_[id.index()];
    for (ir::Instruction& part : at.body) part = copied(std::move(part), micro);
    at.micro_batch = micro;
    return at;
  }

  const Candidate& one_;
  const ir::Program& source_;
  const int count_;
  const std::vector<bool> closes_;  // by instruction
  std::vector<bool> belongs_;       // by tensor: each micro batch has its own
  std::vector<TensorId> shared_;    // by tensor: the copy of one with a name
  std::vector<TensorId> now_;       // by tensor: its copy in the micro batch that is being made
  Candidate result_;
};

}  // namespace

Candidate in_micro_batches(const Candidate& one, int count) { return count == 1 ? one : Copies(one, count).run(); }

}  // namespace lancet::schedule
