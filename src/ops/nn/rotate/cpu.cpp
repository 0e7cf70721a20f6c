// A thread has whole rows, the heads of a position. It computes sine and cosine of the position's angles once for all
// of them. The gradients of the gammas are sums over fixed pieces of the rows, added in order, so that their bits do
// not depend on the number of threads.
#include <cmath>
#include <cstring>

#include "ops/cpu.h"
#include "rotation.h"

namespace lancet::ops {
namespace {

constexpr std::int64_t most_pairs = Angles::most, pieces = 32;

// Sine and cosine of a position's angles.
struct Turn {
  alignas(64) float sine[most_pairs], cosine[most_pairs];

  void set(const Angles& angles, std::int64_t position) {
#pragma omp simd
    for (std::int64_t i = 0; i < angles.pairs; ++i) {
      const SineCosine of_angle = angles.at(position, i);
      sine[i] = of_angle.sine;
      cosine[i] = of_angle.cosine;
    }
  }
  template <class In, class Out>
  void forth(std::int64_t pairs, const In* x, Out* y) const {
#pragma omp simd
    for (std::int64_t i = 0; i < pairs; ++i) {
      const float a = to_f32(x[i]), b = to_f32(x[i + pairs]);
      y[i] = from_f32<Out>(a * cosine[i] - b * sine[i]);
      y[i + pairs] = from_f32<Out>(b * cosine[i] + a * sine[i]);
    }
  }
  template <class In, class Out>
  void back(std::int64_t pairs, const In* dy, Out* dx) const {
#pragma omp simd
    for (std::int64_t i = 0; i < pairs; ++i) {
      const float a = to_f32(dy[i]), b = to_f32(dy[i + pairs]);
      dx[i] = from_f32<Out>(a * cosine[i] + b * sine[i]);
      dx[i + pairs] = from_f32<Out>(b * cosine[i] - a * sine[i]);
    }
  }
};

template <class T>
float norm_scale(std::int64_t n, const T* x, float eps) {
  const float squares = cpu::sum(n, [=](std::int64_t i) { return to_f32(x[i]) * to_f32(x[i]); });
  return 1.f / std::sqrt(squares / float(n) + eps);
}

// What all kernels need. gamma[0] is that of q, gamma[1] that of k; null: no norm.
struct Rotation {
  PackedHeads heads;
  Angles angles;
  std::int64_t rows, sequence, before;
  float eps;
  const float* gamma[2];

  Rotation(const KernelArgs& args, int first_gamma)
      : heads(args.attributes),
        angles(angles_of(args.attributes)),
        rows(args.operands[0].shape().rows()),
        sequence(args.operands[0].shape()[1]),
        before(args.attributes.integer("before", 0)),
        eps(float(args.attributes.real("eps", 0))),
        gamma{args.has(first_gamma) ? args.operands[std::size_t(first_gamma)].as<float>() : nullptr,
              args.has(first_gamma + 1) ? args.operands[std::size_t(first_gamma + 1)].as<float>() : nullptr} {}
  const float* gamma_of(std::int64_t head) const { return gamma[head < heads.queries ? 0 : 1]; }

  // Calls f(row's first element, its turn) for all rows, on all threads.
  template <class F>
  void for_rows(std::int64_t first_position, const F& f) const {
    cpu::parallel_for(rows, cpu::row_grain(heads.width()), [&](std::int64_t begin, std::int64_t end) {
      Turn turn;
      for (std::int64_t r = begin; r < end; ++r) {
        turn.set(angles, first_position + r % sequence);
        f(r * heads.width(), turn);
      }
    });
  }

  template <class T>
  void forward(const T* x, T* y, const Turn& turn) const {
    const std::int64_t n = heads.head_dim;
    for (std::int64_t h = 0; h < heads.rotated(); ++h, x += n, y += n) {
      const float* scales = gamma_of(h);
      if (!scales) {
        turn.forth(angles.pairs, x, y);
        continue;
      }
      const float scale = norm_scale(n, x, eps);
      alignas(64) float normed[2 * most_pairs];
#pragma omp simd
      for (std::int64_t i = 0; i < n; ++i) normed[i] = to_f32(from_f32<T>(to_f32(x[i]) * scale)) * scales[i];
      turn.forth(angles.pairs, normed, y);
    }
    std::memcpy(y, x, std::size_t(heads.keys * n) * sizeof(T));
  }

  // x: the row of qkv, null without a norm.
  template <class T>
  void backward(const T* dy, const T* x, T* dx, const Turn& turn) const {
    const std::int64_t n = heads.head_dim;
    for (std::int64_t h = 0; h < heads.rotated(); ++h, dy += n, dx += n) {
      const float* scales = gamma_of(h);
      if (!scales) {
        turn.back(angles.pairs, dy, dx);
        continue;
      }
      const float scale = norm_scale(n, x, eps);
      alignas(64) float g[2 * most_pairs];  // the gradient of the normed head
      turn.back(angles.pairs, dy, g);
      const float* of_normed = g;
      const float mean = cpu::sum(n, [=](std::int64_t i) { return of_normed[i] * scales[i] * to_f32(x[i]); }) * scale *
                         scale / float(n);
#pragma omp simd
      for (std::int64_t i = 0; i < n; ++i) dx[i] = from_f32<T>(scale * (g[i] * scales[i] - to_f32(x[i]) * mean));
      x += n;
    }
    std::memcpy(dx, dy, std::size_t(heads.keys * n) * sizeof(T));
  }

