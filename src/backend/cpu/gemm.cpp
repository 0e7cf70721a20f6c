// C is computed in blocks of up to kPanelsOfC panels of kTileRows rows by kColumns columns, and the sum over k in
// chunks of up to kChunkUnits units. For each chunk of a block, B is packed, then A, kPanelsOfA panels at a time; every
// tile (a panel by kTileColumns columns) adds the chunk's sum to the value after the previous chunk. Between chunks
// that value is kept in C if C is f32, else (or if the sum starts from C and a bias) in f32 partial sums, which the
// last chunk converts to C. The first chunk starts from zero, the bias or the old C. So all terms of an element are
// added in order of k, in f32.
#include "gemm.h"

#include <algorithm>

#include "tile.h"

namespace lancet::backend::cpu {
namespace {

// Block sizes in units of k, panels and columns. A's block (12 panels of 14 rows * 512 units: 336 KiB) fits in the
// second-level cache, B's (512 * 512 units: 1 MiB) and the f32 partial sums of a bf16 C in the third. Measured on
// Zen 4 over the products of GPT-2 sizes: within 3% of the best from 384 to 512 units and 9 to 18 panels.
constexpr std::int64_t kChunkUnits = 512;
constexpr std::int64_t kPanelsOfA = 12;
constexpr std::int64_t kPanelsOfC = 9 * kPanelsOfA;
constexpr std::int64_t kColumns = 16 * kTileColumns;

constexpr std::size_t kBytesA = sizeof(float) * kPanelsOfA * (kTileRows * kChunkUnits + simd::kLanes);
constexpr std::size_t kBytesB = sizeof(float) * kColumns * kChunkUnits;
constexpr std::size_t kBytesPartial = sizeof(float) * kPanelsOfC * kTileRows * kColumns;

std::size_t aligned(std::size_t bytes) { return (bytes + 4095) / 4096 * 4096; }

// Returns the block size that cuts [0, n) into the fewest blocks of at most `most`, nearly equal, multiples of `grain`.
std::int64_t balanced(std::int64_t n, std::int64_t most, std::int64_t grain) {
  if (n <= most) return std::max<std::int64_t>(n, 1);
  return divide_up(divide_up(n, divide_up(n, most)), grain) * grain;
}

template <class T, class C>
class Part {
 public:
  Part(const MatmulDesc& d, const void* a, const void* b, const void* bias, void* c)
      : d_(d), a_(static_cast<const T*>(a)), b_(static_cast<const T*>(b)), bias_(bias), c_(static_cast<C*>(c)) {}

  void run(std::span<const Range> rows, Range columns, std::span<const Range> reduction) {
    list_panels(rows);
    list_chunks(reduction);
    if (s_.panels.empty()) return;
    const std::int64_t panels = static_cast<std::int64_t>(s_.panels.size());
    const std::int64_t step_n = balanced(columns.size(), kColumns, kTileColumns);
    const std::int64_t step_m = balanced(panels, kPanelsOfC, 1);
    for (std::int64_t n = columns.begin; n < columns.end; n += step_n) {
      columns_ = {n, std::min(n + step_n, columns.end)};
      if (bias_) load_bias();
      for (std::int64_t p = 0; p < panels; p += step_m) block(p, std::min(p + step_m, panels));
    }
  }

 private:
  using Unit = typename Packing<T>::Unit;
  static constexpr int kDepth = Packing<T>::depth;
  static constexpr bool kWide = std::is_same_v<C, float>;  // C can hold partial sums itself

  void list_panels(std::span<const Range> rows) {
    s_.panels.clear();
    for (Range r : rows) {
      if (r.size() == 0) continue;
      const std::int64_t count = divide_up(r.size(), kTileRows);
      for (std::int64_t i = 0; i < count; ++i) {  // nearly equal: 1024 rows give panels of 14 and 13 rows, none of 2
        const std::int64_t begin = r.begin + r.size() * i / count, end = r.begin + r.size() * (i + 1) / count;
        s_.panels.push_back({begin, static_cast<int>(end - begin)});
      }
    }
  }

  // Every chunk but a range's last is a multiple of the unit's depth, so that pairs do not depend on the blocking.
  void list_chunks(std::span<const Range> reduction) {
    s_.chunks.clear();
    for (Range r : reduction) {
      if (r.size() == 0) continue;
      const std::int64_t step = balanced(r.size(), kChunkUnits * kDepth, kDepth);
      for (std::int64_t k = r.begin; k < r.end; k += step) s_.chunks.push_back({k, std::min(k + step, r.end)});
    }
    if (s_.chunks.empty()) s_.chunks.push_back({0, 0});  // an empty sum is written too
  }

  void load_bias() {
    for (std::int64_t j = columns_.begin; j < columns_.end; ++j)
      s_.bias()[j - columns_.begin] =
          *d_.bias == DType::f32 ? static_cast<const float*>(bias_)[j] : to_f32(static_cast<const bf16*>(bias_)[j]);
  }

