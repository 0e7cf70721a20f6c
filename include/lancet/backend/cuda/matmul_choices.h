// The table of chosen algorithms: a key of product and device maps to cuBLASLt's algorithm, as opaque words.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "lancet/base/result.h"

namespace lancet::backend::cuda {

using MatmulAlgorithm = std::array<std::uint64_t, 8>;

// The choice for a product whose epilogue is slower than kernels of one's own around the product without it.
inline constexpr MatmulAlgorithm unfused_is_faster{};

std::optional<MatmulAlgorithm> find_matmul_choice(const std::string& key);
void keep_matmul_choice(const std::string& key, const MatmulAlgorithm& algorithm);

// The table as text, one line per product. A line names device and library; lines of other devices or libraries are
// kept but not used.
std::string matmul_choices();
Status add_matmul_choices(std::string_view text);

}  // namespace lancet::backend::cuda
