#include <cmath>
#include <limits>

#include "blocks.h"
#include "ops/nn/cross_entropy/rows.h"

namespace lancet::ops {
namespace {

constexpr float no_sum = -std::numeric_limits<float>::infinity();  // the logarithm of 0

// The logarithm of the sum of e^logit over n logits.
template <class T>
float log_sum(std::int64_t n, const T* x) {
  if (n == 0) return no_sum;
  const float max = cpu::row_max(n, x);
  if (max == no_sum) return no_sum;
  return float(std::log(double(cpu::sum_of_exponentials(n, x, max))) + double(max));
}

// Calls f(row, block) for all rows, on all threads.
template <class F>
void for_rows(const LogitBlocks& at, F f) {
  cpu::parallel_for(at.rows, cpu::row_grain(at.columns), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r)
      for (std::int64_t b = 0; b < at.blocks; ++b) f(r, b);
  });
}

Kernel bind(const KernelArgs& args) {
  const LogitBlocks at(args.operands[0], args.results[0], args);
  const std::int32_t* targets = args.operands[1].as<std::int32_t>();
  float* stats = args.results[0].as<float>();
  return cpu::by_dtype(args.operands[0].dtype(), [&]<class T>(T) -> Kernel {
    const T* logits = args.operands[0].as<T>();
    return [=]() -> Status {
      cpu::check_targets(targets, at.rows, at.vocabulary);
      for_rows(at, [&](std::int64_t r, std::int64_t b) {
        const T* x = logits + r * at.columns + b * at.width;
        const std::int64_t target = at.column(b, targets[r]);
        float* to = stats + (b * at.rows + r) * 2;
        to[0] = log_sum(at.valid(b), x);
        to[1] = target < 0 ? 0.f : to_f32(x[target]);
      });
      return {};
    };
  });
}

// Overwrites the n logits of a row of one block by their gradients. factor: the derivative of the loss by the logarithm
// of the block's sum.
template <class T>
void gradient(std::int64_t n, T* x, float log_sum, float factor) {
  if (factor == 0)
    std::fill_n(x, n, T{});  // the logarithm may be -infinity
  else
    cpu::map(
        n, x, [=](float v) { return exp_f32(v - log_sum) * factor; }, static_cast<const T*>(x));
}

Kernel bind_dx(const KernelArgs& args) {
  const LogitBlocks at(args.results[0], args.operands[0], args);
  const float *dstats = args.operands[0].as<float>(), *stats = args.operands[3].as<float>();
  const std::int32_t* targets = args.operands[2].as<std::int32_t>();
  return cpu::by_dtype(args.results[0].dtype(), [&]<class T>(T) -> Kernel {
    T* logits = args.results[0].as<T>();
    return [=]() -> Status {
      cpu::check_targets(targets, at.rows, at.vocabulary);
      for_rows(at, [&](std::int64_t r, std::int64_t b) {
        T* x = logits + r * at.columns + b * at.width;
        const float *stat = stats + (b * at.rows + r) * 2, *dstat = dstats + (b * at.rows + r) * 2;
        const bool ignored = targets[r] == cpu::ignored_target;
        const std::int64_t n = ignored ? 0 : at.valid(b), target = at.column(b, targets[r]);
        const float logit = target < 0 ? 0.f : to_f32(x[target]);
        gradient(n, x, stat[0], dstat[0]);
        if (target >= 0)
          x[target] = from_f32<T>((dstat[0] == 0 ? 0.f : exp_f32(logit - stat[0]) * dstat[0]) + dstat[1]);
        std::fill(x + n, x + at.width, T{});
      });
      return {};
    };
  });
}

// The blocks of stats [blocks, rows, 2].
struct Stats {
  explicit Stats(const KernelArgs& args)
      : blocks(args.operands[0].shape()[0]), rows(args.operands[0].shape()[1] * args.operands[0].shape()[2]) {}
  std::int64_t at(std::int64_t block, std::int64_t row) const { return (block * rows + row) * 2; }
  std::int64_t blocks, rows;
};

// Returns the loss of a row, and sets the derivatives of its mean by the row's numbers.
double loss_of_row(const Stats& of, std::int64_t r, const float* stats, float share, float* dstats) {
  float max = no_sum;
  double sum = 0, target = 0;
  for (std::int64_t b = 0; b < of.blocks; ++b) max = std::max(max, stats[of.at(b, r)]);
  for (std::int64_t b = 0; b < of.blocks; ++b) {
    float* to = dstats + of.at(b, r);
    to[0] = exp_f32(stats[of.at(b, r)] - max);
    to[1] = -share;
    sum += double(to[0]);
    target += double(stats[of.at(b, r) + 1]);
  }
  const float factor = float(double(share) / sum);
  for (std::int64_t b = 0; b < of.blocks; ++b) dstats[of.at(b, r)] *= factor;
  return std::log(sum) + double(max) - target;
}

Kernel bind_loss(const KernelArgs& args) {
  const Stats of(args);
  const float* stats = args.operands[0].as<float>();
  const std::int32_t* targets = args.operands[1].as<std::int32_t>();
  float *loss = args.results[0].as<float>(), *dstats = args.results[1].as<float>();
  double* losses = reinterpret_cast<double*>(args.workspace);
  const std::int64_t total_tokens = args.attributes.integer("total_tokens");
  return [=]() -> Status {
    const float share = float(1.0 / double(total_tokens));
    cpu::parallel_for(of.rows, cpu::row_grain(2 * of.blocks), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        const bool ignored = targets[r] == cpu::ignored_target;
        losses[r] = ignored ? 0 : loss_of_row(of, r, stats, share, dstats);
        for (std::int64_t b = 0; b < of.blocks && ignored; ++b) std::fill_n(dstats + of.at(b, r), 2, 0.f);
      }
    });
    *loss = cpu::mean_loss(of.rows, losses, total_tokens);
    return {};
  };
}
std::size_t workspace_loss(const KernelArgs& args) { return std::size_t(Stats(args).rows) * sizeof(double); }

const CpuKernel table[] = {
    {"logit_stats", bind}, {"logit_stats_dx", bind_dx}, {"loss_of_stats", bind_loss, workspace_loss}};

}  // namespace

std::span<const CpuKernel> logit_stats_cpu() { return table; }

}  // namespace lancet::ops