  // Adds the row's share to the gradients of both gammas, sums[2][hd].
  template <class T>
  void add_dw(const T* dy, const T* x, const Turn& turn, float* sums) const {
    const std::int64_t n = heads.head_dim;
    for (std::int64_t h = 0; h < heads.rotated(); ++h, dy += n, x += n) {
      float* sum = sums + (h < heads.queries ? 0 : n);
      const float scale = norm_scale(n, x, eps);
      alignas(64) float g[2 * most_pairs];
      turn.back(angles.pairs, dy, g);
#pragma omp simd
      for (std::int64_t i = 0; i < n; ++i) sum[i] += g[i] * (to_f32(x[i]) * scale);
    }
  }
};

Kernel bind_forward(const KernelArgs& args, const Rotation& rotation, const std::int32_t* cursor) {
  return cpu::by_dtype(args.operands[0].dtype(), [&]<class T>(T) -> Kernel {
    const T* x = args.operands[0].as<T>();
    T* y = args.results[0].as<T>();
    return [=]() -> Status {
      const std::int64_t first = cursor ? cursor[0] : rotation.before;
      LANCET_CHECK(first >= 0, "position {}", first);
      rotation.for_rows(first, [&](std::int64_t at, const Turn& turn) { rotation.forward(x + at, y + at, turn); });
      return {};
    };
  });
}

Kernel bind(const KernelArgs& args) { return bind_forward(args, Rotation(args, 1), nullptr); }
Kernel bind_at(const KernelArgs& args) {
  return bind_forward(args, Rotation(args, 2), args.operands[1].as<std::int32_t>());
}

Kernel bind_dx(const KernelArgs& args) {
  const Rotation rotation(args, 2);
  return cpu::by_dtype(args.operands[0].dtype(), [&]<class T>(T) -> Kernel {
    const T *dy = args.operands[0].as<T>(), *x = args.has(1) ? args.operands[1].as<T>() : nullptr;
    T* dx = args.results[0].as<T>();
    return [=]() -> Status {
      rotation.for_rows(rotation.before, [&](std::int64_t at, const Turn& turn) {
        rotation.backward(dy + at, x ? x + at : nullptr, dx + at, turn);
      });
      return {};
    };
  });
}

std::size_t workspace_dw(const KernelArgs& args) {
  const PackedHeads heads(args.attributes);
  return std::size_t(pieces * 2 * heads.head_dim) * sizeof(float);
}

Kernel bind_dw(const KernelArgs& args) {
  const Rotation rotation(args, 4);  // no gammas
  const bool accumulate = args.has(2);
  float *dq_gamma = args.results[0].as<float>(), *dk_gamma = args.results[1].as<float>();
  auto* parts = reinterpret_cast<float*>(args.workspace);  // [pieces, 2, hd]
  return cpu::by_dtype(args.operands[0].dtype(), [&]<class T>(T) -> Kernel {
    const T *dy = args.operands[0].as<T>(), *x = args.operands[1].as<T>();
    return [=]() -> Status {
      const std::int64_t n = rotation.heads.head_dim, width = rotation.heads.width();
      const std::int64_t grain = std::max<std::int64_t>(1, pieces * cpu::row_grain(width) / rotation.rows);
      cpu::parallel_for(pieces, grain, [&](std::int64_t begin, std::int64_t end) {
        Turn turn;
        for (std::int64_t p = begin; p < end; ++p) {
          std::fill_n(parts + p * 2 * n, 2 * n, 0.f);
          for (std::int64_t r = rotation.rows * p / pieces; r < rotation.rows * (p + 1) / pieces; ++r) {
            turn.set(rotation.angles, r % rotation.sequence);
            rotation.add_dw(dy + r * width, x + r * width, turn, parts + p * 2 * n);
          }
        }
      });
      for (std::int64_t i = 0; i < 2 * n; ++i) {
        float& sum = i < n ? dq_gamma[i] : dk_gamma[i - n];
        if (!accumulate) sum = 0;
        for (std::int64_t p = 0; p < pieces; ++p) sum += parts[p * 2 * n + i];
      }
      return {};
    };
  });
}

const CpuKernel table[] = {
    {"rotate", bind}, {"rotate_at", bind_at}, {"rotate_dx", bind_dx}, {"rotate_dw", bind_dw, workspace_dw}};

}  // namespace

std::span<const CpuKernel> rotate_cpu() { return table; }

}  // namespace lancet::ops