  // Computes panels [p0, p1) by the current columns, over all of k.
  void block(std::int64_t p0, std::int64_t p1) {
    const bool seeded = d_.accumulate && (!kWide || bias_);
    use_partial_ = seeded || (!kWide && s_.chunks.size() > 1);
    partial_row_ = s_.partial();
    partial_stride_ = divide_up(columns_.size(), kTileColumns) * kTileColumns;
    if (seeded) seed_partial(p0, p1);
    for (std::size_t chunk = 0; chunk < s_.chunks.size(); ++chunk) {
      first_ = chunk == 0 && !seeded;
      last_ = chunk + 1 == s_.chunks.size();
      chunk_ = s_.chunks[chunk];
      pack_b();
      const std::int64_t step = balanced(p1 - p0, kPanelsOfA, 1);
      for (std::int64_t p = p0; p < p1; p += step) {
        const std::int64_t end = std::min(p + step, p1);
        pack_a(p, end);
        multiply(p, end, p - p0);
      }
    }
  }

  // Converts C's values to f32 partial sums, plus the bias, for products whose sum cannot start in C itself.
  void seed_partial(std::int64_t p0, std::int64_t p1) {
    for (std::int64_t p = p0; p < p1; ++p)
      for (int i = 0; i < s_.panels[std::size_t(p)].rows; ++i) {
        const C* from = c_ + (s_.panels[std::size_t(p)].row + i) * d_.ldc + columns_.begin;
        float* to = partial_of(p - p0) + i * partial_stride_;
        for (std::int64_t j = 0; j < columns_.size(); ++j) to[j] = to_f32(from[j]) + (bias_ ? s_.bias()[j] : 0.f);
      }
  }

  float* partial_of(std::int64_t panel) const { return partial_row_ + panel * kTileRows * partial_stride_; }

  std::int64_t chunk_units() const { return units_of<T>(chunk_.size()); }

  // Operands whose rows run across k are packed a few rows at a time over all panels. Packing one panel at a time would
  // read 56 or 128 bytes from each of hundreds of rows, which share few cache sets if the stride is a power of two.
  static constexpr std::int64_t kUnitsAtOnce = 4;

  void pack_b() {
    Unit* out = static_cast<Unit*>(s_.packed_b());
    const std::int64_t units = chunk_units(), width = columns_.size();
    if (d_.trans_b) {
      for (std::int64_t j = 0; j < width; j += kTileColumns)
        pack_along_k<kTileColumns>(b_ + (columns_.begin + j) * d_.ldb + chunk_.begin, d_.ldb,
                                   static_cast<int>(std::min<std::int64_t>(kTileColumns, width - j)), chunk_.size(),
                                   out + j * units);
      return;
    }
    for (std::int64_t u = 0; u < units; u += kUnitsAtOnce) {
      const std::int64_t k = chunk_.begin + u * kDepth, depth = std::min(kUnitsAtOnce * kDepth, chunk_.end - k);
      for (std::int64_t j = 0; j < width; j += kTileColumns)
        pack_across_k<kTileColumns>(b_ + k * d_.ldb + columns_.begin + j, d_.ldb,
                                    static_cast<int>(std::min<std::int64_t>(kTileColumns, width - j)),
                                    d_.n - columns_.begin - j, depth, out + j * units + u * kTileColumns);
    }
  }

  // Units between packed panels of A, including the units that packing may write beyond a panel's end.
  std::int64_t panel_stride() const { return chunk_units() * kTileRows + simd::kLanes; }

  void pack_a(std::int64_t p0, std::int64_t p1) {
    Unit* out = static_cast<Unit*>(s_.packed_a());
    const GemmScratch::Panel* panels = s_.panels.data();
    if (!d_.trans_a) {
      for (std::int64_t p = p0; p < p1; ++p)
        pack_along_k<kTileRows>(a_ + panels[p].row * d_.lda + chunk_.begin, d_.lda, panels[p].rows, chunk_.size(),
                                out + (p - p0) * panel_stride());
      return;
    }
    for (std::int64_t u = 0; u < chunk_units(); u += kUnitsAtOnce) {
      const std::int64_t k = chunk_.begin + u * kDepth, depth = std::min(kUnitsAtOnce * kDepth, chunk_.end - k);
      for (std::int64_t p = p0; p < p1; ++p)
        pack_across_k<kTileRows>(a_ + k * d_.lda + panels[p].row, d_.lda, panels[p].rows, d_.m - panels[p].row, depth,
                                 out + (p - p0) * panel_stride() + u * kTileRows);
    }
  }

