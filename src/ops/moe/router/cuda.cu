// The three products of the router in f32, each sum in a fixed order: by D for a logit, independent of the other tokens
// (so that parts route as the whole does), by expert for dx, by token within a piece and then by piece for dw.
#include "ops/device/partial_sums.h"

namespace lancet::ops {
namespace {

using namespace device;

// A warp computes 4 tokens by 8 experts at a time. Each thread adds the terms of its columns for all 32 sums; a
// transposing reduction then gives sum l to thread l. Bytes: x and the logits once; w stays in the cache.
template <class T>
struct Router {
  static constexpr int threads = 256;
  static constexpr int tokens_per_warp = 4, experts_at_once = 8;
  static constexpr int tokens_per_block = threads / warp_size * tokens_per_warp;
  const T* x;      // [tokens, d]
  const float* w;  // [experts, d]
  float* logits;   // [tokens, experts]
  std::int64_t tokens, experts, d;
  bool wide;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t first = block.index() * tokens_per_block + block.warp() * tokens_per_warp;
    if (first >= tokens) return;
    const T* rows[tokens_per_warp];  // rows beyond the last token repeat it
#pragma unroll
    for (int a = 0; a < tokens_per_warp; ++a) rows[a] = x + (first + a < tokens ? first + a : tokens - 1) * d;
    for (std::int64_t e = 0; e < experts; e += experts_at_once) {
      float sums[warp_size] = {};
      add_products(block, rows, e, sums);
      const float logit = transpose_sum(block, sums);
      const std::int64_t t = first + block.warp_lane() / experts_at_once,
                         expert = e + block.warp_lane() % experts_at_once;
      if (t < tokens && expert < experts) logits[t * experts + expert] = logit;
    }
  }

  template <class Block>
  LANCET_DEVICE void add_products(Block& block, const T* const (&rows)[tokens_per_warp], std::int64_t first_expert,
                                  float (&sums)[warp_size]) const {
    for (std::int64_t start = block.warp_lane() * Pack<T>::size; start < d; start += warp_size * Pack<T>::size) {
      const Part part = part_of_row<T>(start, d);
      Floats<T> v[tokens_per_warp];
#pragma unroll
      for (int a = 0; a < tokens_per_warp; ++a) v[a] = to_floats(load(rows[a] + start, part, wide));
#pragma unroll
      for (int b = 0; b < experts_at_once; ++b) {
        const std::int64_t e = first_expert + b < experts ? first_expert + b : experts - 1;
        const Floats<T> weight = load_floats<T>(w + e * d + start, part, wide);
#pragma unroll
        for (int a = 0; a < tokens_per_warp; ++a)
#pragma unroll
          for (int i = 0; i < Pack<T>::size; ++i) sums[a * experts_at_once + b] += v[a].v[i] * weight.v[i];
      }
    }
  }

