#include "ops/device/slot_rows.h"

namespace lancet::ops {
namespace {

using namespace device;

// Copies rows from tokens to slots, or back; a token without a row gets zeros back. Bytes: each row once in and out.
template <class T, bool back>
struct Move {
  static constexpr int threads = TokenRows::threads;
  TokenRows rows;
  const T* from;
  T* to;
  std::int64_t width;
  bool wide;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t t = rows.token(block);
    if (t >= rows.at.tokens) return;
    const std::int64_t row = rows.at.row(t);
    if (!back && row < 0) return;
    const T* in = from + (back ? row : t) * width;
    T* out = to + (back ? t : row) * width;
    for_row<T>(block, width, [&](std::int64_t start, Part part) {
      store(out + start, row < 0 ? Pack<T>{} : load(in + start, part, wide), part, wide);
    });
  }
};

template <bool back>
Kernel bind(const KernelArgs& args) {
  const TensorView &in = args.operands[0], &out = args.results[0];
  const TokenRows rows(args.operands[1], args.operands[2], back ? in : out, args.share());
  return by_dtype(in.dtype(), [&]<class T>(T) {
    const T* from = in.as<T>();
    T* to = out.as<T>();
    const std::int64_t width = in.shape().back();
    const Move<T, back> kernel{rows, from, to, width, aligned_rows<T>(width) && aligned(from, to)};
    return run_steps(args.stream, Step{rows.blocks(), kernel});
  });
}

const DeviceKernel table[] = {{"dispatch", bind<false>}, {"dispatch_dx", bind<true>}};

}  // namespace

std::span<const DeviceKernel> dispatch_cuda() { return table; }

}  // namespace lancet::ops
