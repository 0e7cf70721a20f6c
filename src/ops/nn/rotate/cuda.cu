// A block has a row, the heads of a position. Its threads put sine and cosine of the position's angles in shared
// memory, and then take the heads in teams of neighbouring threads, of which each has a pack of a head's first half and
// the one of the second half that it is paired with. Bytes: each element read and written once. The gradients of the
// gammas are sums over pieces of the rows (a block each, for q or for k), which AddParts adds in order.
//
// The cursor of rotate_at is data on the device. An invalid one gives NaN.
#include "ops/device/pack.h"
#include "ops/device/partial_sums.h"
#include "rotation.h"

namespace lancet::ops {
namespace {

using namespace device;

// Sine and cosine of a row's position, and the threads' teams.
template <class T>
struct Turning {
  static constexpr int threads = 128;
  struct Table {
    float sine[Angles::most], cosine[Angles::most];
  };
  PackedHeads heads;
  Angles angles;
  std::int64_t sequence, before;
  int lanes;  // of a team: a power of 2, at most 32
  bool wide;  // halves of heads are aligned for packs

  Turning(const KernelArgs& args, bool is_aligned)
      : heads(args.attributes),
        angles(angles_of(args.attributes)),
        sequence(args.operands[0].shape()[1]),
        before(args.attributes.integer("before", 0)),
        lanes(1),
        wide(is_aligned && aligned_rows<T>(angles.pairs)) {
    while (lanes < warp_size && lanes * Pack<T>::size < angles.pairs) lanes *= 2;
  }

  template <class Block>
  LANCET_DEVICE void fill(Block& block, Table& table, std::int64_t position) const {
    for (std::int64_t i = block.thread(); i < angles.pairs; i += threads) {
      const SineCosine of_angle = angles.at(position, i);
      table.sine[i] = of_angle.sine;
      table.cosine[i] = of_angle.cosine;
    }
    block.sync();
  }

  // Calls f(i, first pack, second pack, part) for the packs of the thread in a head, which begin at its features i and
  // i + pairs.
  template <class Block, class F>
  LANCET_DEVICE void for_packs(Block& block, const T* head, const F& f) const {
    for (std::int64_t i = block.thread() % lanes * Pack<T>::size; i < angles.pairs; i += lanes * Pack<T>::size) {
      const Part part = part_of_row<T>(i, angles.pairs);
      f(i, to_floats(load(head + i, part, wide)), to_floats(load(head + i + angles.pairs, part, wide)), part);
    }
  }

  // 1 / sqrt(mean(x^2) + eps) of a head; all threads of the warp call it. active: the team has a head.
  template <class Block>
  LANCET_DEVICE float norm_scale(Block& block, bool active, const T* head, float eps) const {
    float squares = 0.f;
    if (active)
      for_packs(block, head, [&](std::int64_t, const Floats<T>& a, const Floats<T>& b, Part) {
#pragma unroll
        for (int j = 0; j < Pack<T>::size; ++j) squares += a.v[j] * a.v[j] + b.v[j] * b.v[j];
      });
    return 1.f / __builtin_sqrtf(block.warp_sum(squares, lanes) / float(heads.head_dim) + eps);
  }

  LANCET_DEVICE void forth(const Table& table, std::int64_t i, Floats<T>& a, Floats<T>& b) const {
    turn(table, i, a, b, 1.f);
  }
  LANCET_DEVICE void back(const Table& table, std::int64_t i, Floats<T>& a, Floats<T>& b) const {
    turn(table, i, a, b, -1.f);
  }

  LANCET_DEVICE void store_pair(T* head, std::int64_t i, const Floats<T>& a, const Floats<T>& b, Part part) const {
    store(head + i, from_floats<T>(a), part, wide);
    store(head + i + angles.pairs, from_floats<T>(b), part, wide);
  }

  template <class Block>
  LANCET_DEVICE void copy_values(Block& block, const T* from, T* to) const {
    const std::int64_t n = heads.keys * heads.head_dim;
    for (std::int64_t i = block.thread() * Pack<T>::size; i < n; i += threads * Pack<T>::size) {
      const Part part = part_of_row<T>(i, n);
      store(to + i, load(from + i, part, wide), part, wide);
    }
  }

