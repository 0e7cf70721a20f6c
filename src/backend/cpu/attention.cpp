// Each thread computes whole heads. Key panels that the causal mask discards entirely are not computed.
//
// Grouped queries: forward, a thread packs keys and values once for the heads of queries that it has of a group.
// Backward, it has the whole group, whose gradients of keys and values add up in the same f32 sums.
//
// Forward: for a block of queries, one per SIMD lane of a tile, the scores are computed transposed, [keys, queries]. So
// the softmax over keys runs down the lanes without a sum across them, and the exponentials are written as the packed
// operand (tile.h) of the product with V. That product, [features, queries], is divided by the softmax's sums and
// stored transposed.
//
// Backward: a step of kBlocks blocks of queries recomputes P = exp(S - lse) and dS = P (dP - delta) scale panel by
// panel, multiplies dS with K to get dQ, and then adds P^T dout and dS^T Q to dV and dK, which are kept in f32 for the
// whole head. Of a part of the positions these sums begin with those of the parts behind it.
#include "lancet/backend/cpu/attention.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "lancet/backend/cpu/parallel.h"
#include "lancet/base/check.h"
#include "lancet/base/math.h"
#include "tile.h"

namespace lancet::backend::cpu {
namespace {

using simd::F32;
using simd::I32;
using simd::kLanes;

constexpr int kQueries = kTileColumns;  // queries of a block: the columns of a tile, two vectors of lanes
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
static_assert(kTileRows % 2 == 0);  // keys are packed in pairs

// Divides a thread's workspace into arrays, 64-byte aligned, each padded by at least one vector. With a null base it
// only counts bytes.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}
  template <class U>
  U* take(std::int64_t count) {
    std::byte* p = base_ ? base_ + used_ : nullptr;
    used_ += (static_cast<std::size_t>(count) * sizeof(U) + 127) / 64 * 64;
    return reinterpret_cast<U*>(p);
  }
  std::size_t used() const { return used_; }

 private:
  std::byte* base_;
  std::size_t used_ = 0;
};

struct Extents {
  explicit Extents(const AttentionDesc& d)
      : sequence(d.sequence),
        before(d.before),
        total(before + sequence),
        head_dim(d.head_dim),
        stride((d.group + 2) * d.heads * d.head_dim),
        out_stride(d.group * d.heads * d.head_dim),
        keys(out_stride),
        values(keys + d.heads * d.head_dim),
        key_panels(divide_up(total, kTileRows)),
        feature_panels(divide_up(head_dim, kTileRows)),
        feature_columns(divide_up(head_dim, kTileColumns) * kTileColumns),
        scale(1.f / std::sqrt(static_cast<float>(head_dim))) {}
  std::int64_t sequence, before, total;  // positions of queries, before them, and of keys
  std::int64_t head_dim;
  std::int64_t stride, out_stride;          // elements between positions in qkv, in out
  std::int64_t keys, values;                // the columns of qkv where they begin
  std::int64_t key_panels, feature_panels;  // of kTileRows
  std::int64_t feature_columns;             // head_dim rounded up to tiles
  float scale;
};

// Packs the operands of one head. `in` is [sequence][head_dim] with the given stride.
template <class T>
struct Packer {
  using Unit = typename Packing<T>::Unit;
  const Extents& x;

  std::int64_t positions_size() const { return x.key_panels * kTileRows * units_of<T>(x.head_dim); }
  std::int64_t features_size() const { return x.feature_panels * kTileRows * units_of<T>(x.total); }
  std::int64_t lanes_size() const { return kQueries * units_of<T>(x.head_dim); }

