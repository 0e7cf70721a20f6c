// The pass that cuts one rank's step by blocks of the model into the steps of pipeline stages.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/ir/program.h"
#include "lancet/mesh/mesh.h"

namespace lancet::passes {

struct StageProgram {
  ir::Program program;
  // Parameters that an earlier stage has, too. That one counts them in the norm and writes them in checkpoints.
  std::vector<std::string> copies = {};
};

// The first block of each stage, such that the largest flops of a stage are as small as they can be; what is before the
// first block counts to the first stage, what is after the last one to the last stage. The work comes from shapes
// alone, so no measurement decides where the model is cut. Config error: the program has fewer blocks than stages.
Result<std::vector<int>> balanced_stages(const ir::Program& program, int stages);

// One program a stage of mesh's axis `stage`. Runs after partition_spmd and fuse, and before sync. An instruction goes
// where its block is (ir/block.h), forward and backward; what is before the first block is on the first stage, what is
// after the last block on the last. A value that is read on other stages crosses from neighbour to neighbour
// (ops/stage_transfer), each once, in the order in which values are made. Each stage has the parameters, states and
// inputs that its instructions read. Where stages have the same parameter, as the embedding that is the head's weight,
// each sums its own share of the gradient, and an all-reduce over these stages completes the sums, so that their
// updates are equal. Losses and loads are sums over the stages, too: all but the maker add zeros, so that every stage
// has the result. Other outputs are on the stage that makes them, but for OutputKind::bias and rounds, which no stage
// has. first_blocks: of each stage, ascending from 0 on. A program of one stage is returned as it is.
std::vector<StageProgram> cut_stages(const ir::Program& program, const mesh::Mesh& mesh,
                                     std::span<const int> first_blocks);

}  // namespace lancet::passes
