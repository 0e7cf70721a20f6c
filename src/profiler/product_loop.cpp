// The loop is a plan of square products that run back to back. make() doubles the side from 256 until one product takes
// at least 0.15 ms, since shorter ones would not keep the device busy, and then repeats the product often enough to
// last as long as the caller wants. The ranks use the mean of their times, so that all choose the same size and count.
#include "product_loop.h"

#include <fmt/format.h>

#include <algorithm>

#include "lancet/comm/collect.h"
#include "replay_plan.h"

namespace lancet::profiler {
namespace {

// A product that fills a large device takes at least this long; a smaller device needs only a smaller product.
constexpr double shortest_ms = 0.15;
constexpr std::int64_t smallest = 256, largest = 4096;
constexpr int most_runs = 2000;

std::string plan_text(DType dtype, std::int64_t size, int count) {
  const std::string type = ir::to_string(ir::TensorType{dtype, {size, size}});
  std::string text = fmt::format("plan {{policy=products}}\narena {0}\nstate @x : {1}\nparameter @w : {1}\n",
                                 size * size * size_of(dtype), type);
  for (int i = 0; i < count; ++i)
    text += fmt::format("[{0}] %{0} : {1} = linear(@x, @w)  # compute forward products | at 0\n", i, type);
  return text;
}

}  // namespace

Status ProductLoop::bind(DType dtype, std::int64_t size, int count) {
  LANCET_ASSIGN(const ir::Plan plan, ir::parse_plan(plan_text(dtype, size, count)));
  executor_.reset();
  store_ = runtime::TensorStore();
  store_.place_on(accelerator_.device());
  store_.add(plan.program);
  const auto memory = make_device_replay_memory(accelerator_.device());
  // Not zeros: chips that adjust their clock to their power are faster on zeros than on any other data.
  for (const auto& [_, tensor] : store_.all())
    LANCET_TRY(memory->fill_normals({tensor.memory.start, tensor.type}, 1, false));
  LANCET_ASSIGN(executor_, runtime::Executor::create(plan, store_, {.accelerator = &accelerator_}));
  LANCET_TRY(run());
  return {};
}

Result<double> ProductLoop::run() {
  executor_->time_next_run();
  LANCET_TRY(executor_->run());
  const auto spans = executor_->spans();
  return double(std::max<std::int64_t>(1, spans.back().end - spans.front().start)) * 1e-6;
}

Result<std::unique_ptr<ProductLoop>> ProductLoop::make(runtime::Accelerator& accelerator, comm::Communicator* world,
                                                       double milliseconds) {
  auto loop = std::make_unique<ProductLoop>(accelerator);
  double each = 0;
  std::int64_t size = smallest;
  for (;; size *= 2) {
    LANCET_TRY(loop->bind(DType::bf16, size, 4));
    LANCET_ASSIGN(each, loop->run());
    each /= 4;
    if (world) {
      LANCET_ASSIGN(each, comm::mean(*world, each));
    }
    if (each >= shortest_ms || size >= largest) break;
  }
  const auto count = static_cast<int>(std::clamp(milliseconds / each, 2.0, double(most_runs)));
  LANCET_TRY(loop->bind(DType::bf16, size, count));
  return loop;
}

}  // namespace lancet::profiler
