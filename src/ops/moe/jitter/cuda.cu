#include "math.h"
#include "ops/device/pack.h"

namespace lancet::ops {
namespace {

using namespace device;

// A thread per pack of a sequence, a pack of the type of x or y that is not f32. Bytes: each element read and written
// once; the numbers are never stored.
template <class In, class Out>
struct Jitter {
  using T = std::conditional_t<std::is_same_v<In, float>, Out, In>;
  static constexpr int threads = 256, size = Pack<T>::size;
  static_assert(size % jittered::words == 0);
  jittered::Noise noise;
  const In* x;                   // [B, S*D]
  const std::int32_t* sequence;  // [B]
  Out* y;
  std::int64_t elements, packs, all;  // of a sequence; packs of all sequences
  bool wide;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t i = block.index() * threads + block.thread();
    if (i >= all) return;
    const std::int64_t b = i / packs, first = i % packs * size, at = b * elements + first;
    const Part part = part_of_row<T>(first, elements);
    Floats<T> v = read(x + at, part);
#pragma unroll
    for (int draw = 0; draw < size / jittered::words; ++draw) {
      const PhiloxWords drawn = noise.draw(sequence[b], first / jittered::words + draw);
#pragma unroll
      for (int w = 0; w < jittered::words; ++w) v.v[draw * jittered::words + w] *= noise.factor(drawn.word[w]);
    }
    write(y + at, v, part);
  }

  LANCET_DEVICE Floats<T> read(const In* from, Part part) const {
    if constexpr (std::is_same_v<In, float>)
      return load_floats<T>(from, part, wide);
    else
      return to_floats(load(from, part, wide));
  }
  LANCET_DEVICE void write(Out* to, const Floats<T>& v, Part part) const {
    if constexpr (std::is_same_v<Out, float>)
      store_floats(to, v, part, wide);
    else
      store(to, from_floats<T>(v), part, wide);
  }
};

template <class In, class Out>
Kernel bind_of(const KernelArgs& args) {
  using Type = Jitter<In, Out>;
  const Shape& shape = args.operands[0].shape();
  const In* x = args.operands[0].as<In>();
  Out* y = args.results[0].as<Out>();
  const std::int64_t elements = shape[1] * shape[2], packs = divide_up(elements, Type::size);
  const Type kernel{{std::uint64_t(args.attributes.integer("seed")), args.attributes.real("eps")},
                    x,
                    args.operands[1].as<std::int32_t>(),
                    y,
                    elements,
                    packs,
                    shape[0] * packs,
                    aligned(x, y) && aligned_rows<typename Type::T>(elements)};
  return run_steps(args.stream, Step{divide_up(kernel.all, Type::threads), kernel});
}

Kernel bind_jitter(const KernelArgs& args) {
  return by_dtype(args.operands[0].dtype(), [&]<class T>(T) { return bind_of<T, float>(args); });
}
Kernel bind_jitter_dx(const KernelArgs& args) {
  return by_dtype(args.results[0].dtype(), [&]<class T>(T) { return bind_of<float, T>(args); });
}

}  // namespace

std::span<const DeviceKernel> jitter_cuda() {
  static const DeviceKernel table[] = {{"jitter", bind_jitter}, {"jitter_dx", bind_jitter_dx}};
  return table;
}

}  // namespace lancet::ops