 private:
  LANCET_DEVICE void turn(const Table& table, std::int64_t i, Floats<T>& a, Floats<T>& b, float sign) const {
#pragma unroll
    for (int j = 0; j < Pack<T>::size; ++j) {
      const bool in_head = i + j < angles.pairs;
      const float sine = in_head ? sign * table.sine[i + j] : 0.f, cosine = in_head ? table.cosine[i + j] : 0.f;
      const float x = a.v[j], y = b.v[j];
      a.v[j] = x * cosine - y * sine;
      b.v[j] = y * cosine + x * sine;
    }
  }
};

// The gammas of q and of k; null: no norm.
struct Gammas {
  const float *of_queries, *of_keys;
  float eps;
  Gammas(const KernelArgs& args, int first)
      : of_queries(args.has(first) ? args.operands[std::size_t(first)].as<float>() : nullptr),
        of_keys(args.has(first + 1) ? args.operands[std::size_t(first + 1)].as<float>() : nullptr),
        eps(float(args.attributes.real("eps", 0))) {}
};

template <class T>
struct Rotate {
  static constexpr int threads = Turning<T>::threads;
  using Shared = typename Turning<T>::Table;
  Turning<T> turning;
  Gammas gammas;
  const T* x;
  T* y;
  const std::int32_t* cursor;  // the position at which rows begin; null: turning.before

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const PackedHeads& heads = turning.heads;
    Shared& table = block.template shared<Shared>();
    const std::int64_t first = cursor ? cursor[0] : turning.before, row = block.index() * heads.width();
    turning.fill(block, table, first + block.index() % turning.sequence);
    const float valid = first >= 0 ? 1.f : __builtin_nanf("");
    for (std::int64_t begin = 0; begin < heads.rotated(); begin += threads / turning.lanes) {
      const std::int64_t h = begin + block.thread() / turning.lanes, at = row + h * heads.head_dim;
      const bool active = h < heads.rotated();
      const float scale = gammas.of_queries ? turning.norm_scale(block, active, x + at, gammas.eps) : 1.f;
      if (!active) continue;
      const float* gamma = h < heads.queries ? gammas.of_queries : gammas.of_keys;
      turning.for_packs(block, x + at, [&](std::int64_t i, Floats<T> a, Floats<T> b, Part part) {
        if (gamma) {
          norm(a, gamma + i, scale, part);
          norm(b, gamma + i + turning.angles.pairs, scale, part);
        }
        turning.forth(table, i, a, b);
#pragma unroll
        for (int j = 0; j < Pack<T>::size; ++j) a.v[j] *= valid, b.v[j] *= valid;
        turning.store_pair(y + at, i, a, b, part);
      });
    }
    turning.copy_values(block, x + row + heads.values(), y + row + heads.values());
  }

