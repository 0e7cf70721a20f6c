// Ranges are sought over groups of instructions instead of single ones, which keeps the dynamic programme small. An MoE
// layer from its choice of experts to its combine is one group (from its gate on, if that needs the whole batch), since
// all readers of filled slots must see them in the same number of parts. The instructions between layers form groups of
// about equal time. RangeCosts evaluates a range by list scheduling of its instructions alone, each split one as
// `parts` jobs: part p needs part p of what it reads, a whole instruction all parts. A gradient is matched to its
// forward instruction by the label, which autodiff copies.
#include "ranges.h"

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <unordered_map>

#include "lancet/ir/dependencies.h"
#include "lancet/ops/catalogue.h"
#include "orders.h"

namespace lancet::schedule {
namespace {

constexpr double impossible = std::numeric_limits<double>::infinity();

class RangeCosts {
 public:
  RangeCosts(const Step& step, const std::vector<std::size_t>& groups)
      : step_(step),
        cut_(step.token_cut()),
        rows_(step.rows(cut_)),
        groups_(groups),
        dependencies_(ir::dependencies(step.program())) {}

  double operator()(int begin, int end, int parts) const {
    const std::size_t first = groups_[std::size_t(begin)], last = groups_[std::size_t(end)];
    if (parts > 1 && !has_messages(first, last)) return impossible;
    const auto [found, is_new] = step_.notes().range_ms.try_emplace({first, last, std::size_t(parts)});
    if (is_new) found->second = list_schedule(jobs(first, last, parts), {.fill_gaps = false}).makespan;
    return found->second;
  }

 private:
  bool has_messages(std::size_t first, std::size_t last) const {
    for (std::size_t i = first; i < last; ++i)
      if (step_.program().instructions[i].stream == ir::Stream::expert) return true;
    return false;
  }

  bool is_split(std::size_t i, int parts) const { return parts > 1 && rows_[i]; }

  std::vector<Job> jobs(std::size_t first, std::size_t last, int parts) const {
    std::vector<Job> jobs;
    std::vector<std::int32_t> start;  // the first job of each instruction
    for (std::size_t i = first; i < last; ++i) {
      const ir::Instruction& at = step_.program().instructions[i];
      const bool split = is_split(i, parts);
      start.push_back(std::int32_t(jobs.size()));
      for (int p = 0; p < (split ? parts : 1); ++p) {
        Job job{.stream = at.stream,
                .ms = step_.part_cost(cut_, split ? parts : 1, i, p).ms,
                .part = split ? p : -1,
                .needs = {},
                .blocks = {}};
        for (ir::InstructionId need : dependencies_[i]) {
          if (need.index() < first) continue;
          const std::int32_t from = start[need.index() - first];
          if (!is_split(need.index(), parts)) {
            job.needs.push_back(from);
          } else if (split) {
            job.needs.push_back(from + p);
          } else {
            for (int q = 0; q < parts; ++q) job.needs.push_back(from + q);
          }
        }
        if (p > 0 && ops::op(at.op).continued) job.needs.push_back(start.back() + p - 1);
        jobs.push_back(std::move(job));
      }
    }
    return jobs;
  }

