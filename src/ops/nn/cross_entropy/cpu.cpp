#include <cmath>
#include <type_traits>

#include "math.h"
#include "rows.h"

namespace lancet::ops {
namespace {

struct Rows {
  explicit Rows(const KernelArgs& args)
      : targets(args.operands[1].as<std::int32_t>()),
        count(args.operands[0].shape().rows()),
        columns(args.operands[0].shape().back()),
        vocabulary(args.attributes.integer("vocabulary")),
        total_tokens(args.attributes.integer("total_tokens")) {}

  const std::int32_t* targets;
  std::int64_t count, columns, vocabulary, total_tokens;
};

// Scratch: a loss per row; then, if the logits are not f32, a row of exponentials per thread.
struct Scratch {
  Scratch(const Rows& rows, bool exponentials, std::byte* workspace)
      : slots(backend::cpu::threads()),
        row_floats(exponentials ? (rows.columns + cpu::block) / 16 * 16 : 0),
        losses(reinterpret_cast<double*>(workspace)),
        first_row(reinterpret_cast<float*>(losses + (rows.count + 7) / 8 * 8)) {}

  std::size_t bytes(const Rows& rows) const {
    return std::size_t((rows.count + 7) / 8 * 8) * sizeof(double) + std::size_t(slots * row_floats) * sizeof(float);
  }

  std::int64_t slots, row_floats;
  double* losses;
  float* first_row;
};

// e[i] = exp(x[i] - max); returns their sum. e may be x.
template <class T>
float exponentials(std::int64_t n, const T* x, float max, float* e) {
  return cpu::sum(n, [=](std::int64_t i) { return e[i] = exp_f32(to_f32(x[i]) - max); });
}

double loss_of(float logit, float max, float sum) { return std::log(double(sum)) + double(max) - double(logit); }

// One row: returns its loss and overwrites it with its gradient. It is read from memory once and stays in the cache.
template <class T>
double row(const Rows& rows, T* x, std::int32_t target, float* e) {
  if (target == cpu::ignored_target) {
    std::fill(x, x + rows.columns, T{});
    return 0;
  }
  const float max = cpu::row_max(rows.vocabulary, x);
  const float logit = to_f32(x[target]);
  const float sum = exponentials(rows.vocabulary, x, max, e);
  const float inverse = 1.f / sum, share = float(1.0 / double(rows.total_tokens));
  const float at_target = cross_entropy_dlogit_target(e[target], inverse, share);
  cpu::map(
      rows.vocabulary, x, [=](float v) { return cross_entropy_dlogit(v, inverse, share); },
      static_cast<const float*>(e));
  x[target] = from_f32<T>(at_target);
  std::fill(x + rows.vocabulary, x + rows.columns, T{});
  return loss_of(logit, max, sum);
}

template <class T>
double row_loss(const Rows& rows, const T* x, std::int32_t target) {
  if (target == cpu::ignored_target) return 0;
  const float max = cpu::row_max(rows.vocabulary, x);
  const float sum = cpu::sum_of_exponentials(rows.vocabulary, x, max);
  return loss_of(to_f32(x[target]), max, sum);
}

Kernel bind(const KernelArgs& args) {
  const Rows rows(args);
  double* losses = Scratch(rows, false, args.workspace).losses;
  float* loss = args.results[0].as<float>();
  return cpu::by_dtype(args.operands[0].dtype(), [&]<class T>(T) -> Kernel {
    const T* logits = args.operands[0].as<T>();
    return [=]() -> Status {
      cpu::check_targets(rows.targets, rows.count, rows.vocabulary);
      cpu::parallel_for(rows.count, cpu::row_grain(rows.columns), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t r = begin; r < end; ++r)
          losses[r] = row_loss(rows, logits + r * rows.columns, rows.targets[r]);
      });
      *loss = cpu::mean_loss(rows.count, losses, rows.total_tokens);
      return {};
    };
  });
}
std::size_t workspace(const KernelArgs& args) {
  const Rows rows(args);
  return Scratch(rows, false, nullptr).bytes(rows);
}

Kernel bind_train(const KernelArgs& args) {
  const Rows rows(args);
  const Scratch scratch(rows, args.operands[0].dtype() != DType::f32, args.workspace);
  float* loss = args.results[0].as<float>();
  return cpu::by_dtype(args.operands[0].dtype(), [&]<class T>(T) -> Kernel {
    T* logits = args.results[1].as<T>();
    return [=]() -> Status {
      cpu::check_targets(rows.targets, rows.count, rows.vocabulary);
      cpu::parallel_for(scratch.slots, 1, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t r = rows.count * first / scratch.slots; r < rows.count * last / scratch.slots; ++r) {
          T* x = logits + r * rows.columns;
          float* e;
          if constexpr (std::is_same_v<T, float>)
            e = x;
          else
            e = scratch.first_row + first * scratch.row_floats;
          scratch.losses[r] = row(rows, x, rows.targets[r], e);
        }
      });
      *loss = cpu::mean_loss(rows.count, scratch.losses, rows.total_tokens);
      return {};
    };
  });
}
std::size_t workspace_train(const KernelArgs& args) {
  const Rows rows(args);
  return Scratch(rows, args.operands[0].dtype() != DType::f32, nullptr).bytes(rows);
}

const CpuKernel table[] = {{"cross_entropy", bind, workspace}, {"cross_entropy_train", bind_train, workspace_train}};

}  // namespace

std::span<const CpuKernel> cross_entropy_cpu() { return table; }

}  // namespace lancet::ops
