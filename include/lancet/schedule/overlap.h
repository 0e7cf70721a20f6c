// The passes that hide communication behind computation. Each takes a candidate of the step, whose instructions are the
// step's own, and returns its own schedule if the simulator finds that shorter, else the candidate. If overlap.parts
// forces a number of parts, a split is returned even if it is longer.
//
// Two algorithms place weight gradients (dW). move_dw assigns them greedily to all-to-alls (assign_dw.h); its schedule
// is that of policy `dw`, and of `lancet` if search_orders finds no shorter one. In the orders of search_orders, which
// are those of all split steps and one of the unsplit step, the list scheduler places them as fillers: they run where
// the compute stream would wait for the network (list_schedule.h, order_search.cpp).
#pragma once
#include "lancet/config/config.h"
#include "lancet/schedule/candidate.h"

namespace lancet::schedule {

// The step in program order, each instruction waiting for its dependencies alone.
Candidate program_order(const Step& step);

// Compute and all-to-all take turns: no overlap, as in a framework without it. Always applied.
Candidate take_turns(const Step& step, const config::Overlap& overlap, Candidate candidate);

// Split the experts and their all-to-alls: by slots (Tutel), or by groups of ranks (FasterMoE).
Candidate split_experts_by_capacity(const Step& step, const config::Overlap& overlap, Candidate candidate);
Candidate split_experts_by_peers(const Step& step, const config::Overlap& overlap, Candidate candidate);

// Move weight gradients under the backward all-to-alls (dw_schedule.h), and cut all-reduces into chunks that run
// between all-to-alls (reduce_schedule.h). Always applied; each leaves the program unchanged if moving does not pay.
Candidate move_dw(const Step& step, const config::Overlap& overlap, Candidate candidate);
Candidate chunk_all_reduces(const Step& step, const config::Overlap& overlap, Candidate candidate);

// Splits ranges of the forward pass in parts and keeps the backward pass whole (Lancet, section 5).
Candidate split_forward(const Step& step, const config::Overlap& overlap, Candidate candidate);

// Splits ranges of the forward pass, and their gradients, in parts, orders them by list scheduling, and fills the time
// in which the compute stream would wait for the network with weight gradients.
Candidate search_orders(const Step& step, const config::Overlap& overlap, Candidate candidate);

}  // namespace lancet::schedule
