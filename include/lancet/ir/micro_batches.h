// A Program of several micro batches of one step: which micro batch instructions, inputs and outputs belong to, and
// what is left to the end of the step.
//
// The text says the number after an @; the first micro batch, 0, has none:
//     input @tokens@1 : i32[8,128]
//     %70 : f32[8,128,256] = gelu(%69)  # compute forward h.0.mlp.gelu@1
//     output loss@1 = %90
// Each micro batch has inputs, activations and outputs of its own. Parameters and states are the step's, and so are
// the sums of gradients and loads: each micro batch adds onto those of the micro batches before it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lancet/ir/micro_batch_name.h"
#include "lancet/ir/program.h"

namespace lancet::ir {

// The place of an instruction in the model, with its micro batch, for people: "h.1.attn.c_attn@1".
inline std::string place_of(const Instruction& at) { return of_micro_batch(at.label, at.micro_batch); }
// The name of its event in a trace: "linear h.1.attn.c_attn@1".
inline std::string event_name(const Instruction& at) { return at.label.empty() ? at.op : at.op + " " + place_of(at); }

// How many micro batches the program has; at least 1.
std::int32_t micro_batches(const Program& program);

// Per instruction, true for what closes a step: updates, and the sums over the ranks that they read. It is done once a
// step, after all micro batches, while the sums of what a micro batch reports belong to the micro batch.
std::vector<bool> closes_step(const Program& program);

// The block of the model that an instruction belongs to, as its label says: 3 of "h.3.attn.c_attn".

// None for a label outside of the blocks, such as that of the embedding or of the head.
std::optional<std::int32_t> block_of(std::string_view label);

}  // namespace lancet::ir