  // Panels of kTileRows positions; the sum runs over features.
  void positions(const T* in, std::int64_t stride, Unit* out) const {
    for (std::int64_t p = 0; p < x.key_panels; ++p)
      pack_along_k<kTileRows>(in + p * kTileRows * stride, stride, rows_of_panel(p, x.total), x.head_dim,
                              out + p * kTileRows * units_of<T>(x.head_dim));
  }
  // Panels of kTileRows features; the sum runs over positions.
  void features(const T* in, std::int64_t stride, Unit* out) const {
    for (std::int64_t p = 0; p < x.feature_panels; ++p)
      pack_across_k<kTileRows>(in + p * kTileRows, stride, rows_of_panel(p, x.head_dim), x.head_dim - p * kTileRows,
                               x.total, out + p * kTileRows * units_of<T>(x.total));
  }
  // A block of positions as lanes; the sum runs over features. Lanes beyond `count` are zero.
  void lanes(const T* in, std::int64_t stride, int count, Unit* out) const {
    pack_along_k<kQueries>(in, stride, count, x.head_dim, out);
  }
  // Features as lanes; the sum runs over `count` positions.
  void columns(const T* in, std::int64_t stride, std::int64_t count, Unit* out) const {
    for (std::int64_t f = 0; f < x.feature_columns; f += kTileColumns)
      pack_across_k<kTileColumns>(in + f, stride,
                                  static_cast<int>(std::min<std::int64_t>(kTileColumns, x.head_dim - f)),
                                  x.head_dim - f, count, out + f * units_of<T>(count));
  }

  static int rows_of_panel(std::int64_t panel, std::int64_t rows) {
    return static_cast<int>(std::min<std::int64_t>(kTileRows, rows - panel * kTileRows));
  }
};

// Packs rows `key` and `key + 1` of [keys][kQueries] as the second operand of a product that sums over keys.
template <class T, int Stride = kQueries>
LANCET_HD void put_keys(typename Packing<T>::Unit* packed, std::int64_t key, const float* first, const float* second) {
  for (int v = 0; v < kQueries; v += kLanes) {
    if constexpr (Packing<T>::depth == 2) {
      const simd::U32 low = simd::widen(simd::round_bf16(simd::load(first + v)));
      const simd::U32 high = simd::widen(simd::round_bf16(simd::load(second + v)));
      simd::store_as(packed + key / 2 * Stride + v, low | high << 16);
    } else {
      simd::store_as(packed + key * Stride + v, simd::load(first + v));
      simd::store_as(packed + (key + 1) * Stride + v, simd::load(second + v));
    }
  }
}

// x = exp(x * scale - shift) for a row of a block. The copies tell the compiler that the arrays do not overlap.
LANCET_HD void exp_row(float* x, float scale, const float (&shift)[kQueries]) {
  float y[kQueries], by[kQueries];
  for (int v = 0; v < kQueries; v += kLanes) simd::store(y + v, rounded_product(simd::load(x + v), scale));
  memcpy(by, shift, sizeof by);
  for (int i = 0; i < kQueries; ++i) y[i] = exp_f32(y[i] - by[i]);
  memcpy(x, y, sizeof y);
}

// out[query * stride + feature] = in[feature][query] * factor[query] for `count` queries.
template <class T>
void store_transposed(const float* in, const float* factor, std::int64_t features, int count, T* out,
                      std::int64_t stride) {
  for (int q = 0; q < count; q += kLanes) {
    const F32 f = simd::load(factor + q);
    const int lanes = std::min(count - q, kLanes);
    for (std::int64_t h = 0; h < features; h += kLanes) {
      const std::int64_t width = std::min<std::int64_t>(features - h, kLanes);
      simd::U32 block[kLanes];
      for (int i = 0; i < kLanes; ++i)
        block[i] = i < width ? (simd::U32)(simd::load(in + (h + i) * kQueries + q) * f) : simd::U32{};
      simd::transpose(block);
      for (int i = 0; i < lanes; ++i) {
        T row[kLanes];
        T* to = out + (q + i) * stride + h;
        simd::store(width == kLanes ? to : row, (F32)block[i]);
        if (width < kLanes) std::copy_n(row, width, to);
      }
    }
  }
}

template <class T>
class Forward {
  using Unit = typename Packing<T>::Unit;

