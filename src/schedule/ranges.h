// Where the step is worth splitting: the groups of the forward pass and the partition ranges over them.
#pragma once
#include <cstdint>
#include <vector>

#include "lancet/schedule/step.h"
#include "partition/choose_ranges.h"

namespace lancet::schedule {

// The forward pass cut in groups: boundaries[g] is the first instruction of group g, the last entry the end. The
// instructions from a layer's gate to its combine are one group; those between layers are cut where about 1 /
// groups_per_moe of their time has passed.
std::vector<std::size_t> forward_groups(const Step& step, int groups_per_moe);

// Ranges of instructions [begin, end), parts > 1, by the dynamic programme; the cost of a range is its list schedule.
std::vector<Range> choose_forward_ranges(const Step& step, const config::Overlap& overlap);

// One range around each MoE layer, `reach` groups before and after it (fewer where another layer's range, or the end,
// is nearer), all in so many parts (Lancet, Fig. 6).
std::vector<Range> ranges_of_reach(const Step& step, const config::Overlap& overlap, int parts);

// The split that these ranges of the forward pass mean; with_backward: the same for the instructions that are their
// gradients with respect to activations.
Split split_of(const Step& step, const std::vector<Range>& ranges, bool with_backward);

}  // namespace lancet::schedule
