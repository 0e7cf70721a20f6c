// The pass that lets the end of a step run beside the forward pass of the next one (ir/step_border.h).
#pragma once
#include <vector>

#include "lancet/config/config.h"
#include "lancet/schedule/candidate.h"

namespace lancet::schedule {

// Per instruction, true if the next step may execute it and the values stay the same: it closes the step and, where
// updates wait for the norm of the gradients (train.clip_grad, train.on_non_finite=skip), gathers updated weights
// (ZeRO-1). The norm then belongs to its own step.
std::vector<bool> may_cross_steps(const ir::Program& program);

// Per instruction, the earliest predicted time in the next step at which a tensor is used that it, or what depends on
// it, updates; infinite if there is none. Negative if it cannot be left to the next step: it may not
// (may_cross_steps), or an output of this step other than the norm of the gradients needs it.
std::vector<double> first_uses(const Candidate& candidate);

// The schedule in which a run begins with what `left` (per instruction) says of the step before; with an instruction,
// all that depend on it are left. All others keep their order, and what the candidate adds to their dependencies. Sums
// of gradients wait for an idle network, the most urgent first; updates run in gaps of the compute stream, at the
// latest before the first instruction that uses what they update, or before the backward pass. first_uses: of the
// candidate. Simulated: its makespan is the time from one run's start to the next one's.
Candidate with_end_in_next_step(const Step& step, const Candidate& candidate, const std::vector<bool>& left,
                                const std::vector<double>& first_uses);

// Leaves to the next step as much of the step's end as makes the period shortest: what would start late in the step and
// is used late in the next one. The arena stays within overlap.memory_factor, or grows no further. The candidate is the
// schedule of all micro batches; if nothing gains 0.2% of it, it stays as it is, but for why_not_across_steps.
Candidate across_steps(const Step& step, const config::Overlap& overlap, Candidate candidate);

}  // namespace lancet::schedule
