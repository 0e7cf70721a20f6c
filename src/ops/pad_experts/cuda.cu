#include "numbers.h"
#include "ops/device/pack.h"

namespace lancet::ops {
namespace {

using namespace device;

// A thread per choice of a token and per padded number. Bytes: each read and written once.
struct PadExperts {
  static constexpr int threads = 256;
  PaddedNumbers numbers;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t i = block.index() * threads + block.thread();
    if (i < numbers.choices) numbers.set_choice(i);
    if (i < numbers.padded) numbers.set_filled(i);
  }
};

Kernel bind(const KernelArgs& args) {
  const PaddedNumbers numbers(args);
  return run_steps(args.stream, Step{divide_up(std::max(numbers.choices, numbers.padded), PadExperts::threads),
                                     PadExperts{numbers}});
}

const DeviceKernel table[] = {{"pad_experts", bind}};

}  // namespace

std::span<const DeviceKernel> pad_experts_cuda() { return table; }

}  // namespace lancet::ops
