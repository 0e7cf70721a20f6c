// The passes that turn a logical forward Program into a rank's training step. Each is a pure function Program ->
// Program: no globals, clock, environment or unordered iteration; the same input gives the same bytes.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/ir/mesh.h"
#include "lancet/ir/program.h"
#include "lancet/passes/reshard_steps.h"

namespace lancet::passes {

// Appends the backward pass by the gradient rules of the catalogue, dX and dW as separate instructions. Adds an output
// grad.p, f32, for each parameter @p that the loss depends on: this rank's share of the gradient.
// accumulate: gradients add up in states @p.grad, so that several micro batches make one step.
ir::Program autodiff(const ir::Program& forward, bool accumulate = false);

// Gives each tensor of a logical Program a sharding: that which annotations imply by the partition rows of the ops
// between them, or whole (GShard, sections 3.2 and 3.3.2). Annotated tensors keep theirs; of others, a dimension only
// gets axes that divide it. Axes of one coordinate are left out. Sums in the memory of one state are partial over the
// same axes. Errors (ExitCode::config): an annotated tensor that the mesh cannot hold so (check_sharding), or a partial
// sum of integers other than counts of slots, with its name; an axis that reaches attention and does not divide its
// heads, with instruction, tensor, heads and ranks.
Result<ir::Program> shard(const ir::Program& logical, const ir::Mesh& mesh);

// One rank's Program, the same on every rank of the mesh, of a logical Program whose tensors all have shardings
// (GShard, section 3.3). Inputs, parameters and state have the shapes of their shards, and parameters and states say of
// which split these are shards (ir::Tensor::sharding). The steps from one sharding to another precede an instruction
// that needs another sharding than its operand has, and follow one that makes another than its result has, if something
// reads that. Gradients leave split as their parameters are, losses and loads as they were made; the axes over which
// they still add up are named by the sharding of the output's tensor, and are for `sync` to resolve. All other outputs
// leave as the logical Program says, so each rank has its shard of them. `cost` prices each step; equal steps cost the
// same. Runs after autodiff. The number of instructions does not depend on the sizes of axes of more than one
// coordinate. Errors (ExitCode::config): a tensor that the mesh cannot hold as its sharding says (check_sharding), or a
// partial sum of integers as in shard(), with its name; a state or parameter whose sharding does not let its update run
// in place; a state whose sharding is another than that of the parameter whose gradients it sums, as where data splits
// a weight. InternalError: a tensor without a sharding, or a view.
Result<ir::Program> partition_spmd(const ir::Program& logical, const ir::Mesh& mesh,
                                   const ReshardCost& cost = bytes_sent);

// Makes one instruction of the instructions of each repeat (ir/program.h), which have its number and are closed:
// nothing else reads what they make, except in the memory of tensors from outside. It is where the last of them was.
// Its scratch has the tensors of the body, which share memory where they do not exist at the same time. Runs after all
// passes that change single instructions. InternalError: instructions that are not closed.
ir::Program fold_repeats(const ir::Program& program, const ir::Mesh& mesh);

// True if the program has instructions of a repeat that are not folded.
bool has_unfolded_repeats(const ir::Program& program);

// Fuses a product with the GELU after it, and a dX with the GELU gradient after it, into one op
// (src/ops/nn/linear_gelu), for devices whose products can apply it to their results. Runs after autodiff, so the
// backward pass is the same.
ir::Program fuse(const ir::Program& program);

// How gradients are summed over the ranks.
struct GradientSums {
  bool shards = false;         // ZeRO-1: each rank gets its flat shard of the sums (base/flat_shard.h)
  DType message = DType::f32;  // f32 or bf16: the type in which gradients travel; sums are f32
};

// Adds all-reduces of the gradients, each over the axes that the sharding of the output's tensor is partial over, as
// partition_spmd leaves it. A group has buckets of bucket_bytes, or of an eighth of all its gradients, but at least 256
// KiB, if that is less, and each all-reduce is right after the instruction that completes its bucket. Then one
// all-reduce of each group sums the loss, aux and load outputs. gradients false (a forward pass): no all-reduces of
// gradients. sums.shards: reduce-scatters in place of the gradients' all-reduces; the output grad.p is then f32[s],
// this rank's shard. Counts in the place of gradients (ops::OpDef::counted) are summed whole and in f32.
ir::Program sync(const ir::Program& program, const ir::Mesh& mesh, std::int64_t bucket_bytes, bool gradients = true,
                 const GradientSums& sums = {});

struct OptimizeOptions {
  enum class Kind { adamw, sgd } kind = Kind::adamw;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, momentum = 0.9, weight_decay = 0, clip_grad = 0;
  double balance_rate = 0;  // the step of parameters for which choices are counted (ops/optim/update)
  bool guard = false;       // updates wait for the norm, even with clip_grad 0, and change nothing if it is not finite
  bool masters = true;      // false: bf16 parameters have no f32 copy and are rounded stochastically
  std::int64_t seed = 0;    // of that rounding
  ir::Mesh mesh = {};
  std::int64_t bucket_bytes = std::int64_t{25} << 20;  // of weights in an all-gather; small models as in sync()
  bool keep_gradients = false;  // keep the grad.* outputs (tests), except accumulated ones: zero after the update
  std::vector<std::string> uncounted = {};  // parameters that another pipeline stage counts in the norm (stages.h)
};
// Appends the global gradient norm (each parameter counts once), the clipping factor and the updates in place. Weight
// decay applies to the parameters that some op takes as a weight (OpDef::weights). With clip_grad 0 and no guard the
// norm is only reported and no update waits for it. Adds the input @schedule f32[4] (learning rate, AdamW's bias
// corrections, the step), the optimizer's states, @p.master if p is bf16 and masters are kept, and the output grad_norm
// f32[2] (norm, factor). Accumulated gradients are set to zero after their use. On a mesh of several pipeline stages
// the program is one of them, and the norm is that of all: an all-reduce over `stage` adds up the squares. Where sync
// left a flat shard of a gradient (ZeRO-1; Rajbhandari et al., SC 2020, section 5.1), the states are f32[s], too, a
// rank updates its own elements of the parameter, and all-gathers complete the parameters, bucket by bucket, each right
// after the last update of its bucket.
ir::Program optimize(const ir::Program& program, const OptimizeOptions& options);

}  // namespace lancet::passes
