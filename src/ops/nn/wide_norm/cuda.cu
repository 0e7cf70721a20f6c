// A block has a row, for sums over its features and for what follows from them. The gradients of the gammas are sums by
// column over pieces of the rows, a block each, which AddParts adds in order. Bytes: each element once, but for dx,
// which reads dy, x and gamma of a row again, from the cache.
#include "ops/device/column_tile.h"
#include "ops/device/partial_sums.h"
#include "wide_heads.h"

namespace lancet::ops {
namespace {

using namespace device;

constexpr int row_threads = 256;

// Calls f(which, first feature, part) for the packs of the block's threads in q (0) and k (1) of a row.
template <class T, class Block, class F>
LANCET_DEVICE void for_packs(Block& block, int which, std::int64_t queries, std::int64_t keys, const F& f) {
  const std::int64_t begin = which == 0 ? 0 : queries, count = which == 0 ? queries : keys;
  for (std::int64_t i = block.thread() * Pack<T>::size; i < count; i += row_threads * Pack<T>::size)
    f(begin + i, part_of_row<T>(i, count));
}

template <class T>
struct WideSquares {
  static constexpr int threads = row_threads;
  const T* qkv;
  float* squares;
  std::int64_t queries, keys;
  bool wide;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const T* row = qkv + block.index() * (queries + 2 * keys);
    for (int which = 0; which < 2; ++which) {
      float sum = 0.f;
      for_packs<T>(block, which, queries, keys, [&](std::int64_t at, Part part) {
        const Floats<T> x = to_floats(load(row + at, part, wide));
#pragma unroll
        for (int j = 0; j < Pack<T>::size; ++j) sum += x.v[j] * x.v[j];
      });
      sum = block.sum(sum);
      if (block.thread() == 0) squares[2 * block.index() + which] = sum;
    }
  }
};

template <class T>
struct WideSquaresDx {
  static constexpr int threads = row_threads;
  const float* dsquares;
  const T* qkv;
  T* dqkv;
  std::int64_t queries, keys;
  bool wide;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t row = block.index() * (queries + 2 * keys);
    for (int which = 0; which < 3; ++which) {  // of v zeros
      const float factor = which < 2 ? 2.f * dsquares[2 * block.index() + which] : 0.f;
      for_packs<T>(block, which, which < 2 ? queries : queries + keys, keys, [&](std::int64_t at, Part part) {
        Floats<T> x = {};
        if (which < 2) x = to_floats(load(qkv + row + at, part, wide));
#pragma unroll
        for (int j = 0; j < Pack<T>::size; ++j) x.v[j] *= factor;
        store(dqkv + row + at, from_floats<T>(x), part, wide);
      });
    }
  }
};

template <class T>
LANCET_DEVICE Floats<T> gamma_of(const WideHeads& heads, const float* q, const float* k, std::int64_t at, Part part,
                                 bool wide) {
  const float* gamma = at < heads.queries ? q + at : k + (at - heads.queries);
  return load_floats<T>(gamma, part, wide);
}

template <class T>
struct WideNorm {
  static constexpr int threads = row_threads;
  WideHeads heads;
  const T* qkv;
  const float *q_gamma, *k_gamma, *squares;
  T* y;
  bool wide;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t row = block.index() * heads.width();
    for (int which = 0; which < 2; ++which) {
      const float scale = heads.scale(squares + 2 * block.index(), which);
      for_packs<T>(block, which, heads.queries, heads.keys, [&](std::int64_t at, Part part) {
        const Pack<T> x = load(qkv + row + at, part, wide);
        const Floats<T> gamma = gamma_of<T>(heads, q_gamma, k_gamma, at, part, wide);
        Floats<T> out;
#pragma unroll
        for (int j = 0; j < Pack<T>::size; ++j) out.v[j] = heads.limited(WideHeads::normed(x.v[j], scale, gamma.v[j]));
        store(y + row + at, from_floats<T>(out), part, wide);
      });
    }
    for_packs<T>(block, 1, heads.normed(), heads.keys, [&](std::int64_t at, Part part) {
      Floats<T> v = to_floats(load(qkv + row + at, part, wide));
#pragma unroll
      for (int j = 0; j < Pack<T>::size; ++j) v.v[j] = heads.limited(v.v[j]);
      store(y + row + at, from_floats<T>(v), part, wide);
    });
  }
};

