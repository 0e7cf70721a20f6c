#include "blocks.h"
#include "ops/device/partial_sums.h"
#include "ops/nn/cross_entropy/softmax.h"

namespace lancet::ops {
namespace {

using namespace device;

constexpr float no_sum = -__builtin_huge_valf();  // the logarithm of 0

// A block of threads per row of a block of columns. Bytes: the logits once. A target outside of the vocabulary gives
// NaN, which the loss shows.
template <class T>
struct LogSums {
  static constexpr int threads = 1024, blocks_per_sm = 2;
  const T* logits;
  const std::int32_t* targets;
  float* stats;  // [blocks, rows, 2]
  LogitBlocks at;
  bool wide;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t b = block.index() / at.rows, r = block.index() % at.rows;
    const T* x = logits + r * at.columns + b * at.width;
    Softmax softmax;
    for_packs_of_row<T>(block, int(at.valid(b)), [&](int start, Part part) {
      softmax.add<T>(to_floats(load(x + start, part, wide)), part.last);
    });
    softmax.join(block);
    if (block.thread() > 0) return;
    const std::int32_t target = targets[r];
    const std::int64_t column = at.column(b, target);
    const bool known = target >= ignored_target && target < at.vocabulary;
    float* to = stats + block.index() * 2;
    to[0] = softmax.sum == 0.f ? no_sum : log_f32(softmax.sum) + softmax.largest;
    to[1] = !known ? __builtin_nanf("") : column < 0 ? 0.f : to_f32(x[column]);
  }
};

Kernel bind_logit_stats(const KernelArgs& args) {
  const LogitBlocks at(args.operands[0], args.results[0], args);
  return by_dtype(args.operands[0].dtype(), [&]<class T>(T) {
    const T* x = args.operands[0].as<T>();
    const bool wide = aligned_rows<T>(at.columns) && aligned_rows<T>(at.width) && aligned(x);
    return run_steps(args.stream, Step{at.rows * at.blocks, LogSums<T>{x, args.operands[1].as<std::int32_t>(),
                                                                       args.results[0].as<float>(), at, wide}});
  });
}

// Likewise. Bytes: the logits once read and once written.
template <class T>
struct LogitGradient {
  static constexpr int threads = 1024, blocks_per_sm = 2;
  const float* dstats;  // [blocks, rows, 2]
  T* logits;
  const std::int32_t* targets;
  const float* stats;  // [blocks, rows, 2]
  LogitBlocks at;
  bool wide;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t b = block.index() / at.rows, r = block.index() % at.rows;
    T* x = logits + r * at.columns + b * at.width;
    const std::int32_t target = targets[r];
    const int valid = target == ignored_target ? 0 : int(at.valid(b)), column = int(at.column(b, target));
    const float log_sum = stats[block.index() * 2], factor = dstats[block.index() * 2],
                at_target = dstats[block.index() * 2 + 1];
    for_packs_of_row<T>(block, int(at.width), [&](int start, Part part) {
      Floats<T> v = to_floats(load(static_cast<const T*>(x) + start, part, wide));
#pragma unroll
      for (int i = 0; i < Pack<T>::size; ++i) {
        const int c = start + i;
        // Without a factor the logarithm may be -infinity.
        const float all = c < valid && factor != 0.f ? exp_fast_f32(v.v[i] - log_sum) * factor : 0.f;
        v.v[i] = c == column ? all + at_target : all;
      }
      store(x + start, from_floats<T>(v), part, wide);
    });
  }
};

Kernel bind_logit_stats_dx(const KernelArgs& args) {
  const LogitBlocks at(args.results[0], args.operands[0], args);
  return by_dtype(args.results[0].dtype(), [&]<class T>(T) {
    T* x = args.results[0].as<T>();
    const bool wide = aligned_rows<T>(at.columns) && aligned_rows<T>(at.width) && aligned(x);
    const LogitGradient<T> kernel{args.operands[0].as<float>(), x,  args.operands[2].as<std::int32_t>(),
                                  args.operands[3].as<float>(), at, wide};
    return run_steps(args.stream, Step{at.rows * at.blocks, kernel});
  });
}

// A thread per row. Bytes: the stats read twice and written twice, the second time in the cache.
struct LossOfStats {
  static constexpr int threads = 128;
  const float* stats;  // [blocks, rows, 2]
  const std::int32_t* targets;
  float *losses, *dstats;  // [rows]; [blocks, rows, 2]
  std::int64_t blocks, rows;
  float share;  // 1 / tokens of the whole batch

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t r = block.index() * threads + block.thread();
    if (r >= rows) return;
    float largest = no_sum, sum = 0, target = 0;
    for (std::int64_t b = 0; b < blocks; ++b) largest = Larger{}(stats[at(b, r)], largest);
    for (std::int64_t b = 0; b < blocks; ++b) {
      const float e = exp_f32(stats[at(b, r)] - largest);
      dstats[at(b, r)] = e;
      sum += e;
      target += stats[at(b, r) + 1];
    }
    const bool ignored = targets[r] == ignored_target;
    const float factor = share / sum;
    for (std::int64_t b = 0; b < blocks; ++b) {
      dstats[at(b, r)] = ignored ? 0.f : dstats[at(b, r)] * factor;
      dstats[at(b, r) + 1] = ignored ? 0.f : -share;
    }
    losses[r] = ignored ? 0.f : log_f32(sum) + (largest - target);
  }

  LANCET_DEVICE std::int64_t at(std::int64_t b, std::int64_t r) const { return (b * rows + r) * 2; }
};

Kernel bind_logit_stats_loss(const KernelArgs& args) {
  const Shape& shape = args.operands[0].shape();
  const std::int64_t rows = shape[1] * shape[2];
  float* losses = reinterpret_cast<float*>(args.workspace);
  const float share = float(1.0 / double(args.attributes.integer("total_tokens")));
  const LossOfStats kernel{args.operands[0].as<float>(),
                           args.operands[1].as<std::int32_t>(),
                           losses,
                           args.results[1].as<float>(),
                           shape[0],
                           rows,
                           share};
  return run_steps(args.stream, Step{divide_up(rows, LossOfStats::threads), kernel},
                   Step{1, AddUp{losses, rows, share, args.results[0].as<float>()}});
}
std::size_t workspace_logit_stats_loss(const KernelArgs& args) {
  Scratch scratch(nullptr);
  scratch.take<float>(args.operands[0].elements() / (2 * args.operands[0].shape()[0]));
  return scratch.bytes();
}

}  // namespace

std::span<const DeviceKernel> logit_stats_cuda() {
  static const DeviceKernel table[] = {{"logit_stats", bind_logit_stats},
                                       {"logit_stats_dx", bind_logit_stats_dx},
                                       {"loss_of_stats", bind_logit_stats_loss, workspace_logit_stats_loss}};
  return table;
}

}  // namespace lancet::ops