 private:
  LANCET_DEVICE static void norm(Floats<T>& v, const float* gamma, float scale, Part part) {
#pragma unroll
    for (int j = 0; j < Pack<T>::size; ++j)
      v.v[j] = j < part.last ? to_f32(from_f32<T>(v.v[j] * scale)) * gamma[j] : 0.f;
  }
};

template <class T>
struct RotateDx {
  static constexpr int threads = Turning<T>::threads;
  using Shared = typename Turning<T>::Table;
  Turning<T> turning;
  Gammas gammas;
  const T *dy, *x;  // x: null without a norm
  T* dx;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const PackedHeads& heads = turning.heads;
    Shared& table = block.template shared<Shared>();
    const std::int64_t row = block.index() * heads.width(), pairs = turning.angles.pairs;
    turning.fill(block, table, turning.before + block.index() % turning.sequence);
    for (std::int64_t begin = 0; begin < heads.rotated(); begin += threads / turning.lanes) {
      const std::int64_t h = begin + block.thread() / turning.lanes, at = row + h * heads.head_dim;
      const bool active = h < heads.rotated();
      const float* gamma = h < heads.queries ? gammas.of_queries : gammas.of_keys;
      float scale = 1.f, mean = 0.f;
      if (gammas.of_queries) {
        scale = turning.norm_scale(block, active, x + at, gammas.eps);
        float sum = 0.f;
        if (active)
          turning.for_packs(block, dy + at, [&](std::int64_t i, Floats<T> a, Floats<T> b, Part part) {
            turning.back(table, i, a, b);
            for (int j = part.first; j < part.last; ++j)
              sum += a.v[j] * gamma[i + j] * to_f32(x[at + i + j]) +
                     b.v[j] * gamma[i + j + pairs] * to_f32(x[at + i + j + pairs]);
          });
        mean = block.warp_sum(sum, turning.lanes) * scale * scale / float(heads.head_dim);
      }
      if (!active) continue;
      turning.for_packs(block, dy + at, [&](std::int64_t i, Floats<T> a, Floats<T> b, Part part) {
        turning.back(table, i, a, b);
        if (gamma) {
          const Floats<T> v = to_floats(load(x + at + i, part, turning.wide));
          const Floats<T> w = to_floats(load(x + at + i + pairs, part, turning.wide));
#pragma unroll
          for (int j = 0; j < Pack<T>::size; ++j) {
            if (j >= part.last) continue;
            a.v[j] = scale * (a.v[j] * gamma[i + j] - v.v[j] * mean);
            b.v[j] = scale * (b.v[j] * gamma[i + j + pairs] - w.v[j] * mean);
          }
        }
        turning.store_pair(dx + at, i, a, b, part);
      });
    }
    turning.copy_values(block, dy + row + heads.values(), dx + row + heads.values());
  }
};

// Two blocks per piece of the rows: the sums for q, and those for k.
template <class T>
struct RotateDw {
  static constexpr int threads = Turning<T>::threads;
  // Of a team: packs of a half head, of which a thread has at most two.
  static constexpr int most_packs = Angles::most / Pack<T>::size / warp_size;
  struct Shared {
    typename Turning<T>::Table table;
    float sums[2 * threads * most_packs * Pack<T>::size];  // [team, hd]
  };
  static_assert(most_packs >= 1);
  Turning<T> turning;
  float eps;
  const T *dy, *x;
  float* parts;  // [pieces, 2, hd]
  std::int64_t rows, pieces;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const PackedHeads& heads = turning.heads;
    Shared& shared = block.template shared<Shared>();
    const std::int64_t piece = block.index() / 2, which = block.index() % 2, pairs = turning.angles.pairs;
    const std::int64_t first = which == 0 ? 0 : heads.queries, count = which == 0 ? heads.queries : heads.keys;
    const int teams = threads / turning.lanes, team = block.thread() / turning.lanes;
    Floats<T> sums[most_packs][2] = {};
    for (std::int64_t r = rows * piece / pieces; r < rows * (piece + 1) / pieces; ++r) {
      block.sync();  // the table of the row before has been read
      turning.fill(block, shared.table, r % turning.sequence);
      for (std::int64_t begin = 0; begin < count; begin += teams) {
        const bool active = begin + team < count;
        const std::int64_t at = r * heads.width() + (first + begin + team) * heads.head_dim;
        const float scale = turning.norm_scale(block, active, x + at, eps);
        if (active) add(block, shared.table, at, scale, sums);
      }
    }
#pragma unroll
    for (int k = 0; k < most_packs; ++k)
#pragma unroll
      for (int j = 0; j < Pack<T>::size; ++j) {
        const std::int64_t i = (std::int64_t(k) * turning.lanes + block.thread() % turning.lanes) * Pack<T>::size + j;
        if (i >= pairs) continue;
        shared.sums[team * heads.head_dim + i] = sums[k][0].v[j];
        shared.sums[team * heads.head_dim + i + pairs] = sums[k][1].v[j];
      }
    block.sync();
    for (std::int64_t i = block.thread(); i < heads.head_dim; i += threads) {
      float sum = 0.f;
      for (int t = 0; t < teams; ++t) sum += shared.sums[t * heads.head_dim + i];
      parts[block.index() * heads.head_dim + i] = sum;
    }
  }

 private:
  // Adds the thread's packs of a head.
  template <class Block>
  LANCET_DEVICE void add(Block& block, const typename Turning<T>::Table& table, std::int64_t at, float scale,
                         Floats<T> (&sums)[most_packs][2]) const {
    const std::int64_t pairs = turning.angles.pairs;
#pragma unroll
    for (int k = 0; k < most_packs; ++k) {
      const std::int64_t i = (std::int64_t(k) * turning.lanes + block.thread() % turning.lanes) * Pack<T>::size;
      if (i >= pairs) continue;
      const Part part = part_of_row<T>(i, pairs);
      Floats<T> a = to_floats(load(dy + at + i, part, turning.wide));
      Floats<T> b = to_floats(load(dy + at + i + pairs, part, turning.wide));
      const Floats<T> v = to_floats(load(x + at + i, part, turning.wide));
      const Floats<T> w = to_floats(load(x + at + i + pairs, part, turning.wide));
      turning.back(table, i, a, b);
#pragma unroll
      for (int j = 0; j < Pack<T>::size; ++j) {
        sums[k][0].v[j] += a.v[j] * (v.v[j] * scale);
        sums[k][1].v[j] += b.v[j] * (w.v[j] * scale);
      }
    }
  }
};