  // Gives thread l the sum of sums[l] over the warp: in each round a thread keeps one half of its sums and gives the
  // other half to its partner.
  template <class Block>
  LANCET_DEVICE static float transpose_sum(Block& block, float (&sums)[warp_size]) {
#pragma unroll
    for (int half = warp_size / 2; half > 0; half /= 2) {
      const bool upper = block.warp_lane() & half;
#pragma unroll
      for (int j = 0; j < warp_size / 2; ++j) {
        if (j >= half) break;
        const float keep = upper ? sums[j + half] : sums[j], give = upper ? sums[j] : sums[j + half];
        sums[j] = keep + block.shuffle_xor(give, half);
      }
    }
    return sums[0];
  }
};

Kernel bind_router(const KernelArgs& args) {
  const Shape& shape = args.operands[0].shape();
  const std::int64_t tokens = shape.rows(), d = shape.back(), experts = args.operands[1].shape()[0];
  const float* w = args.operands[1].as<float>();
  return by_dtype(args.operands[0].dtype(), [&]<class T>(T) {
    const T* x = args.operands[0].as<T>();
    const Router<T> kernel{x, w, args.results[0].as<float>(), tokens, experts, d, aligned_rows<T>(d) && aligned(x, w)};
    return run_steps(args.stream, Step{divide_up(tokens, Router<T>::tokens_per_block), kernel});
  });
}

// A thread computes one pack of columns for 8 tokens, so that each weight that it reads serves 8 tokens. Bytes: dlogits
// and dx once; w from the cache, tokens / 8 times.
template <class T>
struct RouterDx {
  static constexpr int threads = 128;
  static constexpr int tokens_at_once = 8, experts_at_once = 64;
  struct Shared {
    float dlogits[experts_at_once][tokens_at_once];
  };
  const float *dlogits, *w;
  T* dx;
  std::int64_t tokens, experts, d, tiles;
  bool wide;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    Shared& shared = block.template shared<Shared>();
    const std::int64_t first = block.index() / tiles * tokens_at_once;
    const std::int64_t start = (block.index() % tiles * threads + block.thread()) * Pack<T>::size;
    const Part part = part_of_row<T>(start, d);
    Floats<T> sums[tokens_at_once] = {};
    for (std::int64_t e = 0; e < experts; e += experts_at_once) {
      const int count = experts - e < experts_at_once ? int(experts - e) : experts_at_once;
      block.sync();
      for (int i = block.thread(); i < count * tokens_at_once; i += threads) {
        const std::int64_t t = first + i / count;
        shared.dlogits[i % count][i / count] = t < tokens ? dlogits[t * experts + e + i % count] : 0.f;
      }
      block.sync();
      if (part.empty()) continue;
#pragma unroll 2
      for (int k = 0; k < count; ++k) {
        const Floats<T> weight = load_floats<T>(w + (e + k) * d + start, part, wide);
#pragma unroll
        for (int a = 0; a < tokens_at_once; ++a)
#pragma unroll
          for (int i = 0; i < Pack<T>::size; ++i) sums[a].v[i] += shared.dlogits[k][a] * weight.v[i];
      }
    }
    if (part.empty()) return;
#pragma unroll
    for (int a = 0; a < tokens_at_once; ++a)
      if (first + a < tokens) store(dx + (first + a) * d + start, from_floats<T>(sums[a]), part, wide);
  }
};

Kernel bind_router_dx(const KernelArgs& args) {
  const std::int64_t tokens = args.operands[0].shape().rows(), experts = args.operands[0].shape().back();
  const std::int64_t d = args.operands[1].shape()[1];
  const float *dlogits = args.operands[0].as<float>(), *w = args.operands[1].as<float>();
  return by_dtype(args.results[0].dtype(), [&]<class T>(T) {
    T* dx = args.results[0].as<T>();
    const std::int64_t tiles = divide_up(d, RouterDx<T>::threads * Pack<T>::size);
    const RouterDx<T> kernel{dlogits, w, dx,    tokens,
                             experts, d, tiles, aligned_rows<T>(d) && aligned(dx) && aligned(w)};
    return run_steps(args.stream, Step{tiles * divide_up(tokens, RouterDx<T>::tokens_at_once), kernel});
  });
}

