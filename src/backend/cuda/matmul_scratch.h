// MatmulScratch: operands of a product in memory of their own, for timing, since the real operands may be in use. They
// hold normal random numbers, because a GPU runs faster on zeros. Each round takes another set of operands, so that
// they come from memory and not from the L2 cache, as mostly in a step.
#pragma once
#include <functional>
#include <optional>
#include <vector>

#include "lt_product.h"

namespace lancet::backend::cuda {

class MatmulScratch {
 public:
  // own_workspace: bytes that kernels beside the product need after its workspace. Empty if the device lacks the
  // memory.
  static Result<std::optional<MatmulScratch>> make(const MatmulDesc& desc, std::size_t own_workspace, Stream& stream);

  using Bind = std::function<std::function<Status()>(const MatmulOperands& operands, std::byte* workspace)>;
  // The time of the bound work on the stream, which nothing else uses meanwhile, without the host's time to bind and
  // queue it; infinite if the work fails.
  Result<float> milliseconds(const Bind& bind) const;

 private:
  using Memory = Owned<void*, cudaFree>;
  MatmulScratch(Stream& stream, void* memory) : stream_(&stream), memory_(memory) {}

  Stream* stream_;
  Memory memory_;
  std::vector<MatmulOperands> sets_;
  std::byte* workspace_ = nullptr;
};

}  // namespace lancet::backend::cuda