 public:
  Forward(const Extents& x, std::byte* workspace) : x_(x), pack_{x} {
    Carver carve(workspace);
    keys_ = carve.take<Unit>(pack_.positions_size());
    values_ = carve.take<Unit>(pack_.features_size());
    queries_ = carve.take<Unit>(pack_.lanes_size());
    scores_ = carve.take<float>((x.total + 1) * kQueries);
    probabilities_ = carve.take<Unit>((units_of<T>(x.total) + 1) * kQueries);
    result_ = carve.take<float>(x.feature_panels * kTileRows * kQueries);
    bytes_ = carve.used();
  }
  std::size_t bytes() const { return bytes_; }

  // A head of queries, with the keys and values that it reads.
  void head(const T* q, const T* k, const T* v, T* out, float* lse) {
    if (packed_ != k) {
      pack_.positions(k, x_.stride, keys_);
      pack_.features(v, x_.stride, values_);
      packed_ = k;
    }
    for (std::int64_t q0 = 0; q0 < x_.sequence; q0 += kQueries) {
      const int count = static_cast<int>(std::min<std::int64_t>(kQueries, x_.sequence - q0));
      pack_.lanes(q + q0 * x_.stride, x_.stride, count, queries_);
      const std::int64_t keys = x_.before + q0 + count;
      for (std::int64_t p = 0; p * kTileRows < keys; ++p)
        tile_function<Unit, float>(pack_.rows_of_panel(p, keys))(
            units_of<T>(x_.head_dim), keys_ + p * kTileRows * units_of<T>(x_.head_dim), queries_, nullptr, 0,
            scores_ + p * kTileRows * kQueries, kQueries);
      softmax(x_.before + q0, keys);
      for (std::int64_t p = 0; p < x_.feature_panels; ++p)
        tile_function<Unit, float>(pack_.rows_of_panel(p, x_.head_dim))(
            units_of<T>(keys), values_ + p * kTileRows * units_of<T>(x_.total), probabilities_, nullptr, 0,
            result_ + p * kTileRows * kQueries, kQueries);
      store_transposed(result_, inverse_, x_.head_dim, count, out + q0 * x_.out_stride, x_.out_stride);
      std::copy_n(lse_, count, lse + q0);
    }
  }

 private:
  // scores_ -> probabilities_ (not yet divided by their sum), inverse_ and lse_. q0: the position of the first query.
  void softmax(std::int64_t q0, std::int64_t keys) {
    for (std::int64_t j = q0; j < keys; ++j)  // causal mask: lane i is query q0 + i
      for (std::int64_t i = 0; i < j - q0; ++i) scores_[j * kQueries + i] = kMinusInfinity;
    std::fill_n(scores_ + keys * kQueries, kQueries, kMinusInfinity);  // pads an odd number of keys
    F32 most[2] = {simd::splat(kMinusInfinity), simd::splat(kMinusInfinity)};
    for (std::int64_t j = 0; j < keys; ++j)
      for (int v = 0; v < 2; ++v) most[v] = simd::max(most[v], simd::load(scores_ + j * kQueries + v * kLanes));
    alignas(64) float top[kQueries], sum[kQueries];
    for (int v = 0; v < 2; ++v) simd::store(top + v * kLanes, rounded_product(most[v], x_.scale));
    F32 sums[2] = {};
    for (std::int64_t j = 0; j < keys; j += 2) {
      float* first = scores_ + j * kQueries;
      float* second = first + kQueries;
      exp_row(first, x_.scale, top);
      exp_row(second, x_.scale, top);
      for (int v = 0; v < 2; ++v) sums[v] += simd::load(first + v * kLanes) + simd::load(second + v * kLanes);
      put_keys<T>(probabilities_, j, first, second);
    }
    for (int v = 0; v < 2; ++v) simd::store(sum + v * kLanes, sums[v]);
    for (int i = 0; i < kQueries; ++i) inverse_[i] = 1.f / sum[i];
    for (int i = 0; i < kQueries; ++i) lse_[i] = top[i] + log_f32(sum[i]);
  }

