// Where a model is cut into the runs of blocks (chunks) of pipeline stages.
#pragma once
#include <span>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/ir/program.h"

namespace lancet::passes {

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