  const Step& step_;
  const Cut& cut_;
  const AxisRows& rows_;
  const std::vector<std::size_t>& groups_;
  const Dependencies dependencies_;
};

bool reads(const ir::Instruction& reader, const ir::Instruction& maker) {
  return std::ranges::any_of(reader.operands,
                             [&](ir::TensorId id) { return std::ranges::count(maker.results, id) > 0; });
}

// True for a gate that no row splits, and for the choice of experts that another gate gives slots to: the latter is
// split in the same parts, the former is not worth splitting what it reads.
bool begins_layer(const Step& step, std::size_t i) {
  const auto& instructions = step.program().instructions;
  const AxisRows& rows = step.rows(step.token_cut());
  const auto is_split = [&](std::size_t gate) { return rows[gate] != nullptr; };
  if (ops::kind(instructions[i]) == ops::Kind::gate) return !is_split(i);
  if (ops::kind(instructions[i]) != ops::Kind::choice) return false;
  for (std::size_t gate = i + 1; gate < step.forward_end(); ++gate)
    if (ops::kind(instructions[gate]) == ops::Kind::gate && reads(instructions[gate], instructions[i]))
      return is_split(gate);
  return false;
}

// The last instruction of the forward pass that reads what is decided there, or has the label of one that does:
// gradients follow a label's instructions, so these stay together.
std::size_t last_reader(const Step& step, std::size_t decision) {
  const auto& instructions = step.program().instructions;
  std::size_t last = decision;
  for (std::size_t i = decision + 1; i < step.forward_end(); ++i)
    if (reads(instructions[i], instructions[decision]) || instructions[i].label == instructions[last].label) last = i;
  return last;
}

// The ranges of instructions in several parts that the programme chooses over these groups.
std::vector<Range> split_ranges_of(const Step& step, const std::vector<std::size_t>& groups, int longest,
                                   const RangeCost& cost) {
  std::vector<int> parts{1};
  for (int count : step.part_counts(step.token_cut())) parts.push_back(count);
  std::vector<Range> result;
  for (const Range& range : choose_ranges(int(groups.size()) - 1, longest, parts, cost).ranges)
    if (range.parts > 1)
      result.push_back({int(groups[std::size_t(range.begin)]), int(groups[std::size_t(range.end)]), range.parts});
  return result;
}

}  // namespace

// Dynamic programme over prefixes: best[n] is the shortest time T(n) of the first n groups with the range that ends at
// n. Following the last ranges back from n = groups gives the ranges. Strict comparison, with i and the parts in
// ascending order, breaks ties for the longest range first and then for the fewest parts.
Ranges choose_ranges(int groups, int max_range, std::span<const int> parts, const RangeCost& cost) {
  struct Best {
    double ms = std::numeric_limits<double>::infinity();
    Range last;
  };
  std::vector<Best> best(std::size_t(groups) + 1);
  best[0].ms = 0;
  for (int n = 1; n <= groups; ++n)
    for (int i = std::max(0, n - max_range); i < n; ++i)
      for (int k : parts) {
        const double ms = best[std::size_t(i)].ms + cost(i, n, k);
        if (ms < best[std::size_t(n)].ms) best[std::size_t(n)] = {ms, {i, n, k}};
      }
  Ranges result{{}, best[std::size_t(groups)].ms};
  for (int n = groups; n > 0; n = best[std::size_t(n)].last.begin) result.ranges.push_back(best[std::size_t(n)].last);
  std::reverse(result.ranges.begin(), result.ranges.end());
  return result;
}

std::vector<std::size_t> forward_groups(const Step& step, int groups_per_moe) {
  const auto& instructions = step.program().instructions;
  std::vector<bool> glued(step.forward_end());  // in the same group as the instruction before
  double between = 0;
  int layers = 0;
  for (std::size_t i = 0; i < step.forward_end(); ++i) {
    if (!begins_layer(step, i)) {
      between += instructions[i].stream == ir::Stream::compute ? step.op_costs()[i].ms : 0;
      continue;
    }
    ++layers;
    for (const std::size_t end = last_reader(step, i); i < end;) glued[++i] = true;
  }
  const double length = between / std::max(1, layers) / groups_per_moe;
  std::vector<std::size_t> boundaries{0};
  double filled = 0;
  for (std::size_t i = 1; i < step.forward_end(); ++i) {
    if (glued[i]) continue;
    filled += step.op_costs()[i - 1].ms;
    if (!begins_layer(step, i) && !glued[i - 1] && filled < length) continue;
    boundaries.push_back(i);
    filled = 0;
  }
  boundaries.push_back(step.forward_end());
  return boundaries;
}

std::vector<int> moe_groups(const Step& step, const std::vector<std::size_t>& groups) {
  std::vector<int> layers;
  for (std::size_t g = 0; g + 1 < groups.size(); ++g)
    if (begins_layer(step, groups[g])) layers.push_back(int(g));
  return layers;
}

std::vector<Range> choose_forward_ranges(const Step& step, const config::Overlap& overlap) {
  const std::vector<std::size_t> groups = forward_groups(step, static_cast<int>(overlap.groups_per_moe));
  return split_ranges_of(step, groups, max_range, RangeCosts(step, groups));
}

std::vector<Range> ranges_of_reach(const Step& step, const config::Overlap& overlap, int parts) {
  const std::vector<std::size_t> groups = forward_groups(step, static_cast<int>(overlap.groups_per_moe));
  const std::vector<int> layers = moe_groups(step, groups);
  const int reach = static_cast<int>(overlap.reach);
  std::vector<Range> ranges;
  int free = 0;  // the first group that is in no range yet
  for (std::size_t l = 0; l < layers.size(); ++l) {
    const int next = l + 1 < layers.size() ? layers[l + 1] : int(groups.size()) - 1;
    const int begin = std::max(free, layers[l] - reach), end = std::min(next, layers[l] + reach + 1);
    ranges.push_back({int(groups[std::size_t(begin)]), int(groups[std::size_t(end)]), parts});
    free = end;
  }
  return ranges;
}

Split split_of(const Step& step, const std::vector<Range>& ranges, bool with_backward) {
  Split split = step.whole(step.token_cut());
  const auto& instructions = step.program().instructions;
  std::unordered_map<std::string, int> by_label;
  for (const Range& range : ranges)
    for (int i = range.begin; i < range.end; ++i) {
      if (split.rows[std::size_t(i)]) split.parts[std::size_t(i)] = range.parts;
      by_label[instructions[std::size_t(i)].label] = range.parts;
    }
  for (std::size_t i = step.forward_end(); with_backward && i < instructions.size(); ++i) {
    const auto it = by_label.find(instructions[i].label);
    if (it != by_label.end() && split.rows[i]) split.parts[i] = it->second;
  }
  if (!step.token_cut().by_positions) return split;
  const std::vector<std::size_t> makers = ir::makers_of(step.program());
  for (std::size_t i = step.forward_end(); i < instructions.size(); ++i)
    if (const auto& positions = ops::op(instructions[i].op).positions; positions && positions->as >= 0)
      split.parts[i] = split.parts[makers[instructions[i].operands[std::size_t(positions->as)].index()]];
  return split;
}

void cut_span(Split& split, const Step& step, const Span& span, const Cut& by, int parts) {
  const AxisRows& rows = step.rows(by);
  for (std::size_t i = span.first; i < span.second; ++i) {
    if (!rows[i]) continue;
    split.rows[i] = rows[i];
    split.parts[i] = parts;
    split.cuts[i] = &by;
  }
}

// The dynamic programme asks for the time P(i, n, k) of many ranges. Each is found by making it: the range alone, as a
// program whose outputs are what the rest of the step reads of it, is rewritten in k parts, with its copies, put in the
// order of its stages and simulated.
namespace {

using ir::id_of;
using ir::InstructionId;

constexpr double infeasible = std::numeric_limits<double>::infinity();

bool is_split_part(const ir::Instruction& at) { return at.attributes.has("parts"); }
bool computes(const ir::Instruction& at) { return at.stream == ir::Stream::compute; }

class PipelineCosts {
 public:
  PipelineCosts(const Step& step, const std::vector<std::size_t>& groups, bool forced)
      : step_(step),
        groups_(groups),
        layers_(moe_groups(step, groups)),
        forced_(forced),
        per_token_(per_token_tensors(step.program())) {
    last_reader_.assign(step.program().tensors.size(), 0);
    for (std::size_t i = 0; i < step.program().instructions.size(); ++i)
      for (ir::TensorId id : step.program().instructions[i].operands) last_reader_[id.index()] = i;
    for (const ir::Output& output : step.program().outputs)
      last_reader_[output.tensor.index()] = step.program().instructions.size();
  }