  const Extents& x_;
  Packer<T> pack_;
  Unit *keys_, *values_, *queries_, *probabilities_;
  const T* packed_ = nullptr;  // the keys that are in keys_
  float *scores_, *result_;
  alignas(64) float inverse_[kQueries], lse_[kQueries];
  std::size_t bytes_;
};

// A step processes kBlocks blocks of queries, so that the products that sum over queries (dK, dV) have longer sums.
template <class T>
class Backward {
  using Unit = typename Packing<T>::Unit;
  static constexpr int kBlocks = 2;
  static constexpr int kStep = kBlocks * kQueries;
  static constexpr int kRowUnits = kStep / Packing<T>::depth;  // units of a key's row over a step's queries

 public:
  Backward(const Extents& x, std::byte* workspace) : x_(x), pack_{x} {
    Carver carve(workspace);
    const std::int64_t rows = x.key_panels * kTileRows;
    keys_ = carve.take<Unit>(pack_.positions_size());
    values_ = carve.take<Unit>(pack_.positions_size());
    key_features_ = carve.take<Unit>(pack_.features_size());
    queries_ = carve.take<Unit>(pack_.lanes_size());
    douts_ = carve.take<Unit>(pack_.lanes_size());
    query_columns_ = carve.take<Unit>(x.feature_columns * units_of<T>(kStep));
    dout_columns_ = carve.take<Unit>(x.feature_columns * units_of<T>(kStep));
    p_ = carve.take<Unit>(rows * kRowUnits);
    ds_ = carve.take<Unit>(rows * kRowUnits);
    ds_lanes_ = carve.take<Unit>((units_of<T>(rows) + 1) * kQueries);
    dk_ = carve.take<float>(rows * x.feature_columns);
    dv_ = carve.take<float>(rows * x.feature_columns);
    dq_ = carve.take<float>(x.feature_panels * kTileRows * kQueries);
    bytes_ = carve.used();
  }
  std::size_t bytes() const { return bytes_; }

  // A head of keys.
  struct Keys {
    const T *k, *v;
    T *dk, *dv;                                  // of the queries' own positions
    float *k_sums = nullptr, *v_sums = nullptr;  // of all positions; null: there are no others
    std::int64_t sums_stride = 0;
    bool add = false;
  };

  // A head of keys and the group of neighbouring heads of queries that read it.
  void heads(std::int64_t group, const T* dout, const T* q, const Keys& keys, const T* out, const float* lse, T* dq) {
    pack_.positions(keys.k, x_.stride, keys_);
    pack_.positions(keys.v, x_.stride, values_);
    pack_.features(keys.k, x_.stride, key_features_);
    begin_sums(dk_, keys.add ? keys.k_sums : nullptr, keys.sums_stride);
    begin_sums(dv_, keys.add ? keys.v_sums : nullptr, keys.sums_stride);
    for (std::int64_t g = 0; g < group; ++g) {
      const std::int64_t column = g * x_.head_dim;
      for (std::int64_t s0 = 0; s0 < x_.sequence; s0 += kStep) {
        const std::int64_t count = std::min<std::int64_t>(kStep, x_.sequence - s0);
        for (int b = 0; b < kBlocks; ++b)
          block(b, s0, count, dout + column, q + column, out + column, lse + g * x_.sequence, dq + column);
        sum_over_queries(s0, count, dout + column, q + column);
      }
    }
    store_rows(dk_, x_.before, keys.dk, x_.stride);
    store_rows(dv_, x_.before, keys.dv, x_.stride);
    if (!keys.k_sums) return;
    store_rows(dk_, 0, keys.k_sums, keys.sums_stride);
    store_rows(dv_, 0, keys.v_sums, keys.sums_stride);
  }

