#include "lancet/backend/cuda/matmul_desc.h"

#include <fmt/format.h>

namespace lancet::backend::cuda {

std::string to_string(const MatmulDesc& desc) {
  constexpr const char* activations[] = {"", ", gelu", ", gelu gradient"};
  return fmt::format("{}[{},{}] = {}{} {}{}{}{}{}", name(desc.result), desc.m, desc.n, name(desc.operands),
                     fmt::format("[{},{}]{}", desc.m, desc.k, desc.trans_a ? "t" : ""),
                     fmt::format("[{},{}]{}", desc.k, desc.n, desc.trans_b ? "t" : ""), desc.bias ? " + bias" : "",
                     desc.accumulate ? " + c" : "", desc.row_sums ? " and row sums" : "",
                     activations[std::size_t(desc.activation)]);
}

}  // namespace lancet::backend::cuda