Kernel bind_forward(const KernelArgs& args, int first_gamma, const std::int32_t* cursor) {
  return by_dtype(args.operands[0].dtype(), [&]<class T>(T) -> Kernel {
    const T* x = args.operands[0].as<T>();
    T* y = args.results[0].as<T>();
    return run_steps(args.stream,
                     Step{args.operands[0].shape().rows(),
                          Rotate<T>{Turning<T>(args, aligned(x, y)), Gammas(args, first_gamma), x, y, cursor}});
  });
}

Kernel bind_rotate(const KernelArgs& args) { return bind_forward(args, 1, nullptr); }
Kernel bind_at(const KernelArgs& args) { return bind_forward(args, 2, args.operands[1].as<std::int32_t>()); }

Kernel bind_rotate_dx(const KernelArgs& args) {
  return by_dtype(args.operands[0].dtype(), [&]<class T>(T) -> Kernel {
    const T *dy = args.operands[0].as<T>(), *x = args.has(1) ? args.operands[1].as<T>() : nullptr;
    T* dx = args.results[0].as<T>();
    return run_steps(args.stream, Step{args.operands[0].shape().rows(),
                                       RotateDx<T>{Turning<T>(args, aligned(dy, x, dx)), Gammas(args, 2), dy, x, dx}});
  });
}

// One a multiprocessor for q and one for k, with 16 rows or more each.
std::int64_t pieces_of_rotation(const KernelArgs& args) {
  return std::clamp<std::int64_t>(divide_up(args.operands[0].shape().rows(), 16), 1,
                                  args.device->traits().multiprocessors);
}
std::size_t workspace_rotate_dw(const KernelArgs& args) {
  const PackedHeads heads(args.attributes);
  return std::size_t(pieces_of_rotation(args) * 2 * heads.head_dim) * sizeof(float);
}

Kernel bind_rotate_dw(const KernelArgs& args) {
  return by_dtype(args.operands[0].dtype(), [&]<class T>(T) -> Kernel {
    const T *dy = args.operands[0].as<T>(), *x = args.operands[1].as<T>();
    const Turning<T> turning(args, aligned(dy, x));
    const std::int64_t pieces = pieces_of_rotation(args), n = turning.heads.head_dim;
    auto* parts = reinterpret_cast<float*>(args.workspace);
    const RotateDw<T> kernel{turning, float(args.attributes.real("eps")), dy,    x,
                             parts,   args.operands[0].shape().rows(),    pieces};
    const AddParts add{parts, pieces, 2 * n, args.has(2), args.results[0].as<float>(), n, args.results[1].as<float>()};
    return run_steps(args.stream, Step{2 * pieces, kernel}, Step{add.blocks(), add});
  });
}

}  // namespace

std::span<const DeviceKernel> rotate_cuda() {
  static const DeviceKernel table[] = {{"rotate", bind_rotate},
                                       {"rotate_at", bind_at},
                                       {"rotate_dx", bind_rotate_dx},
                                       {"rotate_dw", bind_rotate_dw, workspace_rotate_dw}};
  return table;
}

}  // namespace lancet::ops
