// Counts of choices on a GPU: a block counts a chunk of a load's entries in shared memory, and adds its numbers to
// those of the load (CountChoices), which become floats at the end. Integers are added, so that the order of the
// threads does not matter.
#include "counted.h"
#include "ops/device/pack.h"

namespace lancet::ops {
namespace {

using namespace device;
using choice_counts::Counted;

struct ZeroCounts {
  static constexpr int threads = 256;
  std::int32_t* counts;
  std::int64_t n;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t i = block.index() * threads + block.thread();
    if (i < n) counts[i] = 0;
  }
};

// A block per load, window of its bins (counted.h) and chunk of its entries. Bytes: the experts once for each window,
// of which there is one for up to 4096 bins.
struct CountChoices {
  static constexpr int threads = 256, window = 4096, chunk = 16 * threads;
  struct Shared {
    std::int32_t counts[window];
  };
  Counted counted;
  std::int32_t* counts;          // [loads, bins]
  std::int32_t windows, chunks;  // of a load

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    std::int32_t* own = block.template shared<Shared>().counts;
    const auto index = std::int32_t(block.index());
    const std::int32_t load = index / chunks / windows, first_bin = index / chunks % windows * window;
    const auto bins_left = std::int32_t(counted.bins) - first_bin, bins = bins_left < window ? bins_left : window;
    for (std::int32_t bin = block.thread(); bin < bins; bin += threads) own[bin] = 0;
    block.sync();
    const std::int32_t begin = index % chunks * chunk;
    const std::int64_t end = begin + chunk < counted.of_load ? begin + chunk : counted.of_load;
    for (std::int64_t i = begin + block.thread(); i < end; i += threads)
      if (const std::int32_t bin = counted.bin(load, i) - first_bin; bin >= 0 && bin < bins)
        block.atomic_add(&own[bin], 1);
    block.sync();
    for (std::int32_t bin = block.thread(); bin < bins; bin += threads)
      if (own[bin] > 0) block.atomic_add(&counts[load * counted.bins + first_bin + bin], own[bin]);
  }
};

struct AddCounts {
  static constexpr int threads = 256;
  const std::int32_t* counts;
  std::int64_t n;
  bool accumulates;
  float* sums;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t i = block.index() * threads + block.thread();
    if (i < n) sums[i] = (accumulates ? sums[i] : 0.f) + float(counts[i]);
  }
};

std::size_t workspace_choice_counts(const KernelArgs& args) {
  return std::size_t(args.results[0].elements()) * sizeof(std::int32_t);
}

Kernel bind_choice_counts(const KernelArgs& args, bool first_apart) {
  const Counted counted = choice_counts::counted_of(args, first_apart);
  const std::int64_t n = counted.loads * counted.bins;
  const std::int64_t windows = divide_up(counted.bins, CountChoices::window);
  const std::int64_t chunks = divide_up(counted.of_load, CountChoices::chunk);
  auto* counts = reinterpret_cast<std::int32_t*>(args.workspace);
  return run_steps(
      args.stream, Step{divide_up(n, ZeroCounts::threads), ZeroCounts{counts, n}},
      Step{counted.loads * windows * chunks,
           CountChoices{counted, counts, std::int32_t(windows), std::int32_t(chunks)}},
      Step{divide_up(n, AddCounts::threads), AddCounts{counts, n, args.has(1), args.results[0].as<float>()}});
}
Kernel bind_choice_counts_all(const KernelArgs& args) { return bind_choice_counts(args, false); }
Kernel bind_choice_counts_first(const KernelArgs& args) { return bind_choice_counts(args, true); }

}  // namespace

std::span<const DeviceKernel> choice_counts_cuda() {
  static const DeviceKernel table[] = {{"choice_counts", bind_choice_counts_all, workspace_choice_counts},
                                       {"first_choices", bind_choice_counts_first, workspace_choice_counts}};
  return table;
}

}  // namespace lancet::ops