  double operator()(int begin, int end, int parts) const {
    const auto layer = std::ranges::lower_bound(layers_, begin);
    const bool has_layer = layer != layers_.end() && *layer < end;
    // A gate that needs the whole batch can only be the first of a range (section 2.3: only what is after the layer is
    // then partitioned).
    const bool can_split =
        has_layer && (begin == *layer || step_.rows(cut_named("batch"))[groups_[std::size_t(*layer)]]);
    if (parts == 1 ? has_layer && forced_ : !can_split) return infeasible;
    const std::size_t first = groups_[std::size_t(begin)], last = groups_[std::size_t(end)];
    if (parts == 1) return whole_ms(first, last);
    const double ms = in_parts(cut_named("batch"), first, last, parts);
    return begin == *layer && end == begin + 1 ? std::min(ms, in_parts(cut_named("capacity"), first, last, parts)) : ms;
  }

  // True if the pipeline of the range is shorter if it is split by capacity (section 5.2). A layer's range that holds
  // more than its experts and all-to-alls cannot be split so.
  bool is_by_capacity(const Range& range) const {
    const auto first = std::size_t(range.begin), last = std::size_t(range.end);
    return std::ranges::any_of(layers_, [&](int layer) {
      return groups_[std::size_t(layer)] == first && groups_[std::size_t(layer) + 1] == last &&
             in_parts(cut_named("capacity"), first, last, range.parts) <
                 in_parts(cut_named("batch"), first, last, range.parts);
    });
  }

