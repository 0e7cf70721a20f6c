// The block of the model that an instruction belongs to, as its label says: 3 of "h.3.attn.c_attn".
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

namespace lancet::ir {

// None for a label outside of the blocks, such as that of the embedding or of the head.
std::optional<std::int32_t> block_of(std::string_view label);

}  // namespace lancet::ir