 private:
  // Computes block b of the step at s0: its columns of p_ and ds_, and its dQ.
  void block(int b, std::int64_t s0, std::int64_t step_count, const T* dout, const T* q, const T* out, const float* lse,
             T* dq) {
    const std::int64_t q0 = s0 + b * kQueries, step_keys = x_.before + s0 + step_count;
    const int count = static_cast<int>(std::clamp<std::int64_t>(x_.sequence - q0, 0, kQueries));
    const std::int64_t keys = count ? x_.before + q0 + count : 0;
    if (count) {
      pack_.lanes(q + q0 * x_.stride, x_.stride, count, queries_);
      pack_.lanes(dout + q0 * x_.out_stride, x_.out_stride, count, douts_);
      row_terms(count, dout + q0 * x_.out_stride, out + q0 * x_.out_stride, lse + q0);
    }
    for (std::int64_t p = 0; p * kTileRows < keys; ++p) panel(p, b, x_.before + q0, keys);
    for (std::int64_t j = keys; j < step_keys; ++j) put_row(j, b, zeros_, zeros_);
    if (!count) return;
    for (std::int64_t p = 0; p < x_.feature_panels; ++p)
      tile_function<Unit, float>(pack_.rows_of_panel(p, x_.head_dim))(
          units_of<T>(keys), key_features_ + p * kTileRows * units_of<T>(x_.total), ds_lanes_, nullptr, 0,
          dq_ + p * kTileRows * kQueries, kQueries);
    store_transposed(dq_, ones_.data(), x_.head_dim, count, dq + q0 * x_.stride, x_.stride);
  }

  // Sets delta_ to each query's sum of dout * out. Lanes without a query get an infinite lse, so that their P is 0.
  void row_terms(int count, const T* dout, const T* out, const float* lse) {
    std::fill_n(delta_, kQueries, 0.f);
    std::fill_n(lse_, kQueries, -kMinusInfinity);
    std::copy_n(lse, count, lse_);
    for (int i = 0; i < count; ++i) {
      F32 sum{};
      std::int64_t f = 0;
      for (; f + kLanes <= x_.head_dim; f += kLanes)
        sum += simd::load(dout + i * x_.out_stride + f) * simd::load(out + i * x_.out_stride + f);
      float total = 0.f;
      for (int l = 0; l < kLanes; ++l) total += sum[l];
      for (; f < x_.head_dim; ++f) total += to_f32(dout[i * x_.out_stride + f]) * to_f32(out[i * x_.out_stride + f]);
      delta_[i] = total;
    }
  }

  // Keys of panel p against the block's queries, from position q0 on: P = exp(S - lse), dS = P (dP - delta) scale.
  void panel(std::int64_t p, int b, std::int64_t q0, std::int64_t keys) {
    alignas(64) float s[kTileRows * kQueries], dp[kTileRows * kQueries];
    const int rows = pack_.rows_of_panel(p, keys);
    const std::int64_t units = units_of<T>(x_.head_dim), offset = p * kTileRows * units;
    const auto product = tile_function<Unit, float>(rows);
    product(units, keys_ + offset, queries_, nullptr, 0, s, kQueries);
    product(units, values_ + offset, douts_, nullptr, 0, dp, kQueries);
    const float scale = x_.scale;
    for (int r = 0; r < rows; ++r) {
      float* sr = s + r * kQueries;
      float* dr = dp + r * kQueries;
      exp_row(sr, scale, lse_);
      const std::int64_t masked = p * kTileRows + r - q0;  // lanes below it are queries before this key
      for (std::int64_t i = 0; i < masked; ++i) sr[i] = 0.f;
      for (int v = 0; v < kQueries; v += kLanes)
        simd::store(dr + v, simd::load(sr + v) * (simd::load(dr + v) - simd::load(delta_ + v)) * scale);
      put_row(p * kTileRows + r, b, sr, dr);
    }
    for (int r = 0; r < rows; r += 2)
      put_keys<T>(ds_lanes_, p * kTileRows + r, dp + r * kQueries, r + 1 < rows ? dp + (r + 1) * kQueries : zeros_);
  }

  // Writes block b's columns of row `key` of p_ and ds_, as first operands of products that sum over queries.
  void put_row(std::int64_t key, int b, const float* p, const float* ds) {
    using Element = std::conditional_t<Packing<T>::depth == 2, bf16, float>;
    Element* p_row = reinterpret_cast<Element*>(p_ + key * kRowUnits) + b * kQueries;
    Element* ds_row = reinterpret_cast<Element*>(ds_ + key * kRowUnits) + b * kQueries;
    for (int v = 0; v < kQueries; v += kLanes) {
      simd::store(p_row + v, simd::load(p + v));
      simd::store(ds_row + v, simd::load(ds + v));
    }
  }

