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

// A block per load and expert. Bytes: the choices once for each expert, mostly from the cache.
struct CountFirst {
  static constexpr int threads = 256;
  const std::int32_t* expert;  // [T*K]
  float* counts;               // [2L, E]
  std::int64_t of_load;        // entries of a load
  std::int32_t choices, experts;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const auto e = std::int32_t(block.index()) % experts;
    const std::int64_t load = std::int32_t(block.index()) / experts;
    std::int32_t first = 0, other = 0;
    for (std::int64_t i = block.thread(); i < of_load; i += threads) {
      if (expert[load * of_load + i] != e) continue;
      const bool is_first = std::int32_t(i) % choices == 0;
      first += is_first;
      other += !is_first;
    }
    first = block.sum(first);
    other = block.sum(other);
    if (block.thread() > 0) return;
    counts[2 * load * experts + e] = float(first);
    counts[(2 * load + 1) * experts + e] = float(other);
  }
};

Kernel bind_first(const KernelArgs& args) {
  const std::int64_t loads = args.results[0].shape()[0] / 2, experts = args.results[0].shape()[1];
  const CountFirst kernel{args.operands[0].as<std::int32_t>(), args.results[0].as<float>(),
                          args.operands[0].elements() / loads, std::int32_t(args.operands[0].shape()[1]),
                          std::int32_t(experts)};
  return run_steps(args.stream, Step{loads * experts, kernel});
}

const DeviceKernel table[] = {{"skip_second", bind_skip}, {"first_choices", bind_first}};

}  // namespace

std::span<const DeviceKernel> second_choice_cuda() { return table; }

}  // namespace lancet::ops
