#include "draw.h"
#include "ops/device/pack.h"

namespace lancet::ops {
namespace {

using namespace device;

// A thread per token. Bytes: experts and weights once.
struct SkipSecond {
  static constexpr int threads = 256;
  second_choice::Draw draw;
  std::int64_t tokens;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t t = block.index() * threads + block.thread();
    if (t < tokens) draw.token(t);
  }
};

Kernel bind_skip(const KernelArgs& args) {
  const SkipSecond kernel{second_choice::draw_of(args), args.operands[0].shape()[0]};
  return run_steps(args.stream, Step{divide_up(kernel.tokens, SkipSecond::threads), kernel});
}

}  // namespace

std::span<const DeviceKernel> second_choice_cuda() {
  static const DeviceKernel table[] = {{"skip_second", bind_skip}};
  return table;
}

}  // namespace lancet::ops
