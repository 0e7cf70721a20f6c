// Which instructions of a program are split, along which axes and in how many parts.
#pragma once
#include <vector>

#include "lancet/ir/program.h"
#include "lancet/schedule/partition/cut.h"

namespace lancet::schedule {

// By tensor of the program: true for what is said of each token's choices, that is the slots in the experts' buffers,
// and what the instructions that read these say of the same choices (experts, weights and gradients of these).
std::vector<bool> per_token_tensors(const ir::Program& program);

struct Split {
  AxisRows rows;
  std::vector<int> parts;        // per instruction; 1: whole. Greater than 1 only where `rows` has a row
  std::vector<const Cut*> cuts;  // per instruction: of which cut its row is
  TokenRanks among = {};         // of cuts by ranks
  bool all_helpers = false;  // also makes helpers (joins, split slots, copies) that nothing reads, to find their costs
  // Of a cut along the batch, per instruction: the number of its pipeline. If given, the parts of a pipeline have
  // memory of their own: copies split what they read from outside of it, and copies join what is read there (Lancet,
  // Fig. 8a). If empty, the parts of a tensor that something reads whole are slices of it, and nothing is copied.
  std::vector<int> pipeline = {};
  // Of a program that is a range of a step's instructions: per_token_tensors of the step. Empty: of the program.
  std::vector<bool> per_token = {};
};

// Both splits at once: where `b` splits an instruction, it decides.
Split joined(Split a, const Split& b);

}  // namespace lancet::schedule
