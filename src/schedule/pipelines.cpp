// The dynamic programme asks for the time P(i, n, k) of many ranges. Each is found by making it: the range alone, as a
// program whose outputs are what the rest of the step reads of it, is rewritten in k parts, with its copies, put in the
// order of its stages and simulated.
#include "pipelines.h"

#include <algorithm>
#include <array>
#include <limits>

#include "lancet/ir/dependencies.h"
#include "lancet/ops/catalogue.h"

namespace lancet::schedule {
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
    if (parts == 1 ? has_layer && forced_ : !has_layer || !can_split(begin, *layer)) return infeasible;
    const std::size_t first = groups_[std::size_t(begin)], last = groups_[std::size_t(end)];
    if (parts > 1 && !forced_ && least_ms(first, last, parts) >= whole_ms(first, last)) return infeasible;
    return parts > 1 ? pipeline_ms(first, last, parts) : whole_ms(first, last);
  }

 private:
  // What the busiest stream takes alone: no pipeline of the range in these parts is shorter.
  double least_ms(std::size_t first, std::size_t last, int parts) const {
    const Cut& batch = cut_named("batch");
    std::array<double, ir::stream_count> busy{};
    for (std::size_t i = first; i < last; ++i) {
      const int count = step_.rows(batch)[i] ? parts : 1;
      busy[std::size_t(step_.program().instructions[i].stream)] += count * step_.part_cost(batch, count, i).ms;
    }
    return *std::ranges::max_element(busy);
  }

  // The range that is not split; the dynamic programme asks for one range after the other.
  double whole_ms(std::size_t first, std::size_t last) const {
    if (last_whole_.first != Span{first, last}) last_whole_ = {{first, last}, pipeline_ms(first, last, 1)};
    return last_whole_.second;
  }

  // A gate that needs the whole batch can only be the first of a range (section 2.3: only what is after the layer is
  // then partitioned).
  bool can_split(int begin, int layer) const {
    return begin == layer || step_.rows(cut_named("batch"))[groups_[std::size_t(layer)]] != nullptr;
  }

  // The paper's simulation: an instruction starts when what it waits for has ended and its side is free. Sides do not
  // slow each other down.
  double pipeline_ms(std::size_t first, std::size_t last, int parts) const {
    Split split = step_.whole(cut_named("batch"));
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
    for (const ir::Instruction& at : made.program.instructions)
      for (const auto* list : {&at.operands, &at.results})
        for (ir::TensorId id : *list)
          for (; id.valid(); id = step[id].storage) touched.push_back(id);
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
    for (ir::Instruction& at : made.program.instructions) {
      for (const ir::TensorId id : at.results)
        if (last_reader_[id.index()] >= last) made.program.outputs.push_back({"", number[id.index()]});
      for (auto* list : {&at.operands, &at.results, &at.writes})
        for (ir::TensorId& id : *list) id = number[id.index()];
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
  mutable std::pair<Span, double> last_whole_;
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
  std::vector<int> parts{1};
  for (int count : step.part_counts(cut_named("batch"))) parts.push_back(count);
  const bool forced = overlap.parts > 1 && parts.size() > 1;
  const Ranges chosen = choose_ranges(int(groups.size()) - 1, longest_range(moe_groups(step, groups), overlap), parts,
                                      PipelineCosts(step, groups, forced));
  std::vector<Range> result;
  for (const Range& range : chosen.ranges)
    if (range.parts > 1)
      result.push_back({int(groups[std::size_t(range.begin)]), int(groups[std::size_t(range.end)]), range.parts});
  return result;
}

Split split_in_pipelines(const Step& step, const std::vector<Range>& ranges) {
  Split split = split_of(step, ranges, false);
  split.pipeline.assign(split.parts.size(), 0);
  for (std::size_t r = 0; r < ranges.size(); ++r)
    std::fill(split.pipeline.begin() + ranges[r].begin, split.pipeline.begin() + ranges[r].end, int(r) + 1);
  return split;
}

Order staged(const ir::Program& program, const Dependencies& dependencies, const std::vector<Span>& ranges) {
  Order order;
  auto keep_until = [&](std::size_t end) {
    while (order.size() < end) order.push_back(id_of(order.size()));
  };
  for (const Span& range : ranges) {
    keep_until(range.first);
    for (InstructionId id : by_stages(program, dependencies, range)) order.push_back(id);
  }
  keep_until(program.instructions.size());
  return order;
}

Order by_stages(const ir::Program& program, const Dependencies& dependencies, const Span& range) {
  const auto& instructions = program.instructions;
  const auto [begin, end] = range;
  constexpr int last_stage = std::numeric_limits<int>::max();
  std::vector<int> stage(instructions.size());
  std::vector<bool> feeds(instructions.size());  // a part waits for it
  for (std::size_t i = begin; i < end; ++i)
    for (InstructionId before : dependencies[i]) {
      if (before.index() < begin) continue;
      const ir::Instruction &from = instructions[before.index()], &to = instructions[i];
      const bool next = computes(from) != computes(to) || (is_split_part(from) && !is_split_part(to));
      stage[i] = std::max(stage[i], stage[before.index()] + next);
    }
  Order order;
  for (std::size_t i = end; i-- > begin;) {
    order.push_back(id_of(i));
    if (is_split_part(instructions[i])) feeds[i] = true;
    if (!feeds[i]) stage[i] = last_stage;
    for (InstructionId before : dependencies[i]) feeds[before.index()] = feeds[before.index()] || feeds[i];
  }
  std::reverse(order.begin(), order.end());
  std::ranges::stable_sort(order, {}, [&](InstructionId id) {
    const ir::Instruction& at = instructions[id.index()];
    return std::pair(stage[id.index()], stage[id.index()] == last_stage ? 0 : at.attributes.integer("part", -1));
  });
  return order;
}

}  // namespace lancet::schedule
