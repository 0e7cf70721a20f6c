#include "lancet/ir/dependencies.h"
#include "lancet/schedule/overlap.h"
#include "pipelines.h"
#include "split_search.h"

namespace lancet::schedule {

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

}  // namespace lancet::schedule
