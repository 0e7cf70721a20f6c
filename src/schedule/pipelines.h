// The pipelines of the Lancet paper (section 5): which ranges of the forward pass form one, and in what order their
// parts run.
#pragma once
#include <vector>

#include "orders.h"
#include "ranges.h"

namespace lancet::schedule {

// The ranges of instructions that the dynamic programme of section 5.1 chooses: at most one an MoE layer, in at most
// overlap.max_parts parts. overlap.groups_per_moe is the paper's gamma; iota is the distance of two MoE layers, or
// max_range where that is shorter.
std::vector<Range> choose_pipelines(const Step& step, const config::Overlap& overlap);

// The split of the forward pass in these pipelines. Parts have memory of their own: a pipeline splits what enters it
// and joins what leaves it, and so ends before the next.
Split split_in_pipelines(const Step& step, const std::vector<Range>& ranges);

// An order of the program in which each range is stage by stage and all else stays where it is.
Order staged(const ir::Program& program, const Dependencies& dependencies, const std::vector<Span>& ranges);

// The instructions of [begin, end) stage by stage (section 5.3, Fig. 9), in each stage the parts by their number. A
// stage is what runs on one side, computation or communication, between two changes of side. Instructions that no part
// waits for come last. dependencies: of the program.
Order by_stages(const ir::Program& program, const Dependencies& dependencies, const Span& range);

}  // namespace lancet::schedule
