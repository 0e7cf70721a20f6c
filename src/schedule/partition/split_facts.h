// What rewrite asks of the program that it splits.
#pragma once
#include <string_view>
#include <vector>

#include "lancet/schedule/partition/split.h"

namespace lancet::schedule {

bool is_all_to_all(const ir::Instruction& at);

// By tensor: true if something reads it as a whole, in another number of parts than it is made in, or in another
// pipeline: its parts are slices of one memory, or must be joined. The parts of all other tensors have lifetimes of
// their own.
std::vector<bool> whole_users(const ir::Program& program, const Split& split);

// The experts and slots of the tokens that fill the slots: operands of the layer's dispatch. per_token:
// per_token_tensors(program).
std::vector<ir::TensorId> choices_of(const ir::Program& program, const std::vector<bool>& per_token,
                                     ir::TensorId filled);

// The instruction that reads or makes filled slots or rows and has an attribute: the number of ranks, or of slots of an
// expert.
const ir::Instruction& toucher_of(const ir::Program& program, ir::TensorId filled, std::string_view attribute);

}  // namespace lancet::schedule
