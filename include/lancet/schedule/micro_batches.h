// The pass that makes the schedule of a step of several micro batches from that of one.
#pragma once
#include "lancet/schedule/candidate.h"

namespace lancet::schedule {

// The program of `count` micro batches, one after the other, each in the order of the candidate's program, which is
// that of the last: the others leave out what closes the step (ir::closes_step). Its gradients add up in states, in the
// order of the micro batches. The streams do not wait at a micro batch's end: an instruction of the next one waits for
// its dependencies alone, and within a micro batch all that the candidate adds holds. Without times, which the caller
// simulates. count 1: the candidate's program itself.
Candidate in_micro_batches(const Candidate& one, int count);

}  // namespace lancet::schedule
