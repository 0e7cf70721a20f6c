// The pass that cuts one rank's step by blocks of the model into the steps of pipeline stages.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/ir/mesh.h"
#include "lancet/ir/program.h"

namespace lancet::passes {

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
