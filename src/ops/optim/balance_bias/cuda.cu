#include "lancet/ops/schedule_layout.h"
#include "math.h"
#include "ops/device/pack.h"

namespace lancet::ops {
namespace {

using namespace device;

// One block. Bytes: the bias twice, the counts once.
struct Balance {
  static constexpr int threads = 256;
  float* bias;                    // [E]
  const float *counts, *numbers;  // [E]; the schedule
  std::int64_t experts;
  bool clipped;
  float rate;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const float scale = clipped ? numbers[schedule::factor] : 1.f;
    double total = 0;  // of integers, which is exact in any order
    for (std::int64_t e = block.thread(); e < experts; e += threads) total += double(counts[e]);
    total = block.sum(total);
    if (scale != scale) return;
    for (std::int64_t e = block.thread(); e < experts; e += threads)
      bias[e] = balanced(bias[e], counts[e], total, experts, rate);
  }
};

Kernel bind(const KernelArgs& args) {
  const Balance kernel{args.operands[0].as<float>(),
                       args.operands[1].as<float>(),
                       args.operands[2].as<float>(),
                       args.operands[0].elements(),
                       args.operands[2].elements() == schedule::clipped,
                       float(args.attributes.real("rate"))};
  return run_steps(args.stream, Step{1, kernel});
}

const DeviceKernel table[] = {{"balance_bias", bind}};

}  // namespace

std::span<const DeviceKernel> balance_bias_cuda() { return table; }

}  // namespace lancet::ops
