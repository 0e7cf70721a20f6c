// The table of chosen algorithms: a key of product and device maps to cuBLASLt's algorithm, as opaque words.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>

namespace lancet::backend::cuda {

using MatmulAlgorithm = std::array<std::uint64_t, 8>;

std::optional<MatmulAlgorithm> find_matmul_choice(const std::string& key);
void keep_matmul_choice(const std::string& key, const MatmulAlgorithm& algorithm);

}  // namespace lancet::backend::cuda
