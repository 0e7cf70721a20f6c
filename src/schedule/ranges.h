// Chooses the parts of the step that are split: groups of the forward pass, and partition ranges over them.
#pragma once
#include <vector>

#include "lancet/schedule/step.h"
#include "partition/split_facts.h"

namespace lancet::schedule {

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

}  // namespace lancet::schedule
