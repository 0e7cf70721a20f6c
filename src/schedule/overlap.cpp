#include "lancet/schedule/overlap.h"

namespace lancet::schedule {

Candidate program_order(const Step& step) {
  return as_it_is(step, "", step.program(), step.loads(), step.dependencies());
}

Candidate take_turns(const Step& step, const config::Overlap&, Candidate candidate) {
  Needed needed = taking_turns(candidate.program, std::move(candidate.needed));
  return as_it_is(step, "compute and all-to-all take turns", std::move(candidate.program), std::move(candidate.loads),
                  std::move(needed));
}

}  // namespace lancet::schedule
