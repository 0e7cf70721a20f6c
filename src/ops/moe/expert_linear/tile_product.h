// A tile of a product of bf16 matrices with f32 sums on tensor cores: C = A B^T, 128x128 per block of four warps, each
// of which holds 64x64 sums in registers; or a quarter of that, 64x64 per block and 32x32 per warp.
//
// Two pipelines hide the latency of memory. (1) A and B are cut in slices of 32 along k. Asynchronous copies fill a
// ring of four slices in shared memory (SliceReader), three slices ahead; one barrier per slice says that the next
// slice has arrived and that the oldest may be overwritten. (2) A slice is two steps of 16 along k. The fragments of
// the next step are loaded from shared memory by ldmatrix (FragmentReader) while those of the current step are
// multiplied.
//
// Each operand is contiguous along k (row-major [rows, k]) or across it ([k, rows]); ldmatrix transposes the latter.
// Strides and pointers are multiples of 8 elements, so that rows are aligned to 16 bytes.
#pragma once
#include "lancet/base/dtype.h"
#include "ops/device/tensor_core.h"

namespace lancet::ops::device {

enum class Along { k, rows };  // the direction that is contiguous in memory

template <int edge>
struct SquareTile {
  static constexpr int rows = edge, columns = edge, depth = 32, stages = 4;
  static constexpr int warp_rows = edge / 2, warp_columns = edge / 2;
  static constexpr int warps_down = rows / warp_rows, warps_across = columns / warp_columns;
  static constexpr int threads = warps_down * warps_across * warp_size;
  static constexpr int fragments_down = warp_rows / 16, fragments_across = warp_columns / 8;
  static constexpr int operand_bytes = rows * depth * 2;
  static constexpr int stage_bytes = 2 * operand_bytes;
  static constexpr int shared_bytes = stages * stage_bytes;
};
using TileShape = SquareTile<128>;
using QuarterShape = SquareTile<64>;

// The layout of one operand's slice in shared memory, in chunks of 16 bytes. The chunks of a row are permuted by the
// row's number, so that copies, and the eight rows that ldmatrix reads at once, are free of bank conflicts.
template <Along along, class Shape>
struct Slice {
  static constexpr int rows = along == Along::k ? Shape::rows : Shape::depth;    // as stored
  static constexpr int length = along == Along::k ? Shape::depth : Shape::rows;  // elements of a stored row
  static constexpr int chunks = length / 8;                                      // chunks of a stored row
  static constexpr int rows_per_line = length >= 64 ? 1 : 64 / length;           // a line: all 32 banks
  static constexpr int permuted = chunks < 8 ? chunks : 8;
  static constexpr int copies = rows * chunks / Shape::threads;  // per thread
  static constexpr int row_bytes = 2 * length;

  // The offset of a chunk, in bytes.
  LANCET_DEVICE static int at(int row, int chunk) {
    return row * row_bytes + (chunk ^ (row / rows_per_line % permuted)) * 16;
  }
};

// An operand of a tile in global memory: element (row, k) is at data[row * stride + k] (Along::k) or data[k * stride +
// row]. `rows` is the number of rows from `data` on; rows beyond count as zero and are not read.
struct TileOperand {
  const bf16* data;
  std::int64_t stride;
  int rows;
};

// Copies a thread's chunks of one operand from global memory, slice by slice.
template <Along along, class Shape>
class SliceReader {
 public:
  using S = Slice<along, Shape>;
  LANCET_DEVICE SliceReader(const TileOperand& operand, int thread) {
    const int row = thread / S::chunks, chunk = thread % S::chunks;
    to_ = S::at(row, chunk);
    from_ = operand.data + row * operand.stride + chunk * 8;
    next_chunk_ = rows_apart * operand.stride;
    next_slice_ = along == Along::k ? Shape::depth : Shape::depth * operand.stride;
    rows_ = operand.rows - (along == Along::k ? row : chunk * 8);
    inner_ = along == Along::k ? chunk * 8 : row;
  }

