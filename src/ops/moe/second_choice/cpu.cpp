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

const CpuKernel table[] = {{"skip_second", bind_skip}};

}  // namespace

std::span<const CpuKernel> second_choice_cpu() { return table; }

}  // namespace lancet::ops
