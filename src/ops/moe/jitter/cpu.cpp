#include "ops/cpu.h"
#include "math.h"

namespace lancet::ops {
namespace {

using cpu::block, jittered::Noise;
static_assert(block % jittered::words == 0);

// The numbers of the block's elements, the first of which is number `first` of the sequence. Not inlined, so that all
// blocks round alike.
[[gnu::noinline, gnu::noclone]] void draw(const Noise& noise, std::int32_t sequence, std::int64_t first,
                                          float* factor) {
  constexpr std::int64_t draws = block / jittered::words;
  std::uint32_t words[jittered::words][draws];
#pragma omp simd
  for (std::int64_t i = 0; i < draws; ++i) {
    const PhiloxWords drawn = noise.draw(sequence, first / jittered::words + i);
    for (int w = 0; w < jittered::words; ++w) words[w][i] = drawn.word[w];
  }
  for (std::int64_t i = 0; i < draws; ++i)
    for (int w = 0; w < jittered::words; ++w) factor[i * jittered::words + w] = noise.factor(words[w][i]);
}

// Multiplies `count` elements, at most a block.
template <class In, class Out>
void multiply(const In* x, const float* factor, std::int64_t count, Out* y) {
  const auto times = [](float a, float b) { return a * b; };
  if (count == block) return cpu::detail::map_block(y, times, x, factor);
  alignas(64) In in[block] = {};
  alignas(64) Out out[block];
  std::copy_n(x, count, in);
  cpu::detail::map_block(out, times, static_cast<const In*>(in), factor);
  std::copy_n(out, count, y);
}

template <class In, class Out>
Kernel bind_of(const KernelArgs& args) {
  const Noise noise(std::uint64_t(args.attributes.integer("seed")), args.attributes.real("eps"));
  const Shape& shape = args.operands[0].shape();
  const std::int64_t elements = shape[1] * shape[2], blocks = (elements + block - 1) / block;  // of a sequence
  const In* x = args.operands[0].as<In>();
  const auto* sequence = args.operands[1].as<std::int32_t>();  // [B]
  Out* y = args.results[0].as<Out>();
  return [=, all = shape[0] * blocks]() -> Status {
    cpu::parallel_for(all, cpu::grain_elements / 8 / block, [=](std::int64_t begin, std::int64_t end) {
      alignas(64) float factor[block];
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t b = i / blocks, first = i % blocks * block, at = b * elements + first;
        draw(noise, sequence[b], first, factor);
        multiply(x + at, factor, std::min(block, elements - first), y + at);
      }
    });
    return {};
  };
}

Kernel bind(const KernelArgs& args) {
  return cpu::by_dtype(args.operands[0].dtype(), [&]<class T>(T) { return bind_of<T, float>(args); });
}
Kernel bind_dx(const KernelArgs& args) {
  return cpu::by_dtype(args.results[0].dtype(), [&]<class T>(T) { return bind_of<float, T>(args); });
}

const CpuKernel table[] = {{"jitter", bind}, {"jitter_dx", bind_dx}};

}  // namespace

std::span<const CpuKernel> jitter_cpu() { return table; }

}  // namespace lancet::ops
