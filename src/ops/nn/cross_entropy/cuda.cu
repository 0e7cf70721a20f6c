#include "math.h"
#include "ops/device/partial_sums.h"
#include "softmax.h"

namespace lancet::ops {
namespace {

using namespace device;

// A block per row. Bytes: the logits read once and, with `train`, written once; beside these one float per row. The
// gradient needs the logits again: each thread finds its own in shared memory (kept), or, in longer rows, reads them
// again, from the L2 cache if the rows of all blocks fit there. Two blocks fit a multiprocessor, unless their rows are
// longer than half of its shared memory.
template <class T, bool train, bool kept>
struct Row {
  static constexpr int threads = 1024, blocks_per_sm = 2;
  T* logits;
  const std::int32_t* targets;
  float* losses;
  int columns, vocabulary;
  float share;  // 1 / tokens of the whole batch
  bool wide;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t r = block.index();
    T* x = logits + r * columns;
    const std::int32_t target = targets[r];
    if (target == ignored_target) {
      if (block.thread() == 0) losses[r] = 0;
      if constexpr (train)
        for_packs_of_row<T>(block, columns, [&](int start, Part part) { store(x + start, Pack<T>{}, part, wide); });
      return;
    }
    T* row = kept ? static_cast<T*>(block.shared_memory()) : x;
    Softmax softmax;
    for_packs_of_row<T>(block, vocabulary, [&](int start, Part part) {
      const Pack<T> pack = load(static_cast<const T*>(x) + start, part, wide);
      if constexpr (kept) *reinterpret_cast<Pack<T>*>(row + start) = pack;
      softmax.add<T>(to_floats(pack), part.last);
    });
    softmax.join(block);
    // A target outside of the vocabulary gives a loss of NaN.
    const bool known = target >= 0 && target < vocabulary;
    if (block.thread() == 0)
      losses[r] = known ? log_f32(softmax.sum) + (softmax.largest - to_f32(row[target])) : __builtin_nanf("");
    if constexpr (train) {
      if constexpr (!kept) block.sync();  // thread 0 has read its logit
      gradient(block, row, x, target, softmax);
    }
  }

  template <class Block>
  LANCET_DEVICE void gradient(Block& block, const T* row, T* x, std::int32_t target, const Softmax& softmax) const {
    const float inverse = 1.f / softmax.sum;
    // Two at once need more than the 32 registers that two blocks leave.
    for_packs_of_row<T, 1>(block, columns, [&](int start, Part part) {
      Floats<T> v = to_floats(again(row + start, start, part));
#pragma unroll
      for (int i = 0; i < Pack<T>::size; ++i) {
        const int c = start + i;
        const float e = exp_fast_f32(v.v[i] - softmax.largest);
        v.v[i] = c == target      ? cross_entropy_dlogit_target(e, inverse, share)
                 : c < vocabulary ? cross_entropy_dlogit(e, inverse, share)
                                  : 0.f;
      }
      store(x + start, from_floats<T>(v), part, wide);
    });
  }

  // The logits from column `start` on, at `p`; any values for the padding.
  LANCET_DEVICE Pack<T> again(const T* p, int start, Part part) const {
    if constexpr (kept)
      return start < vocabulary ? *reinterpret_cast<const Pack<T>*>(p) : Pack<T>{};
    else
      return load(p, part, wide);
  }
};

std::size_t workspace_cross_entropy(const KernelArgs& args) {
  Scratch scratch(nullptr);
  scratch.take<float>(args.operands[0].shape().rows());
  return scratch.bytes();
}

template <class T, bool train, bool kept>
Kernel bind_cross_entropy_rows(const KernelArgs& args, std::size_t shared) {
  const TensorView& logits = train ? args.results[1] : args.operands[0];
  const std::int64_t rows = logits.shape().rows(), columns = logits.shape().back();
  float* losses = reinterpret_cast<float*>(args.workspace);
  const float share = float(1.0 / double(args.attributes.integer("total_tokens")));
  T* x = logits.as<T>();
  const Row<T, train, kept> kernel{
      x,     args.operands[1].as<std::int32_t>(),   losses, int(columns), int(args.attributes.integer("vocabulary")),
      share, aligned_rows<T>(columns) && aligned(x)};
  return run_steps(args.stream, Step{rows, kernel, shared},
                   Step{1, AddUp{losses, rows, share, args.results[0].as<float>()}});
}

Kernel bind_cross_entropy(const KernelArgs& args) {
  return by_dtype(args.operands[0].dtype(),
                  [&]<class T>(T) { return bind_cross_entropy_rows<T, false, false>(args, 0); });
}

// Whether a block can keep a row of this size. With 227 KB (sm_90) the row has at most 115,968 logits of bf16, with
// 163 KB (sm_80) 83,200.
bool fits_block(std::size_t row_bytes, const backend::Device& device) {
  return row_bytes + collective_scratch_bytes <= std::size_t(device.traits().shared_bytes_of_block);
}

Kernel bind_train(const KernelArgs& args) {
  return by_dtype(args.operands[0].dtype(), [&]<class T>(T) {
    const std::int64_t packs = divide_up(args.attributes.integer("vocabulary"), Pack<T>::size);
    const std::size_t row_bytes = std::size_t(packs) * sizeof(Pack<T>);
    return fits_block(row_bytes, *args.device) ? bind_cross_entropy_rows<T, true, true>(args, row_bytes)
                                               : bind_cross_entropy_rows<T, true, false>(args, 0);
  });
}

}  // namespace

std::span<const DeviceKernel> cross_entropy_cuda() {
  static const DeviceKernel table[] = {{"cross_entropy", bind_cross_entropy, workspace_cross_entropy},
                                       {"cross_entropy_train", bind_train, workspace_cross_entropy}};
  return table;
}

}  // namespace lancet::ops
