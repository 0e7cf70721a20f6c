// The order in which a pipeline stage runs the passes of its micro batches.
#pragma once
#include "lancet/config/config.h"
#include "lancet/schedule/simulate.h"

namespace lancet::schedule {

struct PipelineOrder {
  ir::Program program;
  Dependencies needed;  // ir::dependencies, turns, and what keeps receives from running far ahead
};

// How long W waits under zero bubble, and whether it runs beside all-to-alls.
struct WaitingWeights {
  int delay = 0;  // backward passes, from 0 to the number of the stage
  bool dealt = false;
};

// By instruction, the W of a stage's program: weight gradients that no other instruction reads but all-reduces and what
// closes the step, and what is made again for them alone. dependencies: those of the program.
std::vector<bool> waiting_weights(const ir::Program& program, const Dependencies& dependencies);

// program: the micro batches of a stage one after the other (micro_batches.h), of which the last has what closes the
// step. F is what a micro batch runs before its first instruction of the backward pass, W is waiting_weights(), B the
// rest. A stage of v chunks (passes/stages.h) receives between them; each has an F, a B and a W of its own, and passes
// are ordered as those of chunks are: `stages` micro batches through one chunk, then through the next.
//
// one_forward_one_backward: (v - 1) stages + stages - 1 - stage times F, then F and B in turns, then the rest of B,
// each B with its W (PipeDream-Flush, and for v > 1 the interleaved schedule; Narayanan et al., SC 2021, section 2.2).
// The activations are at most those of `stages` micro batches. Megatron-LM runs stages - 1 - stage times F more before
// the first B if v > 1, which keeps more of them; with B apart from W the bubble of equal passes is the same.
//
// zero_bubble: the same, but W of a pass follows the B of the pass `delay` after it. The paper's delay is
// `stage`, which keeps the activations of at most `stages` micro batches, as the first stage does without (ZB-H1; Qi et
// al., Zero Bubble Pipeline Parallelism, ICLR 2024, section 2.2). Where there is a delay and W is `dealt`, it is listed
// in equal numbers behind the all-to-alls of that B, and runs beside them; otherwise, behind B.
//
// All-reduces and updates keep their order and run once they can. Computation and all-to-alls take turns but for those
// W, and for what is made again. A value is received no earlier than the pass before the last one has ended.
// waiting: of zero_bubble alone. schedule: one of these two; others order all stages together
// (search_stages.h).
PipelineOrder in_pipeline_order(const ir::Program& program, config::PipelineSchedule schedule, int stage, int stages,
                                WaitingWeights waiting);

}  // namespace lancet::schedule
