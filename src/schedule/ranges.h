// Chooses the parts of the step that are split: groups of the forward pass, and partition ranges over them.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "lancet/schedule/step.h"
#include "orders.h"

namespace lancet::schedule {

// The dynamic programme over partition ranges (Lancet, section 5.1).

// The groups [begin, end), each instruction in `parts` parts.
struct Range {
  int begin = 0, end = 0, parts = 1;
  bool by_capacity = false;  // only the experts and their all-to-alls are split, by the filled slots of each expert
  friend bool operator==(const Range&, const Range&) = default;
};

struct Ranges {
  std::vector<Range> ranges;  // all groups, in order
  double ms = 0;
};

// Milliseconds of the groups [begin, end) in `parts` parts; infinity if they cannot be split so.
using RangeCost = std::function<double(int begin, int end, int parts)>;

// T(n) = min over i, k of T(i) + cost(i, n, k), with ranges of at most max_range groups and k of `parts` (ascending, 1
// among them). Ties go to the longest range and the fewest parts.
Ranges choose_ranges(int groups, int max_range, std::span<const int> parts, const RangeCost& cost);

inline constexpr int max_range = 16;  // iota (Lancet, section 5): groups in one partition range

// Cuts the forward pass in groups and returns their boundaries: entry g is the first instruction of group g, the last
// entry the end. The instructions from a layer's choice of experts to its combine are one group (from its gate on, if
// that needs the whole batch); those between layers are cut into groups of about 1 / groups_per_moe of their time.
std::vector<std::size_t> forward_groups(const Step& step, int groups_per_moe);

// The groups that hold an MoE layer, in order.
std::vector<int> moe_groups(const Step& step, const std::vector<std::size_t>& groups);

// The ranges of instructions [begin, end) with parts > 1 that the dynamic programme chooses; the cost of a range is the
// makespan of its list schedule.
std::vector<Range> choose_forward_ranges(const Step& step, const config::Overlap& overlap);

// One range around each MoE layer, `reach` groups before and after it (fewer where another layer's range, or the end,
// is nearer), all in `parts` parts (Lancet, Fig. 6).
std::vector<Range> ranges_of_reach(const Step& step, const config::Overlap& overlap, int parts);

// The split of these ranges of the forward pass; with_backward: also of the instructions that compute their gradients
// with respect to activations.
Split split_of(const Step& step, const std::vector<Range>& ranges, bool with_backward);

// Splits what has a row of the cut.
void cut_span(Split& split, const Step& step, const Span& span, const Cut& by, int parts);

// The pipelines of the Lancet paper (section 5): which ranges of the forward pass form one, and in what order their
// parts run.

// The ranges of instructions that the dynamic programme of section 5.1 chooses: at most one an MoE layer, in at most
// overlap.max_parts parts. A range that is a layer alone is split by the batch or by capacity (5.2), whichever is
// shorter. overlap.groups_per_moe is the paper's gamma; iota is the distance of two MoE layers, or
// max_range where that is shorter.
std::vector<Range> choose_pipelines(const Step& step, const config::Overlap& overlap);

// The split of the forward pass in these pipelines. Parts have memory of their own: a pipeline splits what enters it
// and joins what leaves it, and so ends before the next.
Split split_in_pipelines(const Step& step, const std::vector<Range>& ranges);

// An order of `count` instructions in which each range, ascending, has that order and all else stays where it is.
Order in_ranges(std::size_t count, const std::vector<Span>& ranges, const std::function<Order(const Span&)>& order_of);

// How the instructions of a range are ordered, each said by its number: by their phases, in a phase by their parts.
struct Phases {
  std::function<bool(std::size_t before, std::size_t i)> ends_between;  // one ends on the way to what waits for it
  // All that nothing awaited waits for comes last.
  std::function<bool(std::size_t i)> is_awaited;
  std::function<std::int64_t(std::size_t i, bool is_last)> part;
};
Order by_phases(const Dependencies& dependencies, const Span& range, const Phases& phases);

// An order of the program in which each range is stage by stage and all else stays where it is.
Order staged(const ir::Program& program, const Dependencies& dependencies, const std::vector<Span>& ranges);

// The instructions of [begin, end) stage by stage (section 5.3, Fig. 9), in each stage the parts by their number. A
// stage is what runs on one side, computation or communication, between two changes of side. Instructions that no part
// waits for come last. dependencies: of the program.
Order by_stages(const ir::Program& program, const Dependencies& dependencies, const Span& range);

}  // namespace lancet::schedule