  // dV += P^T dout, dK += dS^T q over the step's queries.
  void sum_over_queries(std::int64_t s0, std::int64_t count, const T* dout, const T* q) {
    pack_.columns(q + s0 * x_.stride, x_.stride, count, query_columns_);
    pack_.columns(dout + s0 * x_.out_stride, x_.out_stride, count, dout_columns_);
    const std::int64_t keys = x_.before + s0 + count, units = units_of<T>(count);
    for (std::int64_t p = 0; p * kTileRows < keys; ++p) {
      const auto product = tile_function<Unit, float, kRowUnits, 1>(pack_.rows_of_panel(p, keys));
      const std::int64_t rows = p * kTileRows * kRowUnits;
      for (std::int64_t f = 0; f < x_.feature_columns; f += kTileColumns) {
        float* dv = dv_ + p * kTileRows * x_.feature_columns + f;
        float* dk = dk_ + p * kTileRows * x_.feature_columns + f;
        product(units, p_ + rows, dout_columns_ + f * units, dv, x_.feature_columns, dv, x_.feature_columns);
        product(units, ds_ + rows, query_columns_ + f * units, dk, x_.feature_columns, dk, x_.feature_columns);
      }
    }
  }

  // Zeros, or what is added onto, of all positions.
  void begin_sums(float* sums, const float* onto, std::int64_t stride) const {
    std::fill_n(sums, x_.key_panels * kTileRows * x_.feature_columns, 0.f);
    for (std::int64_t j = 0; onto && j < x_.total; ++j)
      std::copy_n(onto + j * stride, x_.head_dim, sums + j * x_.feature_columns);
  }

  // Of the positions from `first` on.
  template <class To>
  void store_rows(const float* sums, std::int64_t first, To* out, std::int64_t stride) const {
    for (std::int64_t j = first; j < x_.total; ++j, out += stride) {
      std::int64_t f = 0;
      for (; f + kLanes <= x_.head_dim; f += kLanes)
        simd::store(out + f, simd::load(sums + j * x_.feature_columns + f));
      for (; f < x_.head_dim; ++f) out[f] = from_f32<To>(sums[j * x_.feature_columns + f]);
    }
  }

  static constexpr std::array<float, kQueries> ones_ = [] {
    std::array<float, kQueries> a{};
    a.fill(1.f);
    return a;
  }();

  const Extents& x_;
  Packer<T> pack_;
  Unit *keys_, *values_, *key_features_, *queries_, *douts_, *query_columns_, *dout_columns_, *p_, *ds_, *ds_lanes_;
  float *dk_, *dv_, *dq_;
  alignas(64) float delta_[kQueries], lse_[kQueries], zeros_[kQueries] = {};
  std::size_t bytes_;
};

// Calls f(kernel, batch, head) for all of `heads` heads, divided among the caller's threads; makes one Kernel per
// thread.
template <class Kernel, class F>
void for_each_head(const AttentionDesc& d, std::int64_t heads, void* workspace, F&& f) {
  const Extents x(d);
  const std::int64_t all = d.batch * heads, team = std::min<std::int64_t>(threads(), all);
  parallel_for(team, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t slot = begin; slot < end; ++slot) {
      const std::size_t bytes = Kernel(x, nullptr).bytes();
      Kernel kernel(x, static_cast<std::byte*>(workspace) + static_cast<std::size_t>(slot) * bytes);
      for (std::int64_t i = all * slot / team; i < all * (slot + 1) / team; ++i) f(kernel, i / heads, i % heads);
    }
  });
}