  // Starts the copies of the next slice; elements from `left` on along k are written as zeros.
  LANCET_DEVICE void start(Copies& copies, SharedAddress slice, int left) {
#pragma unroll
    for (int i = 0; i < S::copies; ++i) {
      const int row = i * rows_apart;
      const bool there = along == Along::k ? row < rows_ && inner_ < left : 0 < rows_ && inner_ + row < left;
      copies.start(slice + SharedAddress(to_ + row * S::row_bytes), from_ + i * next_chunk_, there);
    }
    from_ += next_slice_;
  }

 private:
  static constexpr int rows_apart = Shape::threads / S::chunks;                // rows between two chunks of a thread
  static_assert(rows_apart % (8 * S::rows_per_line) == 0 || rows_apart == 8);  // the permutation repeats
  int to_;     // offset of the thread's first chunk in a slice, in bytes
  int rows_;   // number of the operand's rows from the thread's first on
  int inner_;  // offset along k of the thread's first chunk
  const bf16* from_;
  std::int64_t next_chunk_, next_slice_;
};

// The addresses that a thread gives to ldmatrix. One load gives a fragment of A, 16 rows by 16 along k, or two
// fragments of B, 8 columns by 16 along k each; fragments are 16 rows apart. The step to the next fragment, or to the
// next 16 along k, is the same for all threads despite the permutation: an XOR of address bits plus a constant. This
// requires that slices begin at multiples of 128 bytes.
template <Along along, bool of_a, class Shape>
class FragmentReader {
 public:
  using S = Slice<along, Shape>;
  // first: the warp's first row in the slice, a multiple of its number of rows.
  LANCET_DEVICE FragmentReader(int first, int thread) {
    // (low, high) orders the four matrices along the rows first, (mixed, middle) along the other direction first.
    const int low = thread % 16, high = thread / 16;
    const int mixed = thread % 8 + high * 8, middle = thread / 8 % 2;
    const int row = of_a == (along == Along::k) ? low : mixed, other = of_a == (along == Along::k) ? high : middle;
    at_ = along == Along::k ? S::at(first + row, other) : S::at(row, first / 8 + other);
  }

  // Loads fragment i at 16 * step along k.
  template <class Block>
  LANCET_DEVICE void load(Block& block, std::uint32_t (&out)[4], SharedAddress slice, int i, int step) const {
    const SharedAddress at = slice + SharedAddress(at_);
    if constexpr (along == Along::k)
      load_matrices<false>(block, out, (at ^ SharedAddress(32 * step)) + SharedAddress(16 * i * S::row_bytes));
    else
      load_matrices<true>(block, out, (at ^ SharedAddress(32 * i)) + SharedAddress(16 * step * S::row_bytes));
  }

