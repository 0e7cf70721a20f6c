#include "ops/device/partial_sums.h"
#include "ops/moe/top_k/math.h"
#include "ops/moe/top_k/token_threads.h"

namespace lancet::ops {
namespace {

using namespace device;

// A few threads per token: the square of its logarithm, and, if dlogits is not null, the gradient. Bytes: the logits
// and the results once.
struct SquareLogs : TokenThreads {
  std::int64_t experts;
  const float* logits;       // [T, E]
  float *squares, *dlogits;  // [T] or null; [T, E] or null
  float scale;               // of the gradient

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const auto [t, exists, member] = token_thread(block);
    const float* own = logits + t * experts;
    float largest = own[0], sum = 0;
    for (std::int64_t e = member; e < experts; e += width) largest = Larger{}(own[e], largest);
    largest = block.warp_max(largest, width);
    for (std::int64_t e = member; e < experts; e += width) sum += exp_f32(own[e] - largest);
    sum = block.warp_sum(sum, width);
    const float z = largest + log_f32(sum);
    if (exists && squares && member == 0) squares[t] = z * z;
    for (std::int64_t e = member; e < experts && exists && dlogits; e += width)
      dlogits[t * experts + e] = exp_f32(own[e] - largest) / sum * (scale * z);
  }
};

SquareLogs kernel_of(const KernelArgs& args) {
  const Shape& shape = args.operands[0].shape();
  return {
      TokenThreads::of(shape.rows(), shape.back()), shape.back(), args.operands[0].as<float>(), nullptr, nullptr, 0};
}

std::size_t workspace_z_loss(const KernelArgs& args) {
  return std::size_t(args.operands[0].shape().rows()) * sizeof(float);
}

Kernel bind_z_loss(const KernelArgs& args) {
  SquareLogs kernel = kernel_of(args);
  kernel.squares = reinterpret_cast<float*>(args.workspace);
  const float each = float(1.0 / double(args.attributes.integer("total_tokens")));
  return run_steps(args.stream, Step{kernel.blocks(), kernel},
                   Step{1, AddUp{kernel.squares, kernel.tokens, each, args.results[0].as<float>()}});
}

Kernel bind_z_loss_dx(const KernelArgs& args) {
  SquareLogs kernel = kernel_of(args);
  kernel.dlogits = args.results[0].as<float>();
  kernel.scale = float(2 * args.attributes.real("coefficient") / double(args.attributes.integer("total_tokens")));
  return run_steps(args.stream, Step{kernel.blocks(), kernel});
}

}  // namespace

std::span<const DeviceKernel> z_loss_cuda() {
  static const DeviceKernel table[] = {{"z_loss", bind_z_loss, workspace_z_loss}, {"z_loss_dx", bind_z_loss_dx}};
  return table;
}

}  // namespace lancet::ops