// The partial sums of one piece of the tokens: a thread computes one pack of columns for 8 experts. Bytes: x once per 8
// experts; pieces * E * D floats written.
template <class T>
struct RouterDw {
  static constexpr int threads = 128;
  static constexpr int experts_at_once = 8, tokens_at_once = 32;
  static constexpr int tile = threads * Pack<T>::size;  // columns of a block
  struct Shared {
    float dlogits[tokens_at_once][experts_at_once];
  };
  const float* dlogits;
  const T* x;
  float* parts;  // [pieces, E, D]
  std::int64_t tokens, experts, d, pieces, tiles, groups;
  bool wide;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    Shared& shared = block.template shared<Shared>();
    const std::int64_t tile_index = block.index() % tiles, group = block.index() / tiles % groups,
                       piece = block.index() / tiles / groups;
    const std::int64_t start = tile_index * tile + block.thread() * Pack<T>::size,
                       first_expert = group * experts_at_once;
    const Part part = part_of_row<T>(start, d);
    const std::int64_t end = tokens * (piece + 1) / pieces;
    Floats<T> sums[experts_at_once] = {};
    for (std::int64_t first = tokens * piece / pieces; first < end; first += tokens_at_once) {
      const int count = end - first < tokens_at_once ? int(end - first) : tokens_at_once;
      block.sync();
      for (int i = block.thread(); i < count * experts_at_once; i += threads) {
        const std::int64_t e = first_expert + i % experts_at_once;
        shared.dlogits[i / experts_at_once][i % experts_at_once] =
            e < experts ? dlogits[(first + i / experts_at_once) * experts + e] : 0.f;
      }
      block.sync();
      if (part.empty()) continue;
#pragma unroll 4
      for (int k = 0; k < count; ++k) {
        const Floats<T> row = to_floats(load(x + (first + k) * d + start, part, wide));
#pragma unroll
        for (int b = 0; b < experts_at_once; ++b)
#pragma unroll
          for (int i = 0; i < Pack<T>::size; ++i) sums[b].v[i] += shared.dlogits[k][b] * row.v[i];
      }
    }
    if (part.empty()) return;
    const bool wide_parts = wide && d % 4 == 0;
#pragma unroll
    for (int b = 0; b < experts_at_once; ++b)
      if (first_expert + b < experts)
        store_floats<T>(parts + (piece * experts + first_expert + b) * d + start, sums[b], part, wide_parts);
  }
};

// The launch of router_dw: two blocks a multiprocessor, with pieces of 32 tokens or more, at most one a multiprocessor.
struct Shares {
  std::int64_t tokens, experts, d, groups, tiles, pieces;

  explicit Shares(const KernelArgs& args)
      : tokens(args.operands[0].shape().rows()),
        experts(args.operands[0].shape().back()),
        d(args.operands[1].shape().back()),
        groups(divide_up(experts, 8)),
        tiles(divide_up(d, args.operands[1].dtype() == DType::bf16 ? RouterDw<bf16>::tile : RouterDw<float>::tile)),
        pieces(std::clamp<std::int64_t>(
            std::min(divide_up(tokens, 32), 2 * args.device->traits().multiprocessors / (groups * tiles)), 1,
            args.device->traits().multiprocessors)) {}
};
std::size_t workspace_router_dw(const KernelArgs& args) {
  const Shares shares(args);
  Scratch scratch(nullptr);
  scratch.take<float>(shares.pieces * shares.experts * shares.d);
  return scratch.bytes();
}

Kernel bind_router_dw(const KernelArgs& args) {
  const Shares s(args);
  float* parts = reinterpret_cast<float*>(args.workspace);
  const std::int64_t n = s.experts * s.d;
  const AddParts add{parts, s.pieces, n, args.has(2), args.results[0].as<float>()};
  return by_dtype(args.operands[1].dtype(), [&]<class T>(T) {
    const T* x = args.operands[1].as<T>();
    const RouterDw<T> kernel{
        args.operands[0].as<float>(),      x, parts, s.tokens, s.experts, s.d, s.pieces, s.tiles, s.groups,
        aligned_rows<T>(s.d) && aligned(x)};
    return run_steps(args.stream, Step{s.tiles * s.groups * s.pieces, kernel}, Step{add.blocks(), add});
  });
}

}  // namespace

std::span<const DeviceKernel> router_cuda() {
  static const DeviceKernel table[] = {
      {"router", bind_router}, {"router_dx", bind_router_dx}, {"router_dw", bind_router_dw, workspace_router_dw}};
  return table;
}

}  // namespace lancet::ops