 private:
  double in_parts(const Cut& cut, std::size_t first, std::size_t last, int parts) const {
    if (!forced_ && least_ms(cut, first, last, parts) >= whole_ms(first, last)) return infeasible;
    return noted_ms(cut, first, last, parts);
  }

  // What the busiest stream takes alone: no pipeline of the range in these parts is shorter.
  double least_ms(const Cut& cut, std::size_t first, std::size_t last, int parts) const {
    std::array<double, ir::stream_count> busy{};
    for (std::size_t i = first; i < last; ++i) {
      const int count = step_.rows(cut)[i] ? parts : 1;
      busy[std::size_t(step_.program().instructions[i].stream)] += count * step_.part_cost(cut, count, i).ms;
    }
    return *std::ranges::max_element(busy);
  }

  double whole_ms(std::size_t first, std::size_t last) const { return noted_ms(cut_named("batch"), first, last, 1); }

  double noted_ms(const Cut& cut, std::size_t first, std::size_t last, int parts) const {
    const auto [found, is_new] = step_.notes().pipeline_ms[&cut].try_emplace({first, last, std::size_t(parts)});
    if (is_new) found->second = pipeline_ms(cut, first, last, parts);
    return found->second;
  }

  // The paper's simulation: an instruction starts when what it waits for has ended and its side is free. Sides do not
  // slow each other down.
  double pipeline_ms(const Cut& cut, std::size_t first, std::size_t last, int parts) const {
    Split split = step_.whole(cut);
    for (std::size_t i = first; i < last; ++i)
      if (split.rows[i]) split.parts[i] = parts;
    const Alone alone = range(first, last);
    Rewritten made = rewrite(alone.program, of_range(split, first, last, alone.per_token));
    for (int& origin : made.origin)
      if (origin >= 0) origin += int(first);
    std::vector<cost::OpCost> times = step_.op_costs(made, split);
    for (cost::OpCost& time : times) time.core_ms = 0;
    const Dependencies dependencies = ir::dependencies(made.program);
    const Order order = by_stages(made.program, dependencies, {0, made.program.instructions.size()});
    return makespan_in_order(made.program, order, dependencies, times, {}, 0);
  }

  // A range as a program of its own, with the tensors that it touches and those in whose memory they are, in the step's
  // order; per_token: of these.
  struct Alone {
    ir::Program program;
    std::vector<bool> per_token;
  };

  Alone range(std::size_t first, std::size_t last) const {
    const ir::Program& step = step_.program();
    const auto begin = step.instructions.begin();
    Alone made;
    made.program.instructions.assign(begin + std::ptrdiff_t(first), begin + std::ptrdiff_t(last));
    std::vector<ir::TensorId> touched;
    const auto touch = [&](const ir::Instruction& at) {
      for (const auto* list : {&at.operands, &at.results})
        for (ir::TensorId id : *list)
          for (; id.valid(); id = step[id].storage) touched.push_back(id);
    };
    for (const ir::Instruction& at : made.program.instructions) {
      touch(at);
      std::ranges::for_each(at.body, touch);
    }
    std::ranges::sort(touched);
    touched.erase(std::unique(touched.begin(), touched.end()), touched.end());
    std::vector<ir::TensorId> number(step.tensors.size());
    for (const ir::TensorId id : touched) {
      number[id.index()] = {std::int32_t(made.program.tensors.size())};
      made.program.tensors.push_back(step[id]);
      made.per_token.push_back(per_token_[id.index()]);
    }
    for (ir::Tensor& tensor : made.program.tensors)
      if (tensor.storage.valid()) tensor.storage = number[tensor.storage.index()];
    const auto renumber = [&](ir::Instruction& at) {
      for (auto* list : {&at.operands, &at.results, &at.writes})
        for (ir::TensorId& id : *list) id = number[id.index()];
    };
    for (ir::Instruction& at : made.program.instructions) {
      for (const ir::TensorId id : at.results)
        if (last_reader_[id.index()] >= last) made.program.outputs.push_back({"", number[id.index()]});
      renumber(at);
      std::ranges::for_each(at.body, renumber);
    }
    return made;
  }

  Split of_range(const Split& split, std::size_t first, std::size_t last, std::vector<bool> per_token) const {
    const auto begin = std::ptrdiff_t(first), end = std::ptrdiff_t(last);
    Split result{{split.rows.begin() + begin, split.rows.begin() + end},
                 {split.parts.begin() + begin, split.parts.begin() + end},
                 {split.cuts.begin() + begin, split.cuts.begin() + end}};
    result.per_token = std::move(per_token);
    result.pipeline.assign(last - first, 0);
    return result;
  }

