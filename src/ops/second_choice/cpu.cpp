#include <algorithm>

#include "draw.h"
#include "lancet/backend/cpu/parallel.h"

namespace lancet::ops {
namespace {

Kernel bind_skip(const KernelArgs& args) {
  const second_choice::Draw draw = second_choice::draw_of(args);
  return [=, tokens = args.operands[0].shape()[0]]() -> Status {
    backend::cpu::parallel_for(tokens, 1024, [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) draw.token(t);
    });
    return {};
  };
}

Kernel bind_first(const KernelArgs& args) {
  const Shape& shape = args.operands[0].shape();
  const std::int64_t experts = args.results[0].shape()[1], loads = args.results[0].shape()[0] / 2;
  const std::int64_t of_load = shape.elements() / loads, choices = shape[1];
  const auto* expert = args.operands[0].as<std::int32_t>();
  float* counts = args.results[0].as<float>();  // [2L, E]
  return [=]() -> Status {
    std::fill_n(counts, 2 * loads * experts, 0.f);
    for (std::int64_t i = 0; i < loads * of_load; ++i)
      counts[(2 * (i / of_load) + (i % choices != 0)) * experts + expert[i]] += 1.f;  // exact up to 2^24
    return {};
  };
}

const CpuKernel table[] = {{"skip_second", bind_skip}, {"first_choices", bind_first}};

}  // namespace

std::span<const CpuKernel> second_choice_cpu() { return table; }

}  // namespace lancet::ops
