// The passes that hide communication behind computation. Each takes a candidate of the step, whose instructions are the
// step's own, and returns one: its own schedule where the simulator finds that shorter, else the candidate. Where
// overlap.parts forces a number of parts, a split is returned even if it is longer.
#pragma once
#include "lancet/config/config.h"
#include "lancet/schedule/candidate.h"

namespace lancet::schedule {

// The step in program order, each instruction waiting for its dependencies alone.
Candidate program_order(const Step& step);

// Compute and all-to-all take turns: no overlap, as in a framework without it. Always applied.
Candidate take_turns(const Step& step, const config::Overlap& overlap, Candidate candidate);

// The experts and their all-to-alls in parts: by slots (Tutel), or by groups of ranks (FasterMoE).
Candidate split_experts_by_capacity(const Step& step, const config::Overlap& overlap, Candidate candidate);
Candidate split_experts_by_peers(const Step& step, const config::Overlap& overlap, Candidate candidate);

// Weight gradients under the backward all-to-alls (dw_schedule.h), then all-reduces in chunks between all-to-alls
// (reduce_schedule.h). Always applied; each leaves the program as it is where moving does not pay.
Candidate move_dw(const Step& step, const config::Overlap& overlap, Candidate candidate);
Candidate chunk_all_reduces(const Step& step, const config::Overlap& overlap, Candidate candidate);

// Ranges of the forward pass in parts, the backward pass whole (Lancet, section 5).
Candidate split_forward(const Step& step, const config::Overlap& overlap, Candidate candidate);

// Ranges of the forward pass and their gradients in parts, in the order that list scheduling finds best, weight
// gradients filling the gaps of the network.
Candidate search_orders(const Step& step, const config::Overlap& overlap, Candidate candidate);

}  // namespace lancet::schedule