  const Step& step_;
  const std::vector<std::size_t>& groups_;
  const std::vector<int> layers_;
  const bool forced_;                     // no MoE layer stays whole
  const std::vector<bool> per_token_;     // of the step
  std::vector<std::size_t> last_reader_;  // by tensor; beyond the step: an output
};

// iota in groups: as many as are between two MoE layers, so that no range holds two.
int longest_range(const std::vector<int>& layers, const config::Overlap& overlap) {
  int longest = layers.size() > 1 ? max_range : std::min(max_range, int(overlap.groups_per_moe));
  for (std::size_t l = 1; l < layers.size(); ++l) longest = std::min(longest, layers[l] - layers[l - 1] - 1);
  return std::max(longest, 1);
}

}  // namespace

std::vector<Range> choose_pipelines(const Step& step, const config::Overlap& overlap) {
  const std::vector<std::size_t> groups = forward_groups(step, int(overlap.groups_per_moe));
  const bool forced = overlap.parts > 1 && !step.part_counts(cut_named("batch")).empty();
  const PipelineCosts costs(step, groups, forced);
  std::vector<Range> ranges =
      split_ranges_of(step, groups, longest_range(moe_groups(step, groups), overlap), std::cref(costs));
  for (Range& range : ranges) range.by_capacity = costs.is_by_capacity(range);
  return ranges;
}

Split split_in_pipelines(const Step& step, const std::vector<Range>& ranges) {
  std::vector<Range> by_batch = ranges;
  std::erase_if(by_batch, &Range::by_capacity);
  Split split = split_of(step, by_batch, false);
  for (const Range& range : ranges)
    if (range.by_capacity)
      cut_span(split, step, {std::size_t(range.begin), std::size_t(range.end)}, cut_named("capacity"), range.parts);
  split.pipeline.assign(split.parts.size(), 0);
  for (std::size_t r = 0; r < ranges.size(); ++r)
    std::fill(split.pipeline.begin() + ranges[r].begin, split.pipeline.begin() + ranges[r].end, int(r) + 1);
  return split;
}

Order in_ranges(std::size_t count, const std::vector<Span>& ranges, const std::function<Order(const Span&)>& order_of) {
  Order order;
  auto keep_until = [&](std::size_t end) {
    while (order.size() < end) order.push_back(id_of(order.size()));
  };
  for (const Span& range : ranges) {
    keep_until(range.first);
    for (InstructionId id : order_of(range)) order.push_back(id);
  }
  keep_until(count);
  return order;
}

Order by_phases(const Dependencies& dependencies, const Span& range, const Phases& phases) {
  const auto [begin, end] = range;
  constexpr int last_phase = std::numeric_limits<int>::max();
  std::vector<int> phase(end);
  std::vector<bool> feeds(end);
  for (std::size_t i = begin; i < end; ++i)
    for (InstructionId before : dependencies[i])
      if (before.index() >= begin)
        phase[i] = std::max(phase[i], phase[before.index()] + phases.ends_between(before.index(), i));
  Order order;
  for (std::size_t i = end; i-- > begin;) {
    order.push_back(id_of(i));
    if (phases.is_awaited(i)) feeds[i] = true;
    if (!feeds[i]) phase[i] = last_phase;
    for (InstructionId before : dependencies[i]) feeds[before.index()] = feeds[before.index()] || feeds[i];
  }
  std::ranges::reverse(order);
  std::ranges::stable_sort(order, {}, [&](InstructionId id) {
    const int of = phase[id.index()];
    return std::pair(of, phases.part(id.index(), of == last_phase));
  });
  return order;
}

Order staged(const ir::Program& program, const Dependencies& dependencies, const std::vector<Span>& ranges) {
  return in_ranges(program.instructions.size(), ranges,
                   [&](const Span& range) { return by_stages(program, dependencies, range); });
}

Order by_stages(const ir::Program& program, const Dependencies& dependencies, const Span& range) {
  const auto& instructions = program.instructions;
  return by_phases(
      dependencies, range,
      {.ends_between =
           [&](std::size_t before, std::size_t i) {
             const ir::Instruction &from = instructions[before], &to = instructions[i];
             return computes(from) != computes(to) || (is_split_part(from) && !is_split_part(to));
           },
       .is_awaited = [&](std::size_t i) { return is_split_part(instructions[i]); },
       .part = [&](std::size_t i,
                   bool is_last) { return is_last ? 0 : instructions[i].attributes.integer("part", -1); }});
}

}  // namespace lancet::schedule
