// What the folders of the cuts share.
#pragma once
#include <functional>

#include "lancet/schedule/partition/cut.h"

namespace lancet::schedule {

std::vector<ir::InstructionId> members(const ir::Program& program,
                                       const std::function<bool(const ir::Instruction&)>& is);

// True for an instruction of the layers' two passes, without weight gradients.
bool in_layers(const ir::Instruction& at);
// True for the experts and the all-to-alls around them. Counts stay one message a layer: both sides of it are split
// where they are needed, by Cut::filled and Cut::received.
bool is_expert_core(const ir::Instruction& at);

// Where experts' results leave: products that can make tiles of columns, each read by an all-to-all back and by nothing
// else. In the backward pass these are the gradients of the tokens that the experts got.
struct ColumnPair {
  std::size_t product, all_to_all;  // instructions
};
std::vector<ColumnPair> column_pairs(const ir::Program& program);

// The rows of the experts and their all-to-alls.
AxisRows expert_rows(const ir::Program& program);

// The part count of a cut that takes any.
std::vector<int> any_count(const ir::Program& program, const AxisRows& rows, const TokenRanks& ranks,
                           std::span<const int> wanted);

}  // namespace lancet::schedule
