#include "ops/device/pack.h"

namespace lancet::ops {
namespace {

using namespace device;

struct ZeroCounts {
  static constexpr int threads = 256;
  std::int32_t* counts;  // [E]
  std::int64_t experts;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t e = block.index() * threads + block.thread();
    if (e < experts) counts[e] = 0;
  }
};

// Integers are added, so that the order of the threads does not matter. Bytes: the experts once.
struct CountChoices {
  static constexpr int threads = 256;
  const std::int32_t* expert;  // [T*K]
  std::int64_t n;
  std::int32_t* counts;  // [E]

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t i = block.index() * threads + block.thread();
    if (i < n) block.atomic_add(&counts[expert[i]], 1);
  }
};

struct AddCounts {
  static constexpr int threads = 256;
  const std::int32_t* counts;  // [E]
  std::int64_t experts;
  bool accumulates;
  float* sums;  // [E]

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t e = block.index() * threads + block.thread();
    if (e < experts) sums[e] = (accumulates ? sums[e] : 0.f) + float(counts[e]);
  }
};

std::size_t workspace(const KernelArgs& args) { return std::size_t(args.results[0].elements()) * sizeof(std::int32_t); }

Kernel bind(const KernelArgs& args) {
  const std::int64_t n = args.operands[0].elements(), experts = args.results[0].elements();
  auto* counts = reinterpret_cast<std::int32_t*>(args.workspace);
  return run_steps(
      args.stream, Step{divide_up(experts, ZeroCounts::threads), ZeroCounts{counts, experts}},
      Step{divide_up(n, CountChoices::threads), CountChoices{args.operands[0].as<std::int32_t>(), n, counts}},
      Step{divide_up(experts, AddCounts::threads),
           AddCounts{counts, experts, args.has(1), args.results[0].as<float>()}});
}

const DeviceKernel table[] = {{"choice_counts", bind, workspace}};

}  // namespace

std::span<const DeviceKernel> choice_counts_cuda() { return table; }

}  // namespace lancet::ops
