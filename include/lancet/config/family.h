// A family of models as data: the blocks that its models have, the fields of its config.json, and their defaults. Each
// family is one file of src/config/families; families.cpp lists them.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "lancet/config/file_format.h"

namespace lancet::config {

struct Model;

// layer: mean, variance and bias; rms: the mean square alone.
enum class Norm { layer, rms };
// learned: an embedding of each position; rotary: queries and keys are rotated, the halves of a head by one angle each.
enum class Positions { learned, rotary };
// Of dense blocks and experts. gelu: two products; swiglu: down(silu(gate x) * up x).
enum class Ffn { gelu, swiglu };
// The RMS norm of queries and keys, before they are rotated. each_head: over a head; whole_row: over all heads
// together.
enum class HeadNorm { none, each_head, whole_row };

struct Family {
  std::string_view name;            // Hugging Face's model_type
  std::string_view program = name;  // the name of its Programs
  std::string_view mixture = name;  // the family of its models whose FFNs became experts
  Norm norm = Norm::rms;
  Positions positions = Positions::rotary;
  Ffn ffn = Ffn::swiglu;
  bool biases = false;  // every product has one, whatever its fields say
  HeadNorm head_norm = HeadNorm::none;
  // An MoE layer has one shared expert, whose result is multiplied by sigmoid(x . gate) for each token.
  bool gates_shared_expert = false;
  std::int64_t first_block = 1;  // the first block's number, where every moe_layer_freq-th is an MoE layer
  // The names of its fields of `model` besides model_type: those that others have, too, and its own. fields.cpp has
  // what each means.
  std::array<std::span<const std::string_view>, 4> fields;
  void (*set_defaults)(Model&);  // those that differ from Model's
  FileFormat file;

  bool has(std::string_view field) const {
    return std::ranges::any_of(fields,
                               [&](const auto& names) { return std::ranges::find(names, field) != names.end(); });
  }
};

namespace families {
extern const Family gpt2;  // the default
}

std::span<const Family* const> families_known();
// Their names, in the same order.
std::span<const std::string_view> family_names();
// Null if there is none of this name.
const Family* find_family(std::string_view name);
// A model of the family whose other fields have their defaults.
Model defaults_of(const Family& family);

}  // namespace lancet::config