template <class T>
void forward(const AttentionDesc& d, const void* qkv, const void* all, void* out, float* lse, void* workspace) {
  const std::int64_t queries = d.group * d.heads;
  const Extents x(d);
  for_each_head<Forward<T>>(d, queries, workspace, [&](Forward<T>& kernel, std::int64_t batch, std::int64_t head) {
    const std::int64_t row = batch * d.sequence, column = head * d.head_dim;
    const T* q = static_cast<const T*>(qkv) + row * x.stride;
    const T* of_key = static_cast<const T*>(all) + batch * x.total * x.stride + head / d.group * d.head_dim;
    kernel.head(q + column, of_key + x.keys, of_key + x.values, static_cast<T*>(out) + row * x.out_stride + column,
                lse + (batch * queries + head) * d.sequence);
  });
}

template <class T>
void backward(const AttentionDesc& d, const void* dout, const void* qkv, const void* all, const void* out,
              const float* lse, void* dqkv, float* sums, bool add, void* workspace) {
  const Extents x(d);
  for_each_head<Backward<T>>(d, d.heads, workspace, [&](Backward<T>& kernel, std::int64_t batch, std::int64_t head) {
    const std::int64_t row = batch * d.sequence, column = head * d.group * d.head_dim, of_key = head * d.head_dim;
    const std::int64_t in_qkv = row * x.stride + column, in_out = row * x.out_stride + column;
    const T* k = static_cast<const T*>(all) + batch * x.total * x.stride + of_key;
    T* dk = static_cast<T*>(dqkv) + row * x.stride + of_key;
    typename Backward<T>::Keys keys{k + x.keys, k + x.values, dk + x.keys, dk + x.values};
    if (sums) {
      keys.sums_stride = 2 * d.heads * d.head_dim;
      keys.k_sums = sums + batch * x.total * keys.sums_stride + of_key;
      keys.v_sums = keys.k_sums + d.heads * d.head_dim;
      keys.add = add;
    }
    kernel.heads(d.group, static_cast<const T*>(dout) + in_out, static_cast<const T*>(qkv) + in_qkv, keys,
                 static_cast<const T*>(out) + in_out, lse + (batch * d.heads + head) * d.group * d.sequence,
                 static_cast<T*>(dqkv) + in_qkv);
  });
}

void check(const AttentionDesc& d) {
  LANCET_CHECK(d.batch >= 0 && d.sequence >= 1 && d.before >= 0 && d.heads >= 1 && d.group >= 1 && d.head_dim >= 1,
               "attention over {} sequences of {}, {} groups of {} heads of {}", d.batch, d.sequence, d.heads, d.group,
               d.head_dim);
  LANCET_CHECK(d.dtype == DType::f32 || d.dtype == DType::bf16, "no attention in {}", name(d.dtype));
}

}  // namespace

std::size_t attention_forward_workspace_bytes(const AttentionDesc& d, int threads) {
  check(d);
  const Extents x(d);
  return static_cast<std::size_t>(threads) *
         (d.dtype == DType::f32 ? Forward<float>(x, nullptr).bytes() : Forward<bf16>(x, nullptr).bytes());
}

std::size_t attention_backward_workspace_bytes(const AttentionDesc& d, int threads) {
  check(d);
  const Extents x(d);
  return static_cast<std::size_t>(threads) *
         (d.dtype == DType::f32 ? Backward<float>(x, nullptr).bytes() : Backward<bf16>(x, nullptr).bytes());
}

void attention_forward(const AttentionDesc& d, const void* qkv, const void* all, void* out, float* lse,
                       void* workspace) {
  check(d);
  d.dtype == DType::f32 ? forward<float>(d, qkv, all, out, lse, workspace)
                        : forward<bf16>(d, qkv, all, out, lse, workspace);
}

void attention_backward(const AttentionDesc& d, const void* dout, const void* qkv, const void* all, const void* out,
                        const float* lse, void* dqkv, float* sums, bool add, void* workspace) {
  check(d);
  d.dtype == DType::f32 ? backward<float>(d, dout, qkv, all, out, lse, dqkv, sums, add, workspace)
                        : backward<bf16>(d, dout, qkv, all, out, lse, dqkv, sums, add, workspace);
}

}  // namespace lancet::backend::cpu
