#include "ops/device/slot_rows.h"

namespace lancet::ops {
namespace {

using namespace device;

// Copies the rows of tokens to the slots of their choices. Bytes: each token once in, each choice once out.
template <class T>
struct Copy {
  static constexpr int threads = TokenRows::threads;
  TokenRows rows;
  const T* x;
  T* slots;
  std::int64_t width;
  bool wide;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t t = rows.token(block);
    if (t >= rows.at.tokens) return;
    const T* in = x + t * width;
    for (std::int64_t k = rows.at.next(t, 0); k < rows.at.choices; k = rows.at.next(t, k + 1)) {
      T* out = slots + rows.at.row(t, k) * width;
      for_row<T>(block, width,
                 [&](std::int64_t start, Part part) { store(out + start, load(in + start, part, wide), part, wide); });
    }
  }
};

// Adds up the rows of the tokens' choices. Bytes: each choice once in, each token once out.
template <class T>
struct Sum {
  static constexpr int threads = TokenRows::threads;
  TokenRows rows;
  const T* slots;
  T* dx;
  std::int64_t width;
  bool wide;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t t = rows.token(block);
    if (t >= rows.at.tokens) return;
    sum_rows(block, rows.at, t, slots, dx + t * width, width, wide, [](std::int64_t) { return 1.f; });
  }
};

template <template <class> class Move>
Kernel bind_dispatch(const KernelArgs& args) {
  const TensorView &in = args.operands[0], &out = args.results[0];
  const bool back = std::is_same_v<Move<float>, Sum<float>>;
  const TokenRows rows(args.operands[1], args.operands[2], back ? in : out, args.share());
  return by_dtype(in.dtype(), [&]<class T>(T) {
    const T* from = in.as<T>();
    T* to = out.as<T>();
    const std::int64_t width = in.shape().back();
    const Move<T> kernel{rows, from, to, width, aligned_rows<T>(width) && aligned(from, to)};
    return run_steps(args.stream, Step{rows.blocks(), kernel});
  });
}

}  // namespace

std::span<const DeviceKernel> dispatch_cuda() {
  static const DeviceKernel table[] = {{"dispatch", bind_dispatch<Copy>}, {"dispatch_dx", bind_dispatch<Sum>}};
  return table;
}

}  // namespace lancet::ops
