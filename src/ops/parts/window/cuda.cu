#include "ops/device/pack.h"
#include "window.h"

namespace lancet::ops {
namespace {

using namespace device;

// A thread per choice of a token and per entry of filled. Bytes: each read and written once.
struct SetWindow {
  static constexpr int threads = 256;
  SlotWindow window;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t i = block.index() * threads + block.thread(), begin = window.begin();
    if (i < window.choices) window.set_slot(i, begin);
    if (i < 2 * window.experts) window.set_filled(i, begin);
  }
};

// One block finds the largest number of windows of an expert.
struct CountWindows {
  static constexpr int threads = 128;
  SlotWindow window;
  std::int32_t* windows;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    std::int32_t most = 1;
    for (std::int64_t e = block.thread(); e < window.experts; e += threads) most = Larger{}(most, window.windows(e));
    most = block.reduce(most, std::int32_t(1), Larger{});
    if (block.thread() == 0) *windows = most;
  }
};

std::int64_t blocks_of(const SlotWindow& window) {
  return divide_up(std::max(window.choices, 2 * window.experts), SetWindow::threads);
}

Kernel bind_window_window(const KernelArgs& args) {
  const SlotWindow window = SlotWindow::of_round(args);
  return run_steps(args.stream, Step{blocks_of(window), SetWindow{window}});
}

Kernel bind_window_first(const KernelArgs& args) {
  const SlotWindow window = SlotWindow::first(args);
  return run_steps(args.stream, Step{blocks_of(window), SetWindow{window}},
                   Step{1, CountWindows{window, args.results[2].as<std::int32_t>()}});
}

}  // namespace

std::span<const DeviceKernel> window_cuda() {
  static const DeviceKernel table[] = {{"first_window", bind_window_first}, {"window", bind_window_window}};
  return table;
}

}  // namespace lancet::ops
