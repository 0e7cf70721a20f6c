#include "math.h"
#include "ops/device/pack.h"

namespace lancet::ops {
namespace {

using namespace device;

// A thread per pack of a sequence. Bytes: each element read and written once; the numbers are never stored.
template <class T>
struct Jitter {
  static constexpr int threads = 256, size = Pack<T>::size;
  static_assert(size % jittered::words == 0);
  jittered::Noise noise;
  const T* x;                    // [B, S*D]
  const std::int32_t* sequence;  // [B]
  T* y;
  std::int64_t elements, packs, all;  // of a sequence; packs of all sequences
  bool wide;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t i = block.index() * threads + block.thread();
    if (i >= all) return;
    const std::int64_t b = i / packs, first = i % packs * size, at = b * elements + first;
    const Part part = part_of_row<T>(first, elements);
    Floats<T> v = to_floats(load(x + at, part, wide));
#pragma unroll
    for (int draw = 0; draw < size / jittered::words; ++draw) {
      const PhiloxWords drawn = noise.draw(sequence[b], first / jittered::words + draw);
#pragma unroll
      for (int w = 0; w < jittered::words; ++w) v.v[draw * jittered::words + w] *= noise.factor(drawn.word[w]);
    }
    store(y + at, from_floats<T>(v), part, wide);
  }
};

Kernel bind(const KernelArgs& args) {
  return by_dtype(args.operands[0].dtype(), [&]<class T>(T) {
    const Shape& shape = args.operands[0].shape();
    const T* x = args.operands[0].as<T>();
    T* y = args.results[0].as<T>();
    const std::int64_t elements = shape[1] * shape[2], packs = divide_up(elements, Pack<T>::size);
    const Jitter<T> kernel{{std::uint64_t(args.attributes.integer("seed")), args.attributes.real("eps")},
                           x,
                           args.operands[1].as<std::int32_t>(),
                           y,
                           elements,
                           packs,
                           shape[0] * packs,
                           aligned(x, y) && aligned_rows<T>(elements)};
    return run_steps(args.stream, Step{divide_up(kernel.all, Jitter<T>::threads), kernel});
  });
}

const DeviceKernel table[] = {{"jitter", bind}};

}  // namespace

std::span<const DeviceKernel> jitter_cuda() { return table; }

}  // namespace lancet::ops
