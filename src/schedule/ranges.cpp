// Ranges are sought over groups of instructions instead of single ones, which keeps the dynamic programme small. An MoE
// layer from its choice of experts to its combine is one group (from its gate on, if that needs the whole batch), since
// all readers of filled slots must see them in the same number of parts. The instructions between layers form groups of
// about equal time. RangeCosts evaluates a range by list scheduling of its instructions alone, each split one as
// `parts` jobs: part p needs part p of what it reads, a whole instruction all parts. A gradient is matched to its
// forward instruction by the label, which autodiff copies.
#include "ranges.h"

#include <algorithm>
#include <limits>
#include <unordered_map>

#include "lancet/ir/dependencies.h"
#include "lancet/ops/catalogue.h"
#include "list_schedule.h"

namespace lancet::schedule {
namespace {

constexpr double impossible = std::numeric_limits<double>::infinity();

class RangeCosts {
 public:
  RangeCosts(const Step& step, const std::vector<std::size_t>& groups)
      : step_(step), groups_(groups), dependencies_(ir::dependencies(step.program())) {}

  double operator()(int begin, int end, int parts) const {
    const std::size_t first = groups_[std::size_t(begin)], last = groups_[std::size_t(end)];
    if (parts > 1 && !has_messages(first, last)) return impossible;
    return list_schedule(jobs(first, last, parts), {.fill_gaps = false}).makespan;
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
                .ms = step_.part_cost(batch_, split ? parts : 1, i).ms,
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
  const Cut& batch_ = cut_named("batch");
  const AxisRows& rows_ = step_.rows(batch_);
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
  const AxisRows& rows = step.rows(cut_named("batch"));
  const auto is_split = [&](std::size_t gate) { return rows[gate] != nullptr; };
  if (ops::kind(instructions[i]) == ops::Kind::gate) return !is_split(i);
  if (ops::kind(instructions[i]) != ops::Kind::choice) return false;
  for (std::size_t gate = i + 1; gate < step.forward_end(); ++gate)
    if (ops::kind(instructions[gate]) == ops::Kind::gate && reads(instructions[gate], instructions[i]))
      return is_split(gate);
  return false;
}

// The last instruction of the forward pass that reads what is decided there.
std::size_t last_reader(const Step& step, std::size_t decision) {
  const auto& instructions = step.program().instructions;
  std::size_t last = decision;
  for (std::size_t i = decision + 1; i < step.forward_end(); ++i)
    if (reads(instructions[i], instructions[decision])) last = i;
  return last;
}

}  // namespace

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
  std::vector<int> parts{1};
  for (int count : step.part_counts(cut_named("batch"))) parts.push_back(count);
  const Ranges chosen = choose_ranges(int(groups.size()) - 1, max_range, parts, RangeCosts(step, groups));
  std::vector<Range> result;
  for (const Range& range : chosen.ranges)
    if (range.parts > 1)
      result.push_back({int(groups[std::size_t(range.begin)]), int(groups[std::size_t(range.end)]), range.parts});
  return result;
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
  Split split = step.whole(cut_named("batch"));
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
  return split;
}

}  // namespace lancet::schedule