 private:
  static_assert(Shape::depth == 32 && (Shape::warp_rows == 64 || Shape::warp_rows == 32));
  int at_;
};

// A thread's sums of the tile, in the layout of C's fragments (tensor_core.h).
template <class Shape>
struct TileSums {
  float c[Shape::fragments_down][Shape::fragments_across][4];
  float row_sums[Shape::fragments_down][4];  // sums of A over k, if requested: a C fragment with equal columns
};

// The row and column of the tile at which the sums of the thread's warp begin.
template <class Shape>
LANCET_DEVICE int warp_row(int thread) {
  return thread / warp_size / Shape::warps_across * Shape::warp_rows;
}
template <class Shape>
LANCET_DEVICE int warp_column(int thread) {
  return thread / warp_size % Shape::warps_across * Shape::warp_columns;
}

template <class Shape>
struct Fragments {
  std::uint32_t a[Shape::fragments_down][4];
  std::uint32_t b[Shape::fragments_across / 2][4];
};

template <bool with_row_sums, class Shape, class Block>
LANCET_DEVICE void multiply_step(Block& block, TileSums<Shape>& sums, const Fragments<Shape>& f, bool row_sums) {
#pragma unroll
  for (int i = 0; i < Shape::fragments_down; ++i)
#pragma unroll
    for (int n = 0; n < Shape::fragments_across; ++n) {
      const int j = i % 2 ? Shape::fragments_across - 1 - n : n;  // back and forth, to reuse registers
      multiply(block, sums.c[i][j], f.a[i], f.b[j / 2] + j % 2 * 2);
    }
  if constexpr (with_row_sums)
    if (row_sums) {
      const std::uint32_t ones[2] = {0x3f803f80u, 0x3f803f80u};
#pragma unroll
      for (int i = 0; i < Shape::fragments_down; ++i) multiply(block, sums.row_sums[i], f.a[i], ones);
    }
}

// sums = A B^T over k in [0, depth), rows of A by rows of B. All threads of the block call it; `shared` has
// Shape::shared_bytes, aligned to 128 bytes, and may be reused after it returns. with_row_sums: warps for which
// row_sums is true also compute A's sums over k.
template <Along along_a, Along along_b, bool with_row_sums, class T, class Block>
LANCET_DEVICE void tile_product(Block& block, void* shared, const TileOperand& a, const TileOperand& b, int depth,
                                TileSums<T>& sums, bool row_sums) {
  constexpr int steps = T::depth / 16;
  static_assert(steps % 2 == 0);  // the two sets of fragments alternate
  const SharedAddress ring = shared_address(shared);
  const int slices = (depth + T::depth - 1) / T::depth;
#pragma unroll
  for (int i = 0; i < T::fragments_down; ++i) {
#pragma unroll
    for (int j = 0; j < T::fragments_across; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) sums.c[i][j][e] = 0.f;
#pragma unroll
    for (int e = 0; e < 4; ++e) sums.row_sums[i][e] = 0.f;
  }
  Copies copies;
  SliceReader<along_a, T> read_a(a, block.thread());
  SliceReader<along_b, T> read_b(b, block.thread());
  auto fetch = [&](int slice) {
    if (slice < slices) {
      const SharedAddress stage = ring + SharedAddress(slice % T::stages * T::stage_bytes);
      read_a.start(copies, stage, depth - slice * T::depth);
      read_b.start(copies, stage + T::operand_bytes, depth - slice * T::depth);
    }
    copies.end_group();  // possibly empty, so that waits count one group per slice
  };
#pragma unroll
  for (int s = 0; s < T::stages - 1; ++s) fetch(s);
  copies.template wait<T::stages - 2>();
  block.sync();
  const FragmentReader<along_a, true, T> fragments_a(warp_row<T>(block.thread()), block.warp_lane());
  const FragmentReader<along_b, false, T> fragments_b(warp_column<T>(block.thread()), block.warp_lane());
  Fragments<T> f[2];
  auto load = [&](Fragments<T>& to, int slice, int step) {
    const SharedAddress stage = ring + SharedAddress(slice % T::stages * T::stage_bytes);
#pragma unroll
    for (int i = 0; i < T::fragments_down; ++i) fragments_a.load(block, to.a[i], stage, i, step);
#pragma unroll
    for (int i = 0; i < T::fragments_across / 2; ++i)
      fragments_b.load(block, to.b[i], stage + T::operand_bytes, i, step);
  };
  if (slices > 0) load(f[0], 0, 0);
  for (int slice = 0; slice < slices; ++slice) {
#pragma unroll
    for (int step = 0; step < steps; ++step) {
      if (step == steps - 1) {  // the next slice has arrived, and all warps are done with the slice before this one
        copies.template wait<T::stages - 2>();
        block.sync();
      }
      const int next = slice + (step == steps - 1);
      if (next < slices) load(f[(step + 1) % 2], next, (step + 1) % steps);
      if (step == 0) fetch(slice + T::stages - 1);
      multiply_step<with_row_sums>(block, sums, f[step % 2], row_sums);
    }
  }
  copies.template wait<0>();
  block.sync();
}

}  // namespace lancet::ops::device
