// The passes that make a training step of a forward Program. Each is a pure function Program -> Program: no globals,
// clock, environment or unordered iteration; the same input gives the same bytes.
#pragma once
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/cost/costs.h"
#include "lancet/ir/plan.h"
#include "lancet/ir/program.h"
#include "lancet/planner/simulate.h"

namespace lancet::planner {

// Appends the backward pass by the gradient rules of the catalogue, dX and dW as separate instructions. For each
// parameter @p that the loss depends on an output grad.p, f32, is this rank's share of the gradient.
// accumulate: gradients add up in states @p.grad, so that several micro batches make one step.
ir::Program autodiff(const ir::Program& forward, bool accumulate = false);

// A product and the GELU behind it, and a dX and the GELU gradient behind it, as one op each (src/ops/linear_gelu): for
// devices whose products do that on the way out. After autodiff, so the backward pass is the same.
ir::Program fuse(const ir::Program& program);

// All-reduces of the gradients that all ranks share, in buckets of bucket_bytes (or an eighth of all, where that is
// less), each right behind the instruction that completes it (not with gradients false: a micro batch that only adds
// its own up); then of the loss, aux and load outputs, as one. One rank: unchanged.
ir::Program sync(const ir::Program& program, int ranks, std::int64_t bucket_bytes, bool gradients = true);

struct OptimizeOptions {
  enum class Kind { adamw, sgd } kind = Kind::adamw;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, momentum = 0.9, weight_decay = 0, clip_grad = 0;
  bool guard = false;  // with clip_grad 0, too, updates wait for the norm and change nothing where it is not finite
  std::function<bool(std::string_view)> decays;  // by parameter name
  bool masters = true;    // false: bf16 parameters have no f32 copy and are rounded stochastically
  std::int64_t seed = 0;  // of that rounding
  int ranks = 1;
  bool keep_gradients = false;  // leave the grad.* outputs (tests); accumulated ones are zero after the update and go
};
// The global norm (each parameter once), the clipping factor and the updates in place; with clip_grad 0 the norm is
// reported only, and no update waits for it. Adds the input @schedule f32[4]
// (learning rate, AdamW's bias corrections, the step), the optimizer's states, @p.master where p is bf16 and masters
// are kept, and the output grad_norm f32[2] (norm, factor). Accumulated gradients are set to zero after their use.
ir::Program optimize(const ir::Program& program, const OptimizeOptions& options);

// What dw_schedule laid under an all-to-all. Instructions are those of the Program that it returned. Its room is the
// computation that it can hide: its time beside computation, less what its bytes take of the cores.
struct DwCover {
  ir::InstructionId all_to_all;
  double room_ms = 0, covered_ms = 0;
  std::vector<ir::InstructionId> under;
};
struct DwReport {
  std::vector<DwCover> covers = {};    // in launch order; empty where nothing was moved
  double room_ms = 0, covered_ms = 0;  // of all all-to-alls
  double before_ms = 0, after_ms = 0;  // simulated makespans
  int movable = 0;                     // instructions that could have been moved
};
// Moves computation under the all-to-alls that no path joins it to (Lancet, section 4): dense and expert dWs, updates
// that wait for no all-reduce, and what else lies beside an MoE layer. An all-to-all is followed by what was assigned
// to it (assign_dw.h); all-reduces go where their gradients now are complete. What the simulation finds no shorter
// stays as it is. loads: per instruction.
ir::Program dw_schedule(const ir::Program& program, std::span<const cost::Load> loads,
                        const cost::Interference& interference, double launch_ms, DwReport* report = nullptr);

struct ReduceReport {
  std::int64_t chunk_bytes = 0;        // 0: the buckets as they were
  bool all_to_all_first = false;       // chunks wait for the all-to-alls that are on the wire
  double before_ms = 0, after_ms = 0;  // simulated makespans
};
// A Program and, per instruction, earlier ones that it shall wait for besides its dependencies.
struct Ordered {
  ir::Program program;
  std::vector<std::vector<ir::InstructionId>> extra;
};
// Cuts the gradients' all-reduces (sync's buckets) anew, into chunks that fit between all-to-alls: an all-to-all then
// waits for one chunk at most, or shares the wire with small ones. Large gradients are reduced in slices. A chunk may
// wait for the all-to-all that is on the wire when it is ready; updates at the end of the step go in the order in which
// their gradients are ready. Of several chunk sizes, with such waits and without, the one with the shortest simulated
// step; where that is no gain, everything stays. loads: per instruction; those of new all-reduces are asked of the
// costs.
Ordered reduce_schedule(const ir::Program& program, std::span<const cost::Load> loads, const cost::Costs& costs,
                        ReduceReport* report = nullptr);

// Gives every instruction its waits and every value its place in the arena: a Plan without predictions. needed: per
// instruction the earlier ones it may not start before; all dependencies, and what a policy adds. Bytes are shared only
// by values whose accesses are ordered by the lanes and waits. Each begins at a multiple of 64 bytes; the operands of
// an all-reduce lie side by side.
ir::Plan plan_memory(const ir::Program& program, const Needed& needed);
// As in a framework without overlap: compute and all-to-all take turns.
ir::Plan plan_memory_sequentially(const ir::Program& program);

}  // namespace lancet::planner