template <class T>
struct WideNormDx {
  static constexpr int threads = row_threads;
  WideHeads heads;
  const T *dy, *qkv;
  const float *q_gamma, *k_gamma, *squares;
  T* dqkv;
  float* dsquares;
  bool wide;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t row = block.index() * heads.width();
    for (int which = 0; which < 2; ++which) {
      const float* of_row = squares + 2 * block.index();
      const float scale = heads.scale(of_row, which);
      float sum = 0.f;
      for_packs<T>(block, which, heads.queries, heads.keys, [&](std::int64_t at, Part part) {
        const Pack<T> x = load(qkv + row + at, part, wide);
        Floats<T> g = to_floats(load(dy + row + at, part, wide));
        const Floats<T> gamma = gamma_of<T>(heads, q_gamma, k_gamma, at, part, wide);
#pragma unroll
        for (int j = 0; j < Pack<T>::size; ++j) {
          g.v[j] = heads.is_within(WideHeads::normed(x.v[j], scale, gamma.v[j])) ? g.v[j] * gamma.v[j] : 0.f;
          sum += g.v[j] * to_f32(x.v[j]);
          g.v[j] *= scale;
        }
        store(dqkv + row + at, from_floats<T>(g), part, wide);
      });
      sum = block.sum(sum);
      if (block.thread() == 0) dsquares[2 * block.index() + which] = heads.of_squares(of_row, which, sum);
    }
    for_packs<T>(block, 1, heads.normed(), heads.keys, [&](std::int64_t at, Part part) {
      const Floats<T> v = to_floats(load(qkv + row + at, part, wide));
      Floats<T> g = to_floats(load(dy + row + at, part, wide));
#pragma unroll
      for (int j = 0; j < Pack<T>::size; ++j) g.v[j] = heads.is_within(v.v[j]) ? g.v[j] : 0.f;
      store(dqkv + row + at, from_floats<T>(g), part, wide);
    });
  }
};

// A block per piece of the rows and tile of columns, which is of q or of k.
template <class T>
struct WideNormDw {
  using Tile = ColumnTile<T>;
  static constexpr int threads = Tile::threads;
  using Shared = typename Tile::Shared;
  WideHeads heads;
  const T *dy, *qkv;
  const float *q_gamma, *k_gamma, *squares;
  float* parts;  // [pieces, normed()]
  std::int64_t rows, pieces, query_tiles, tiles;
  bool wide;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t piece = block.index() / tiles, tile = block.index() % tiles;
    const bool of_query = tile < query_tiles;
    const std::int64_t first = (of_query ? tile : tile - query_tiles) * Tile::columns,
                       count = of_query ? heads.queries : heads.keys, begin = of_query ? 0 : heads.queries;
    const std::int64_t start = first + block.warp_lane() * Pack<T>::size;
    const Part part = part_of_row<T>(start, count);
    Floats<T> sums = {};
    if (!part.empty())
      add_rows(block, piece, begin + start, (of_query ? q_gamma : k_gamma) + start, of_query, part, sums);
    Tile::write(block, sums, parts + piece * heads.normed() + begin + first, count - first);
  }

  // at: the first of the thread's features in a row, whose gammas are at `gamma`.
  template <class Block>
  LANCET_DEVICE void add_rows(Block& block, std::int64_t piece, std::int64_t at, const float* gamma, bool of_query,
                              Part part, Floats<T>& sums) const {
    const Floats<T> of_features = load_floats<T>(gamma, part, wide);
    const std::int64_t end = rows * (piece + 1) / pieces;
    for (std::int64_t r = rows * piece / pieces + block.warp(); r < end; r += Tile::warps) {
      const float scale = heads.scale(squares + 2 * r, of_query ? 0 : 1);
      const Floats<T> g = to_floats(load(dy + r * heads.width() + at, part, wide));
      const Pack<T> x = load(qkv + r * heads.width() + at, part, wide);
#pragma unroll
      for (int j = 0; j < Pack<T>::size; ++j)
        sums.v[j] += heads.is_within(WideHeads::normed(x.v[j], scale, of_features.v[j]))
                         ? g.v[j] * (to_f32(x.v[j]) * scale)
                         : 0.f;
    }
  }
};

// The features of q and of k in a row.
std::int64_t keys_of(const KernelArgs& args) {
  return args.attributes.integer("heads") * args.attributes.integer("head_dim");
}
std::int64_t queries_of(const KernelArgs& args) { return keys_of(args) * args.attributes.integer("group", 1); }

template <class T, class... P>
bool wide_rows(const KernelArgs& args, const P*... pointers) {
  return aligned_rows<T>(keys_of(args)) && aligned(pointers...);
}

// Of the operands `first` and the next one.
bool wide_gammas(const KernelArgs& args, std::size_t first) {
  return aligned(args.operands[first].as<float>(), args.operands[first + 1].as<float>());
}

