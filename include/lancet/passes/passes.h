// The passes that turn a logical forward Program into a rank's training step. Each is a pure function Program ->
// Program: no globals, clock, environment or unordered iteration; the same input gives the same bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
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
  std::vector<std::string> uncounted = {};  // parameters that another pipeline stage counts in the norm (cut_stages)
};
// Appends the global gradient norm (each parameter counts once), the clipping factor and the updates in place. Weight
// decay applies to the parameters that some op takes as a weight (OpDef::weights). With clip_grad 0 and no guard the
// norm is only reported and no update waits for it. Adds the input @schedule f32[4] (learning rate, AdamW's bias
// corrections, the step), the optimizer's states, @p.master if p is bf16 and masters are kept, and the output grad_norm
// f32[2] (norm, factor). Sums over micro batches are set to zero after their use. On a mesh of several pipeline stages
// the program is one of them, and the norm is that of all: an all-reduce over `stage` adds up the squares. Where sync
// left a flat shard of a gradient (ZeRO-1; Rajbhandari et al., SC 2020, section 5.1), the states are f32[s], too, a
// rank updates its own elements of the parameter, and all-gathers complete the parameters, bucket by bucket, each right
// after the last update of its bucket.
ir::Program optimize(const ir::Program& program, const OptimizeOptions& options);

// Recomputation: values of the forward pass that are not kept for the backward pass, but made a second time there, so
// that their memory is free in between (Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016; GShard,
// section 5.1; selective: Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models, 2022,
// section 5).
//
//     %7 : f32[8,128,1024] = gelu(%6)              # compute forward h.0.mlp.gelu
//     %80 : f32[8,128,1024] = gelu(%6)             # compute recompute h.0.mlp.gelu
//     %81 : f32[256,1024] = linear_dw(%79, %80)    # compute dw h.0.mlp.c_proj
//
// The memory of %7 is free after the product that reads it; %80 is made right before its first reader. The same ops run
// on the same operands, so gradients keep their bits.

// The results of forward instructions of one rank's step that can be made again.
class Recomputation {
 public:
  // step: after autodiff and fold_repeats, before it is split in parts. It has to outlive the object.
  explicit Recomputation(const ir::Program& step);

  // Per instruction, true if the backward pass reads what it makes, and its op can make that again (ops::Again) from
  // operands that nothing overwrites. False for communication and for products of what communication has gathered.
  const std::vector<bool>& candidates() const { return candidates_; }

  // The instructions of the step in order, with those that make results again where they are needed.
  struct Place {
    std::size_t instruction = 0;
    bool again = false;
  };
  // chosen: per instruction; only candidates. A chosen result of which another one is made is made before that one.
  std::vector<Place> order(const std::vector<bool>& chosen) const;

  // The first instruction behind the forward pass. From there on, instructions read what was made again.
  std::size_t forward_end() const { return forward_end_; }
  // The operands from which an instruction's results are made again, and these results.
  std::vector<ir::TensorId> operands(std::size_t instruction) const;
  std::vector<ir::TensorId> results(std::size_t instruction) const;

  // The step whose chosen instructions run twice.
  ir::Program run(const std::vector<bool>& chosen) const;

 private:
  bool can_repeat(std::size_t instruction, const std::vector<bool>& shares_memory) const;

  const ir::Program& step_;
  std::size_t forward_end_ = 0;
  std::vector<std::int32_t> maker_;  // by tensor: the forward instruction that makes it, or -1
  std::vector<bool> candidates_;
};

// The pass that cuts one rank's step by blocks of the model into the steps of pipeline stages.

struct StageProgram {
  ir::Program program;
  // Parameters that an earlier stage has, too. That one counts them in the norm and writes them in checkpoints.
  std::vector<std::string> copies = {};
};

// One program a stage of mesh's axis `stage`, of p stages; stage s has the chunks s, s + p, ... of the model, of which
// first_blocks has the first blocks, ascending from 0 on. Their number is a multiple of p. The last one may be the
// number of blocks: that chunk has what is after them alone. Runs after partition_spmd
// and fuse, and before sync. An instruction goes where its block is (ir/micro_batches.h), forward and backward; what is
// before the first block is in the first chunk, what is after the last block in the last. A value that is read in other
// chunks crosses from neighbour to neighbour (ops/comm/stage_transfer), once for each chunk, in the order in which
// values are made; the last stage's next neighbour is the first. Each stage has the parameters, states and inputs that
// its instructions read. Where stages have the same parameter, as the embedding that is the head's weight, each sums
// its own share of the gradient, and an all-reduce over these stages completes the sums, so that their updates are
// equal. Losses and loads are sums over the stages, too: all but the maker add zeros, so that every stage has the
// result. Logits cross back to every stage. Other outputs are on the stage that makes them, but for OutputKind::bias
// and rounds, which no stage has. A program of one stage is returned as it is.
std::vector<StageProgram> cut_stages(const ir::Program& program, const ir::Mesh& mesh,
                                     std::span<const int> first_blocks);

// The block of each instruction: 0 before the first one; after the last one, the number of blocks. The backward pass
// has the labels of the forward pass; what neither names is with its first operand that an instruction makes.
std::vector<int> blocks_of(const ir::Program& program);

// Where a model is cut into the runs of blocks (chunks) of pipeline stages.

// The blocks of p stages with `laps` chunks each, 1 or 2: stage s has the chunks s and s + p.
struct Chunks {
  int stages = 1, laps = 1;
};

// work: of each block, and last of what is after the blocks, which is in the last chunk. Returns the first block of
// each chunk, such that the largest work of a stage is as small as it can be; of such cuts, one whose largest chunk is
// as small as it can be; and of those, one with the least sum of the squares of the stages' and the chunks' works. Each
// chunk has a block but the last, which may have what is after the blocks alone, if that is work. Of equal cuts, later
// stages have more blocks, since earlier ones keep the activations of more micro batches under 1F1B. Exact but for
// differences of 1e-9. Requires as many blocks as chunks.
std::vector<int> balanced_chunks(std::span<const double> work, Chunks chunks);

// The same for the blocks of a rank's step with its backward pass; what is before the first block counts to it. The
// work of an instruction is its flops and 100 for each byte that it moves: memory is a larger share of small ops and
// small products than of the head, whose flops alone would count it for more blocks than it takes the time of. The work
// comes from shapes alone, so no measurement decides where the model is cut. Config error: the program has fewer blocks
// than chunks.
Result<std::vector<int>> balanced_chunks(const ir::Program& step, Chunks chunks);

}  // namespace lancet::passes
