// Runs a small plan of eight products of 8192^3 with the kernel that training steps use, and takes the fastest product
// of six runs, by the device's clock.
#include <fmt/format.h>

#include <algorithm>

#include "lancet/profiler/peak.h"
#include "lancet/runtime/executor.h"
#include "replay_plan.h"

namespace lancet::profiler {

Result<double> measure_product_peak(runtime::Accelerator& accelerator, DType dtype) {
  constexpr std::int64_t rows = 8192, columns = 8192, inner = 8192;
  constexpr int repeats = 8, runs = 6;
  const std::string type = std::string(name(dtype));
  const std::int64_t result_bytes = rows * columns * size_of(dtype);
  std::string text = fmt::format("plan {{policy=peak}}\narena {}\nstate @x : {}[{},{}]\nparameter @w : {}[{},{}]\n",
                                 result_bytes, type, rows, inner, type, columns, inner);
  for (int i = 0; i < repeats; ++i)
    text += fmt::format("[{}] %{} : {}[{},{}] = linear(@x, @w)  # compute forward peak | at 0\n", i, i, type, rows,
                        columns);
  LANCET_ASSIGN(const ir::Plan plan, ir::parse_plan(text));
  runtime::TensorStore store;
  store.place_on(accelerator.device());
  store.add(plan.program);
  const auto memory = make_device_replay_memory(accelerator.device());
  // Not zeros: chips that adjust their clock to their power are faster on zeros than on any other data.
  for (const auto& [_, tensor] : store.all())
    LANCET_TRY(memory->fill_normals({tensor.memory.start, tensor.type}, 1, false));
  LANCET_ASSIGN(const auto executor, runtime::Executor::create(plan, store, {.accelerator = &accelerator}));
  double best = 0;
  for (int run = 0; run < runs; ++run) {
    executor->time_next_run();
    LANCET_TRY(executor->run());
    for (const runtime::Span& span : executor->spans())
      best = std::max(best,
                      2.0 * rows * columns * inner / (double(std::max<std::int64_t>(1, span.end - span.start)) * 1e-9));
  }
  return best;
}

}  // namespace lancet::profiler
