#include "lancet/schedule/overlap.h"

namespace lancet::schedule {

Candidate program_order(const Step& step) {
  return as_it_is(step, "", step.program(), step.op_costs(), step.dependencies());
}

Candidate take_turns(const Step& step, const config::Overlap&, Candidate candidate) {
  Dependencies needed = turns(candidate.program, std::move(candidate.needed));
  return as_it_is(step, "compute and all-to-all take turns", std::move(candidate.program), std::move(candidate.op_costs),
                  std::move(needed));
}

}  // namespace lancet::schedule
