#include <algorithm>

#include "window.h"

namespace lancet::ops {
namespace {

void set_window(const SlotWindow& window) {
  const std::int64_t begin = window.begin();
  for (std::int64_t i = 0; i < window.choices; ++i) window.set_slot(i, begin);
  for (std::int64_t i = 0; i < 2 * window.experts; ++i) window.set_filled(i, begin);
}

Kernel bind(const KernelArgs& args) {
  return [window = SlotWindow::of_round(args)]() -> Status {
    set_window(window);
    return {};
  };
}

Kernel bind_first(const KernelArgs& args) {
  return [window = SlotWindow::first(args), windows = args.results[2].as<std::int32_t>()]() -> Status {
    set_window(window);
    *windows = 1;
    for (std::int64_t e = 0; e < window.experts; ++e) *windows = std::max(*windows, window.windows(e));
    return {};
  };
}

const CpuKernel table[] = {{"first_window", bind_first}, {"window", bind}};

}  // namespace

std::span<const CpuKernel> window_cpu() { return table; }

}  // namespace lancet::ops