  // partial_panel: index of panel p0 in the block of partial sums.
  void multiply(std::int64_t p0, std::int64_t p1, std::int64_t partial_panel) {
    const std::int64_t units = chunk_units();
    for (std::int64_t j = 0; j < columns_.size(); j += kTileColumns) {
      const Unit* b = static_cast<const Unit*>(s_.packed_b()) + j * units;
      const int width = static_cast<int>(std::min<std::int64_t>(kTileColumns, columns_.size() - j));
      for (std::int64_t p = p0; p < p1; ++p) {
        const auto [row, rows] = s_.panels[std::size_t(p)];
        const Unit* a = static_cast<const Unit*>(s_.packed_a()) + (p - p0) * panel_stride();
        float* partial = use_partial_ ? partial_of(partial_panel + p - p0) + j : nullptr;
        one_tile(units, a, b, rows, width, partial, c_ + row * d_.ldc + columns_.begin + j, j);
      }
    }
  }

  void one_tile(std::int64_t units, const Unit* a, const Unit* b, int rows, int width, float* partial, C* c,
                std::int64_t column) {
    const float* init = nullptr;
    std::int64_t init_stride = 0;
    if (first_ && !d_.accumulate) {
      if (bias_) init = s_.bias() + column;
    } else if (partial) {
      init = partial, init_stride = partial_stride_;
    } else if constexpr (kWide) {
      init = c, init_stride = d_.ldc;
    }
    if (partial && !last_)
      tile_function<Unit, float>(rows)(units, a, b, init, init_stride, partial, partial_stride_);
    else if (width == kTileColumns)
      tile_function<Unit, C>(rows)(units, a, b, init, init_stride, c, d_.ldc);
    else
      edge_tile(units, a, b, rows, width, init, init_stride, c);
  }

  // Computes C's last columns, fewer than a tile has, through a copy.
  void edge_tile(std::int64_t units, const Unit* a, const Unit* b, int rows, int width, const float* init,
                 std::int64_t init_stride, C* c) {
    alignas(64) float start[kTileRows * kTileColumns] = {};
    alignas(64) C result[kTileRows * kTileColumns];
    if (init)
      for (int i = 0; i < rows; ++i) std::copy_n(init + i * init_stride, width, start + i * kTileColumns);
    tile_function<Unit, C>(rows)(units, a, b, start, kTileColumns, result, kTileColumns);
    for (int i = 0; i < rows; ++i) std::copy_n(result + i * kTileColumns, width, c + i * d_.ldc);
  }

  const MatmulDesc& d_;
  const T* a_;
  const T* b_;
  const void* bias_;
  C* c_;
  GemmScratch& s_ = GemmScratch::of_this_thread();
  Range columns_, chunk_;  // current
  bool first_ = false, last_ = false, use_partial_ = false;
  float* partial_row_ = nullptr;
  std::int64_t partial_stride_ = 0;
};

}  // namespace

GemmScratch::GemmScratch() {
  b_ = aligned(kBytesA);
  partial_ = b_ + aligned(kBytesB);
  bias_ = partial_ + aligned(kBytesPartial);
  memory_ = Buffer::zeroed(bytes());
}

std::size_t GemmScratch::bytes() {
  return aligned(kBytesA) + aligned(kBytesB) + aligned(kBytesPartial) + aligned(sizeof(float) * kColumns);
}

std::size_t matmul_scratch_bytes() {
  constexpr std::size_t huge_page = 2 << 20;
  return (GemmScratch::bytes() + huge_page - 1) / huge_page * huge_page;
}

GemmScratch& GemmScratch::of_this_thread() {
  thread_local GemmScratch scratch;
  return scratch;
}

void gemm(const MatmulDesc& d, std::span<const Range> rows, Range columns, std::span<const Range> reduction,
          const void* a, const void* b, const void* bias, void* c) {
  if (d.a == DType::f32)
    Part<float, float>(d, a, b, bias, c).run(rows, columns, reduction);
  else if (d.c == DType::f32)
    Part<bf16, float>(d, a, b, bias, c).run(rows, columns, reduction);
  else
    Part<bf16, bf16>(d, a, b, bias, c).run(rows, columns, reduction);
}

Range part_of(std::int64_t n, std::int64_t grain, int parts, int index) {
  const std::int64_t grains = divide_up(n, grain);
  return {std::min(grains * index / parts * grain, n), std::min(grains * (index + 1) / parts * grain, n)};
}

// Every thread packs the elements of A and B that it needs, so cutting one operand repeats the packing of the other.
// Packing an element costs as much as about 32 multiply-adds.
Grid choose_grid(std::int64_t m, std::int64_t n, int threads) {
  Grid best;
  double best_time = 0;
  for (int across = 1; across <= threads; ++across) {
    const int along = threads / across;
    const double rows = static_cast<double>(divide_up(divide_up(m, kTileRows), along) * kTileRows);
    const double columns = static_cast<double>(divide_up(divide_up(n, kTileColumns), across) * kTileColumns);
    const double time = rows * columns + 32 * (rows + columns);
    if (across == 1 || time < best_time) {
      best = {along, across};
      best_time = time;
    }
  }
  return best;
}

}  // namespace lancet::backend::cpu
