// The passes that hide communication behind computation. Each but order_micro_batches takes a candidate of the step,
// whose instructions are the step's own, and returns its own schedule if the simulator finds that shorter, else the
// candidate; those that others published do what their text says and are always applied. If overlap.parts forces a
// number of parts, a split is returned even if it is longer.
//
// Two algorithms place weight gradients (dW). move_dw assigns them to all-to-alls by the paper's greedy (assign_dw.h),
// for the policies `dw`, `neighbour_microbatches` and `lancet_paper`. In the orders of search_orders, which are those
// of all split steps and one of the unsplit step, the list scheduler places them as fillers: they run where the compute
// stream would wait for the network (orders.h, order_search.cpp).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lancet/config/config.h"
#include "lancet/cost/costs.h"
#include "lancet/ir/program.h"
#include "lancet/schedule/step.h"

namespace lancet::schedule {

// The step in program order, each instruction waiting for its dependencies alone.
Candidate program_order(const Step& step);

// Compute and all-to-all take turns: no overlap, as in a framework without it. Always applied.
Candidate take_turns(const Step& step, const config::Overlap& overlap, Candidate candidate);

// Tutel (Hwang et al., MLSys 2023): experts and their all-to-alls by slots, with a degree, that is a number of parts,
// for each kind of MoE layers, those that cost the same. Tutel adapts it while it trains; here the simulator chooses:
// the best degree for all layers alike, then kind by kind. Parts are tried stage by stage and in a list schedule. A
// forced overlap.parts leaves nothing to search.
Candidate degree_per_layer(const Step& step, const config::Overlap& overlap, Candidate candidate);
// FasterMoE's smart schedule (He et al., PPoPP 2022), in the order of its published code: all-to-alls to every group of
// ranks, the experts group by group, all-to-alls back. One number of groups for all layers. Where that order exceeds
// the memory, the groups are in a list schedule.
Candidate smart_schedule(const Step& step, const config::Overlap& overlap, Candidate candidate);
// Comet (Zhang et al., MLSys 2025), section 3.1, in both passes: received rows in tiles by the ranks that they come
// from, beside the experts' first product; the experts' last product in tiles of columns, each sent back as soon as it
// is made. The numbers of tiles are found for each kind of MoE layers. Left out, and described in docs/planning.md: one
// kernel that multiplies and sends, and adding up a token's experts before its row is sent back.
Candidate tile_experts(const Step& step, const config::Overlap& overlap, Candidate candidate);
// FlowMoE (Gao et al., NeurIPS 2025): attention, gate, experts and all-to-alls of both passes in one pipeline of parts
// of the batch. An all-to-all goes before an all-reduce; chunk_all_reduces then finds the size of the chunks, which
// FlowMoE finds by Bayesian optimisation. Weight gradients stay whole.
Candidate pipeline_both_passes(const Step& step, const config::Overlap& overlap, Candidate candidate);

// Collective matmul (Wang et al., Overlap Communication with Dependent Computation via Decomposition, ASPLOS 2023, and
// XLA's windowed einsum): an all-gather before products and a reduce-scatter after one become rings of permutes, beside
// the products of the windows that have come (ring_shards). All else takes turns.
Candidate collective_matmul(const Step& step, const config::Overlap& overlap, Candidate candidate);
// The micro batches of a step beside one another (Megatron-LM's overlap of all-to-alls across micro batches; DualPipe,
// DeepSeek-V3, section 3.2.1): the backward pass of one beside the forward pass of the next, so that all-to-alls of one
// run beside computation of the other. StagesSearch orders them as those of a single stage, within
// overlap.memory_factor. The candidate is the schedule of all micro batches; it stays where nothing is shorter.
Candidate order_micro_batches(const Step& step, const config::Overlap& overlap, Candidate candidate);

// Move weight gradients under the backward all-to-alls (dw_schedule.cpp), and cut all-reduces into chunks that run
// between all-to-alls (reduce_schedule.cpp). Always applied; each leaves the step unchanged if moving does not pay.
Candidate move_dw(const Step& step, const config::Overlap& overlap, Candidate candidate);
Candidate chunk_all_reduces(const Step& step, const config::Overlap& overlap, Candidate candidate);

// Splits ranges of the forward pass in parts and keeps the backward pass whole (Lancet, section 5).
Candidate split_forward(const Step& step, const config::Overlap& overlap, Candidate candidate);

// One pipeline around each MoE layer of the forward pass where that pays by the paper's own simulation (Lancet, section
// 5). Always applied. Chosen as the text says:
// - 5.1: the dynamic programme over T(n), on groups of instructions; section 7 gives their number between two layers
//   and the longest range, so that no range holds two layers. P(i, n, k) is infinite for a range without all-to-all,
//   and for one with a gate that needs the whole batch unless the range begins with it (2.3).
// - 5.2: a range of the all-to-alls and experts of a layer alone is split by capacity if that is shorter.
// - 5.2, Fig. 8a: what enters a pipeline is split, what leaves it is reconstructed, by copies. Experts' buffers have
//   their full size in every part (section 6), so reconstructing one is a copy of its filled rows.
// - 5.3: stages, parts in order within a stage, and P as the end of the last instruction.
// - 6: the all-to-all of sizes is in the stage of the all-to-all that it belongs to.
// Left open by the text, and chosen here: groups never cut an MoE layer between gate and combine, so the range of a
// layer alone stands for that of its all-to-alls and experts; part counts are powers of two that divide the batch; a
// copy waits for all parts, and runs after the pipeline where no part waits for it; experts work on filled rows only,
// since the text leaves padding to better kernels (section 8).
Candidate pipelines_with_copies(const Step& step, const config::Overlap& overlap, Candidate candidate);

// Moves weight gradients as the paper does (Lancet, section 4, Algorithm 1): messages beside computation are as fast as
// alone and cost the cores nothing, and nothing is compared with the step before. Always applied. All-reduces follow
// the gradients that they need and are as sync made them: the text leaves them to other systems (sections 1 and 8). The
// paper moves weight gradients before it makes pipelines; here it is the other way round, with the same result, since a
// weight gradient waits for the whole forward pass.
Candidate move_dw_greedily(const Step& step, const config::Overlap& overlap, Candidate candidate);

// Splits ranges of the forward pass, and their gradients, in parts, orders them by list scheduling, and fills the time
// in which the compute stream would wait for the network with weight gradients.
// Single MoE layers may be cut by source rows and columns or by capacity instead (layer_cuts.h).
Candidate search_orders(const Step& step, const config::Overlap& overlap, Candidate candidate);
// The same from the step with the rings of collective_matmul, chosen for a list schedule of all instructions.
Candidate search_orders_with_rings(const Step& step, const config::Overlap& overlap, Candidate candidate);

// The pass that lets the end of a step run beside the forward pass of the next one (ir/dependencies.h).

// Per instruction, true if the next step may execute it and the values stay the same: it closes the step and, where
// updates wait for the norm of the gradients (train.clip_grad, train.on_non_finite=skip), the norm is not made of it:
// the norm then belongs to its own step, and updates and gathers of weights (ZeRO-1) may cross.
std::vector<bool> may_cross_steps(const ir::Program& program);

// Per instruction, the earliest predicted time in the next step at which a tensor is used that it, or what depends on
// it, updates; infinite if there is none. Negative if it cannot be left to the next step: it may not
// (may_cross_steps), or an output of this step other than the norm of the gradients needs it.
std::vector<double> first_uses(const Candidate& candidate);

// The schedule in which a run begins with what `left` (per instruction) says of the step before; with an instruction,
// all that depend on it are left. All others keep their order, and what the candidate adds to their dependencies. Sums
// of gradients wait for an idle network, the most urgent first; updates run in gaps of the compute stream, at the
// latest before the first instruction that uses what they update. first_uses: of the candidate. Simulated: its makespan
// is the time from one run's start to the next one's.
Candidate with_end_in_next_step(const Step& step, const Candidate& candidate, const std::vector<bool>& left,
                                const std::vector<double>& first_uses);

// Leaves to the next step as much of the step's end as makes the period shortest: what would start late in the step and
// is used late in the next one. The arena stays within overlap.memory_factor, or grows no further. The candidate is the
// schedule of all micro batches; if nothing gains 0.2% of it, it stays as it is, but for why_not_across_steps.
Candidate across_steps(const Step& step, const config::Overlap& overlap, Candidate candidate);

// Moves weight gradients under the backward all-to-alls (Lancet, section 4), in steps without parts.

// The slack is the computation that the all-to-alls can hide: their times beside computation, less the core time of
// their bytes.
struct DwReport {
  double slack_ms = 0, covered_ms = 0;  // covered: by what was moved under them
  int movable = 0;                      // instructions that could have been moved
};
// Moves computation under all-to-alls that it is independent of (Lancet, section 4): dense and expert dWs, updates that
// wait for no all-reduce, and other computation beside an MoE layer. Algorithm 1: each all-to-all, in launch order,
// gets the instruction whose time is closest to what is left of its slack, until nothing is left of it or no
// instruction can be moved there. The text labels whatever no path joins to an all-to-all; an instruction that another
// one waits for keeps its place before it. The instructions assigned to an all-to-all follow it in the program;
// all-reduces move to where their gradients are now complete. op_costs: per instruction.
ir::Program dw_schedule(const ir::Program& program, std::span<const cost::OpCost> op_costs,
                        const cost::Interference& interference, DwReport* report = nullptr);

// Cuts the all-reduces of gradients into chunks, and schedules chunks that fit between the all-to-alls.
struct Chunked {
  ir::Program program;
  std::vector<cost::OpCost> op_costs;
};

// Replaces sync's buckets by all-reduces of about chunk_bytes, each after the instruction that completes it; large
// gradients are reduced in slices. op_costs: per instruction; those of new all-reduces are taken from `costs`.
Chunked cut_all_reduces(const ir::Program& program, std::span<const cost::OpCost> op_costs, const cost::Costs& costs,
                        std::int64_t chunk_bytes);

// At most `most` chunk sizes worth trying, in descending order: smaller than the largest bucket, and not so small that
// start-up times dominate, on the network or on the cores.
std::vector<std::int64_t> chunk_sizes(const ir::Program& program, const cost::Costs& costs, std::size_t most);

struct ReduceReport {
  std::int64_t chunk_bytes = 0;        // 0: the buckets of sync are unchanged
  double before_ms = 0, after_ms = 0;  // simulated makespans
};
// A Program and, per instruction, earlier ones that it waits for besides its dependencies.
struct Ordered {
  ir::Program program;
  std::vector<std::vector<ir::InstructionId>> extra;
};
// Re-chunks gradient all-reduces (sync's buckets), so that an all-to-all waits for one chunk at most, or shares the
// network with small ones. A chunk may wait for the all-to-all that is under way when the chunk is ready; updates at
// the end of the step run in the order in which their gradients become ready. Tries several chunk sizes, with such
// waits and without, and returns the shortest simulated step; the Program is unchanged if none is shorter.
Ordered reduce_schedule(const ir::Program& program, std::span<const cost::OpCost> op_costs, const cost::Costs& costs,
                        ReduceReport* report = nullptr);

// The pass that makes the schedule of a step of several micro batches from that of one.

// The program of `count` micro batches, one after the other, each in the order of the candidate's program, which is
// that of the last: the others leave out what closes the step (ir::closes_step). Its gradients add up in states, in the
// order of the micro batches. The streams do not wait at a micro batch's end: an instruction of the next one waits for
// its dependencies alone, and within a micro batch all that the candidate adds holds. Without times, which the caller
// simulates. count 1: the candidate's program itself.
Candidate in_micro_batches(const Candidate& one, int count);

}  // namespace lancet::schedule