Kernel bind_squares(const KernelArgs& args) {
  return by_dtype(args.operands[0].dtype(), [&]<class T>(T) -> Kernel {
    const T* qkv = args.operands[0].as<T>();
    return run_steps(args.stream, Step{args.operands[0].shape().rows(),
                                       WideSquares<T>{qkv, args.results[0].as<float>(), queries_of(args), keys_of(args),
                                                      wide_rows<T>(args, qkv)}});
  });
}

Kernel bind_squares_dx(const KernelArgs& args) {
  return by_dtype(args.operands[1].dtype(), [&]<class T>(T) -> Kernel {
    const T* qkv = args.operands[1].as<T>();
    T* dqkv = args.results[0].as<T>();
    return run_steps(args.stream, Step{args.operands[1].shape().rows(),
                                       WideSquaresDx<T>{args.operands[0].as<float>(), qkv, dqkv, queries_of(args),
                                                        keys_of(args), wide_rows<T>(args, qkv, dqkv)}});
  });
}

Kernel bind_wide_norm(const KernelArgs& args) {
  return by_dtype(args.operands[0].dtype(), [&]<class T>(T) -> Kernel {
    const T* qkv = args.operands[0].as<T>();
    T* y = args.results[0].as<T>();
    return run_steps(args.stream, Step{args.operands[0].shape().rows(),
                                       WideNorm<T>{WideHeads(args.attributes), qkv, args.operands[1].as<float>(),
                                                   args.operands[2].as<float>(), args.operands[3].as<float>(), y,
                                                   wide_rows<T>(args, qkv, y) && wide_gammas(args, 1)}});
  });
}

Kernel bind_wide_norm_dx(const KernelArgs& args) {
  return by_dtype(args.operands[0].dtype(), [&]<class T>(T) -> Kernel {
    const T *dy = args.operands[0].as<T>(), *qkv = args.operands[1].as<T>();
    T* dqkv = args.results[0].as<T>();
    return run_steps(args.stream, Step{args.operands[0].shape().rows(),
                                       WideNormDx<T>{WideHeads(args.attributes), dy, qkv, args.operands[2].as<float>(),
                                                     args.operands[3].as<float>(), args.operands[4].as<float>(), dqkv,
                                                     args.results[1].as<float>(),
                                                     wide_rows<T>(args, dy, qkv, dqkv) && wide_gammas(args, 2)}});
  });
}

// One a multiprocessor, with 32 rows or more each.
std::int64_t pieces_of_norm(const KernelArgs& args) {
  return std::clamp<std::int64_t>(divide_up(args.operands[0].shape().rows(), 32), 1,
                                  args.device->traits().multiprocessors);
}
std::size_t workspace_wide_norm_dw(const KernelArgs& args) {
  return std::size_t(pieces_of_norm(args) * (queries_of(args) + keys_of(args))) * sizeof(float);
}

Kernel bind_wide_norm_dw(const KernelArgs& args) {
  return by_dtype(args.operands[0].dtype(), [&]<class T>(T) -> Kernel {
    const WideHeads heads(args.attributes);
    const std::int64_t pieces = pieces_of_norm(args), query_tiles = divide_up(heads.queries, ColumnTile<T>::columns),
                       tiles = query_tiles + divide_up(heads.keys, ColumnTile<T>::columns);
    const T *dy = args.operands[0].as<T>(), *qkv = args.operands[1].as<T>();
    auto* parts = reinterpret_cast<float*>(args.workspace);
    const WideNormDw<T> kernel{heads,
                               dy,
                               qkv,
                               args.operands[2].as<float>(),
                               args.operands[3].as<float>(),
                               args.operands[4].as<float>(),
                               parts,
                               args.operands[0].shape().rows(),
                               pieces,
                               query_tiles,
                               tiles,
                               wide_rows<T>(args, dy, qkv) && wide_gammas(args, 2)};
    const AddParts add{parts,
                       pieces,
                       heads.normed(),
                       args.has(5),
                       args.results[0].as<float>(),
                       heads.queries,
                       args.results[1].as<float>()};
    return run_steps(args.stream, Step{pieces * tiles, kernel}, Step{add.blocks(), add});
  });
}

}  // namespace

std::span<const DeviceKernel> wide_norm_cuda() {
  static const DeviceKernel table[] = {{"wide_norm_squares", bind_squares},
                                       {"wide_norm_squares_dx", bind_squares_dx},
                                       {"wide_norm", bind_wide_norm},
                                       {"wide_norm_dx", bind_wide_norm_dx},
                                       {"wide_norm_dw", bind_wide_norm_dw, workspace_wide_norm_dw}};
  return table;
}

}  // namespace lancet::ops
