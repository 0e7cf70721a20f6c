#include <memory>

#include "lancet/base/math.h"
#include "math.h"
#include "ops/device/column_tile.h"
#include "ops/device/partial_sums.h"
#include "ops/device/tensor_core.h"

namespace lancet::ops {
namespace {

using namespace device;

// The threads that share a row: a warp if the row fits in 4 packs per thread (1024 elements of bf16, 512 floats), else
// a block. The row is read from memory once and stays in registers, unless it exceeds 4 packs per thread of a block;
// then it is read again, from the cache.
template <bool whole_block>
struct RowTeam {
  static constexpr int threads = 256;
  static constexpr int size = whole_block ? threads : warp_size;
  static constexpr int rows_per_block = threads / size;

  template <class Block>
  LANCET_DEVICE static std::int64_t row(Block& block) {
    return block.index() * rows_per_block + (whole_block ? 0 : block.warp());
  }
  template <class Block>
  LANCET_DEVICE static int member(Block& block) {  // the thread's number in the team
    return whole_block ? block.thread() : block.warp_lane();
  }
  template <class Block>
  LANCET_DEVICE static float sum(Block& block, float v) {
    if constexpr (whole_block)
      return block.sum(v);
    else
      return block.warp_sum(v);
  }
};

constexpr int kept_packs = 4;

// Calls f(k, start, part) for each pack of a row that belongs to the thread; k is the pack's index in registers.
// whole: true only if rows consist of whole packs.
template <class T, class Team, bool kept, class Block, class F>
LANCET_DEVICE void for_packs(Block& block, std::int64_t d, bool whole, F f) {
  constexpr int step = Team::size * Pack<T>::size;
  const auto part = [&](std::int64_t start) { return whole ? Part{0, Pack<T>::size} : part_of_row<T>(start, d); };
  const std::int64_t first = std::int64_t(Team::member(block)) * Pack<T>::size;
  if constexpr (kept) {
#pragma unroll
    for (int k = 0; k < kept_packs; ++k)
      if (const std::int64_t start = first + k * step; start < d) f(k, start, part(start));
  } else {
    for (std::int64_t start = first; start < d; start += step) f(0, start, part(start));
  }
}

// The norm of a kind of statistics, or with `add` that of a sum. Bytes: x and y once each; with `add` x, delta, sum and
// y.
template <class Stats, class T, bool add, bool whole_block, bool kept>
struct NormRows {
  using Team = RowTeam<whole_block>;
  static constexpr int threads = Team::threads;
  const T *x, *delta;
  const float *gamma, *beta;  // beta: null of an RMS norm
  T *sum, *y;
  Stats* stats;
  std::int64_t rows, d;
  float eps;
  bool wide;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    if constexpr (whole_block)
      row(block, wide);
    else if (wide)
      row(block, true);  // compiled for that: its loads are one instruction each
    else
      row(block, false);
  }

  // whole: all packs are whole and aligned.
  template <class Block>
  LANCET_DEVICE void row(Block& block, bool whole) const {
    const std::int64_t r = Team::row(block);
    if (r >= rows) return;
    const T* in = (add ? sum : x) + r * d;
    Pack<T> loaded[kept ? kept_packs : 1], change[kept && add ? kept_packs : 1];
    const auto load_pack = [&](int k, std::int64_t start, Part part) {
      loaded[k] = load(x + r * d + start, part, whole);
      if constexpr (add) change[k] = load(delta + r * d + start, part, whole);
    };
    // A warp starts all loads of its row before it waits for one: there is no branch between them, as the compiler
    // takes a pack apart at the end of one. A pack beyond the row loads the row's first pack.
    constexpr bool at_once = kept && !whole_block;
    if constexpr (at_once)
#pragma unroll
      for (int k = 0; k < kept_packs; ++k) {
        const std::int64_t start = (Team::member(block) + k * Team::size) * std::int64_t{Pack<T>::size};
        if (whole)
          load_pack(k, start < d ? start : 0, {0, Pack<T>::size});
        else
          load_pack(k, start, part_of_row<T>(start, d));
      }
    float total = 0;
    for_packs<T, Team, kept>(block, d, whole, [&](int k, std::int64_t start, Part part) {
      if constexpr (!at_once) load_pack(k, start, part);
      if constexpr (add) {
        loaded[k] = rounded_sum(loaded[k], change[k]);
        store(sum + r * d + start, loaded[k], part, whole);
      }
      const Floats<T> v = to_floats(loaded[k]);
#pragma unroll
      for (int i = 0; i < Pack<T>::size; ++i) total += v.v[i];  // zeros beyond the row
    });
    Stats own{};
    float mean = 0;
    if constexpr (Stats::centred) own.mean = mean = Team::sum(block, total) / float(d);
    float squares = 0;
    for_packs<T, Team, kept>(block, d, whole, [&](int k, std::int64_t start, Part part) {
      if constexpr (!kept) loaded[k] = load(in + start, part, whole);
      const Floats<T> v = to_floats(loaded[k]);
#pragma unroll
      for (int i = 0; i < Pack<T>::size; ++i) {
        const float c = v.v[i] - mean;
        squares += i < part.last ? c * c : 0.f;
      }
    });
    own.rstd = 1.f / __builtin_sqrtf(Team::sum(block, squares) / float(d) + eps);
    for_packs<T, Team, kept>(block, d, whole, [&](int k, std::int64_t start, Part part) {
      if constexpr (!kept) loaded[k] = load(in + start, part, whole);
      Floats<T> v = to_floats(loaded[k]);
      const Floats<T> scale = load_floats<T>(gamma + start, part, whole);
      if constexpr (Stats::centred) {
        const Floats<T> shift = load_floats<T>(beta + start, part, whole);
#pragma unroll
        for (int i = 0; i < Pack<T>::size; ++i) v.v[i] = layer_norm(v.v[i], own, scale.v[i], shift.v[i]);
      } else {
#pragma unroll
        for (int i = 0; i < Pack<T>::size; ++i) v.v[i] = rms_norm<T>(v.v[i], own, scale.v[i]);
      }
      store(y + r * d + start, from_floats<T>(v), part, whole);
    });
    if (Team::member(block) == 0) stats[r] = own;
  }

  LANCET_DEVICE static Pack<T> rounded_sum(const Pack<T>& a, const Pack<T>& b) {
    Floats<T> u = to_floats(a);
    const Floats<T> v = to_floats(b);
#pragma unroll
    for (int i = 0; i < Pack<T>::size; ++i) u.v[i] += v.v[i];
    return from_floats<T>(u);
  }
};

// The gradient of x. Bytes: dy, x, dx and, if not null, dsum once each.
template <class Stats, class T, bool whole_block, bool kept>
struct NormRowsDx {
  using Team = RowTeam<whole_block>;
  static constexpr int threads = Team::threads;
  const T *dy, *x, *dsum;
  const float* gamma;
  const Stats* stats;
  T* dx;
  std::int64_t rows, d;
  bool wide;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t r = Team::row(block);
    if (r >= rows) return;
    const Stats own = stats[r];
    Pack<T> row_dy[kept ? kept_packs : 1], row_x[kept ? kept_packs : 1];
    float sum_g = 0, sum_gx = 0;
    for_packs<T, Team, kept>(block, d, wide, [&](int k, std::int64_t start, Part part) {
      row_dy[k] = load(dy + r * d + start, part, wide);  // zeros beyond the row: they add nothing
      row_x[k] = load(x + r * d + start, part, wide);
      const Floats<T> g = to_floats(row_dy[k]), v = to_floats(row_x[k]),
                      scale = load_floats<T>(gamma + start, part, wide);
#pragma unroll
      for (int i = 0; i < Pack<T>::size; ++i) {
        const float scaled = g.v[i] * scale.v[i];
        sum_g += scaled;
        sum_gx += scaled * normalized(v.v[i], own);
      }
    });
    const float mean_g = Stats::centred ? Team::sum(block, sum_g) / float(d) : 0.f;
    const float mean_gx = Team::sum(block, sum_gx) / float(d);
    for_packs<T, Team, kept>(block, d, wide, [&](int k, std::int64_t start, Part part) {
      if constexpr (!kept) {
        row_dy[k] = load(dy + r * d + start, part, wide);
        row_x[k] = load(x + r * d + start, part, wide);
      }
      Floats<T> g = to_floats(row_dy[k]);
      const Floats<T> v = to_floats(row_x[k]), scale = load_floats<T>(gamma + start, part, wide);
#pragma unroll
      for (int i = 0; i < Pack<T>::size; ++i) g.v[i] = norm_dx(g.v[i], v.v[i], own, scale.v[i], mean_g, mean_gx);
      if (dsum) {
        const Floats<T> direct = to_floats(load(dsum + r * d + start, part, wide));
#pragma unroll
        for (int i = 0; i < Pack<T>::size; ++i) g.v[i] += direct.v[i];
      }
      store(dx + r * d + start, from_floats<T>(g), part, wide);
    });
  }
};

// The sums over rows of dy * normalized x and, of a layer norm, of dy, for one pack of columns.
template <class Stats, class T>
struct DwSums {
  Floats<T> gamma = {}, beta = {};

  LANCET_DEVICE void add(const Floats<T>& dy, const Floats<T>& x, Stats row) {
#pragma unroll
    for (int i = 0; i < Pack<T>::size; ++i) {
      // Fused by name: these bits are those of the joint kernel (NormBackward).
      gamma.v[i] = fused_f32(dy.v[i], normalized(x.v[i], row), gamma.v[i]);
      if constexpr (Stats::centred) beta.v[i] += dy.v[i];
    }
  }

  // Adds the warps' sums of a tile of columns and writes those of n columns to out[0, n) and, of beta, out[d, d + n).
  template <class Block>
  LANCET_DEVICE void write(Block& block, float* out, std::int64_t d, std::int64_t n) const {
    ColumnTile<T>::write(block, gamma, out, n);
    if constexpr (!Stats::centred) return;
    block.sync();
    ColumnTile<T>::write(block, beta, out + d, n);
  }
};

// Gradients of a norm's parameters: gamma and, of a layer norm, beta.
template <class Stats>
constexpr std::int64_t parameters = Stats::centred ? 2 : 1;

// The partial sums of one piece of the rows, by column. A thread adds one pack of columns; the warps share the rows of
// the piece, and their sums are added in order. Bytes: dy and x once; pieces * parameters * d floats written.
template <class Stats, class T>
struct NormRowsDw {
  using Tile = ColumnTile<T>;
  using Shared = typename Tile::Shared;
  static constexpr int threads = Tile::threads;
  const T *dy, *x;
  const Stats* stats;
  float* parts;  // [pieces, parameters, d]
  std::int64_t rows, d, pieces, tiles;
  bool wide;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t piece = block.index() / tiles;
    const std::int64_t first_column = block.index() % tiles * Tile::columns;
    const std::int64_t start = first_column + block.warp_lane() * Pack<T>::size;
    const Part part = part_of_row<T>(start, d);
    DwSums<Stats, T> sums;
    if (!part.empty()) add_rows(block, piece, start, part, sums);
    sums.write(block, parts + piece * parameters<Stats> * d + first_column, d, d - first_column);
  }

  template <class Block>
  LANCET_DEVICE void add_rows(Block& block, std::int64_t piece, std::int64_t start, Part part,
                              DwSums<Stats, T>& sums) const {
    const std::int64_t end = rows * (piece + 1) / pieces;
#pragma unroll 2
    for (std::int64_t r = rows * piece / pieces + block.warp(); r < end; r += Tile::warps)
      sums.add(to_floats(load(dy + r * d + start, part, wide)), to_floats(load(x + r * d + start, part, wide)),
               stats[r]);
  }
};

// NormRowsDx of rows of up to `packs` packs per thread of a warp, with the partial sums of NormRowsDw, to the bit: a
// block per piece of the rows. Bytes: those of NormRowsDx, and pieces * parameters * d floats written.
//
// The sums of columns leave registers for 8 warps a multiprocessor, too few to hide the latency of loads. So each warp
// copies its rows into a ring in shared memory, two rows ahead: at d = 768 in bf16 a multiprocessor has 72 KB in flight
// while it computes; 4.3 TB/s take about 30 KB on an H200. A thread reads only what it has copied, so that the rows
// need no barriers.
template <class Stats, class T, int packs>
struct NormBackward {
  using Tile = ColumnTile<T>;
  static constexpr int threads = Tile::threads, stages = 3;
  struct Shared {
    Pack<T> ring[Tile::warps][stages][3][packs][warp_size];  // of dy, x and dsum
  };
  static_assert(sizeof(Shared) >= sizeof(typename Tile::Shared));  // which takes its place after the last row
  const T *dy, *x, *dsum;                                          // aligned for packs, as is gamma; dsum may be null
  const float* gamma;
  const Stats* stats;
  T* dx;
  std::int64_t rows, d;  // d: a multiple of Pack<T>::size
  std::int64_t pieces;
  float* parts;  // [pieces, parameters, d]; null: not wanted

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t piece = block.index(), end = rows * (piece + 1) / pieces;
    const std::int64_t first = rows * piece / pieces + block.warp();
    const int column = block.warp_lane() * Pack<T>::size;  // of the thread's first pack
    const float share = 1.f / float(d);

    Copies copies;
    for (int stage = 0; stage < stages - 1; ++stage) start_row(block, copies, first + stage * Tile::warps, end, stage);
    Stats next = first < end ? stats[first] : Stats{};
    Floats<T> scale[packs];
#pragma unroll
    for (int k = 0; k < packs; ++k)
      scale[k] = load_floats<T>(gamma + column + k * Tile::columns, part(column, k), true);
    DwSums<Stats, T> sums[packs];
    int stage = 0;
    for (std::int64_t r = first; r < end; r += Tile::warps) {
      copies.wait<stages - 2>();
      // Into the stage of the row before, all of whose values have been used.
      start_row(block, copies, r + (stages - 1) * Tile::warps, end, stage == 0 ? stages - 1 : stage - 1);
      const Stats own = next;
      if (r + Tile::warps < end) next = stats[r + Tile::warps];
      const auto& row = block.template shared<Shared>().ring[block.warp()][stage];
      stage = stage == stages - 1 ? 0 : stage + 1;

      Floats<T> g[packs], v[packs];
      float sum_g = 0, sum_gx = 0;
#pragma unroll
      for (int k = 0; k < packs; ++k) {  // beyond the row dy, x and scale are zeros
        g[k] = to_floats(row[0][k][block.warp_lane()]);
        v[k] = to_floats(row[1][k][block.warp_lane()]);
#pragma unroll
        for (int i = 0; i < Pack<T>::size; ++i) {
          const float scaled = g[k].v[i] * scale[k].v[i];
          sum_g += scaled;
          sum_gx += scaled * normalized(v[k].v[i], own);
        }
        sums[k].add(g[k], v[k], own);
      }
      const float mean_g = Stats::centred ? block.warp_sum(sum_g) * share : 0.f;
      const float mean_gx = block.warp_sum(sum_gx) * share;
#pragma unroll
      for (int k = 0; k < packs; ++k) {
        const Floats<T> direct = to_floats(row[2][k][block.warp_lane()]);
#pragma unroll
        for (int i = 0; i < Pack<T>::size; ++i)
          g[k].v[i] = norm_dx(g[k].v[i], v[k].v[i], own, scale[k].v[i], mean_g, mean_gx) + direct.v[i];
        store(dx + r * d + column + k * Tile::columns, from_floats<T>(g[k]), part(column, k), true);
      }
    }
    if (!parts) return;
#pragma unroll
    for (int k = 0; k < packs; ++k) {
      const std::int64_t first_column = k * Tile::columns;
      if (first_column >= d) break;
      block.sync();
      sums[k].write(block, parts + piece * parameters<Stats> * d + first_column, d, d - first_column);
    }
  }

  // Starts the thread's copies of row r, as one group; of none if r is not below `end`.
  template <class Block>
  LANCET_DEVICE void start_row(Block& block, Copies& copies, std::int64_t r, std::int64_t end, int stage) const {
    if (r < end) {
      auto& row = block.template shared<Shared>().ring[block.warp()][stage];
      const T* const from[] = {dy, x, dsum ? dsum : dy};  // of dsum null nothing is copied
#pragma unroll
      for (int i = 0; i < 3; ++i)
#pragma unroll
        for (int k = 0; k < packs; ++k) {
          const std::int64_t column = k * Tile::columns + block.warp_lane() * Pack<T>::size;
          copies.start(shared_address(&row[i][k][block.warp_lane()]), from[i] + r * d + column,
                       (i < 2 || dsum) && column < d);
        }
    }
    copies.end_group();
  }

  // Pack k of the thread is in the row as a whole or not at all.
  LANCET_DEVICE Part part(int column, int k) const { return {0, column + k * Tile::columns < d ? Pack<T>::size : 0}; }
};

// The longest row of a warp.
template <class T>
constexpr std::int64_t warp_row = std::int64_t{kept_packs} * warp_size* Pack<T>::size;

// Calls f(whole_block, kept) with the constants for rows of d elements of T.
template <class T, class F>
Kernel by_width(std::int64_t d, F f) {
  if (d <= warp_row<T>) return f(std::false_type{}, std::true_type{});
  if (d <= warp_row<T> * 8) return f(std::true_type{}, std::true_type{});
  return f(std::true_type{}, std::false_type{});
}

template <class F>
Kernel over_rows(const KernelArgs& args, const F& kernel) {
  return run_steps(args.stream, Step{divide_up(kernel.rows, F::Team::rows_per_block), kernel});
}

template <class Stats, bool add>
Kernel bind_layer_norm(const KernelArgs& args) {
  const Shape& shape = args.operands[0].shape();
  const std::int64_t d = shape.back();
  const float* gamma = args.operands[add + 1].as<float>();
  const float* beta = Stats::centred ? args.operands[add + 2].as<float>() : nullptr;
  return by_dtype(args.operands[0].dtype(), [&]<class T>(T) {
    const T *x = args.operands[0].as<T>(), *delta = add ? args.operands[1].as<T>() : nullptr;
    T *sum = add ? args.results[0].as<T>() : nullptr, *y = args.results[add].as<T>();
    return by_width<T>(d, [&](auto whole_block, auto kept) {
      return over_rows(args, NormRows<Stats, T, add, whole_block(), kept()>{
                                 x, delta, gamma, beta, sum, y, args.results[add + 1].as<Stats>(), shape.rows(), d,
                                 float(args.attributes.real("eps")),
                                 aligned_rows<T>(d) && aligned(x, delta, sum, y) && aligned(gamma, beta)});
    });
  });
}

// The number of pieces of the rows: one a multiprocessor, with 32 rows or more each.
std::int64_t pieces_of(std::int64_t rows, const backend::Device& device) {
  return std::clamp<std::int64_t>(divide_up(rows, 32), 1, device.traits().multiprocessors);
}

// What layer_norm_dx and layer_norm_dw of the same tensors share, if dx is called first: partial sums in memory of
// their own, so that dw may be called at any time after it. The note's number is that of the rows' statistics.
struct Backward {
  ir::TensorId dy, x;
  backend::Device& device;
  float* parts = nullptr;  // [pieces, parameters, d]; null: no dw reads them

  explicit Backward(const KernelArgs& args)
      : dy(args.instruction->operands[0]), x(args.instruction->operands[1]), device(*args.device) {}
  Backward(const Backward&) = delete;
  Backward& operator=(const Backward&) = delete;
  ~Backward() {
    if (parts) device.free(reinterpret_cast<std::byte*>(parts));
  }
};

// True if NormBackward takes rows of d elements of T, at aligned addresses.
template <class T>
bool joint_rows(std::int64_t d, const backend::Device& device) {
  return d <= warp_row<T> && aligned_rows<T>(d) &&
         std::int64_t(sizeof(typename NormBackward<RowStats, T, kept_packs>::Shared)) <=
             device.traits().shared_bytes_of_block;
}

template <class Stats, class T, int packs>
Kernel bind_backward(const KernelArgs& args, const NormBackward<Stats, T, packs>& kernel) {
  if (!args.notes || !args.instruction) return run_steps(args.stream, Step{kernel.pieces, kernel});
  const auto shared = std::make_shared<Backward>(args);
  (*args.notes)[args.instruction->operands[3].value] = shared;
  return [shared, kernel, stream = args.stream]() -> Status {
    NormBackward<Stats, T, packs> with_sums = kernel;
    with_sums.parts = shared->parts;
    return launch(*stream, with_sums.pieces, with_sums);
  };
}

template <class Stats>
Kernel bind_layer_norm_dx(const KernelArgs& args) {
  const Shape& shape = args.operands[0].shape();
  const std::int64_t rows = shape.rows(), d = shape.back();
  const float* gamma = args.operands[2].as<float>();
  const Stats* stats = args.operands[3].as<Stats>();
  return by_dtype(args.operands[0].dtype(), [&]<class T>(T) {
    const T *dy = args.operands[0].as<T>(), *x = args.operands[1].as<T>();
    const T* dsum = args.has(4) ? args.operands[4].as<T>() : nullptr;
    T* dx = args.results[0].as<T>();
    const bool wide = aligned_rows<T>(d) && aligned(dy, x, dsum, dx) && aligned(gamma);
    const auto joint = [&](auto packs) {
      return bind_backward(args, NormBackward<Stats, T, packs()>{dy, x, dsum, gamma, stats, dx, rows, d,
                                                                 pieces_of(rows, *args.device), nullptr});
    };
    if (wide && joint_rows<T>(d, *args.device))
      return d <= 3 * ColumnTile<T>::columns ? joint(std::integral_constant<int, 3>{})
                                             : joint(std::integral_constant<int, kept_packs>{});
    return by_width<T>(d, [&](auto whole_block, auto kept) {
      return over_rows(args, NormRowsDx<Stats, T, whole_block(), kept()>{dy, x, dsum, gamma, stats, dx, rows, d, wide});
    });
  });
}

template <class Stats>
std::size_t workspace_layer_norm_dw(const KernelArgs& args) {
  Scratch scratch(nullptr);
  scratch.take<float>(pieces_of(args.operands[0].shape().rows(), *args.device) * parameters<Stats> *
                      args.operands[0].shape().back());
  return scratch.bytes();
}

// At most the memory of parts_of_dx; none if dx does not add sums.
template <class Stats>
std::size_t own_memory_dw(const KernelArgs& args) {
  const std::int64_t d = args.operands[0].shape().back();
  const bool joint =
      args.operands[0].dtype() == DType::bf16 ? joint_rows<bf16>(d, *args.device) : joint_rows<float>(d, *args.device);
  return joint ? workspace_layer_norm_dw<Stats>(args) : 0;
}

// The memory in which layer_norm_dx of the same tensors leaves their partial sums; null if dw must compute them.
template <class Stats>
float* parts_of_dx(const KernelArgs& args) {
  if (!args.notes || !args.instruction) return nullptr;
  const std::vector<ir::TensorId>& operands = args.instruction->operands;
  const auto note = args.notes->find(operands[2].value);
  if (note == args.notes->end()) return nullptr;
  const auto shared = std::static_pointer_cast<Backward>(note->second);
  if (shared->dy != operands[0] || shared->x != operands[1]) return nullptr;
  if (!shared->parts) {
    const auto memory = args.device->allocate(workspace_layer_norm_dw<Stats>(args));
    if (memory.ok())
      shared->parts = reinterpret_cast<float*>(*memory);
    else if (args.remarks)
      args.remarks->insert(
          args.instruction->op +
          " reads its rows again, since its sums have no memory beside the arena: " + memory.error().message);
  }
  return shared->parts;
}

template <class Stats>
Kernel bind_layer_norm_dw(const KernelArgs& args) {
  const Shape& shape = args.operands[0].shape();
  const std::int64_t d = shape.back(), pieces = pieces_of(shape.rows(), *args.device);
  const auto add = [&](const float* parts) {
    float* beta = Stats::centred ? args.results[1].as<float>() : nullptr;
    return AddParts{parts, pieces, parameters<Stats> * d, args.has(3), args.results[0].as<float>(), d, beta};
  };
  if (const float* parts = parts_of_dx<Stats>(args))
    return run_steps(args.stream, Step{add(parts).blocks(), add(parts)});
  float* parts = reinterpret_cast<float*>(args.workspace);
  return by_dtype(args.operands[0].dtype(), [&]<class T>(T) -> Kernel {
    const T *dy = args.operands[0].as<T>(), *x = args.operands[1].as<T>();
    const std::int64_t tiles = divide_up(d, NormRowsDw<Stats, T>::Tile::columns);
    const NormRowsDw<Stats, T> kernel{dy,     x,     args.operands[2].as<Stats>(),        parts, shape.rows(), d,
                                      pieces, tiles, aligned_rows<T>(d) && aligned(dy, x)};
    return run_steps(args.stream, Step{pieces * tiles, kernel}, Step{add(parts).blocks(), add(parts)});
  });
}

template <class Stats>
DeviceKernel dw_kernel(std::string_view op) {
  return {.op = op,
          .bind = bind_layer_norm_dw<Stats>,
          .workspace = workspace_layer_norm_dw<Stats>,
          .own_memory = own_memory_dw<Stats>};
}

}  // namespace

std::span<const DeviceKernel> layer_norm_cuda() {
  static const DeviceKernel table[] = {
      {"layer_norm", bind_layer_norm<RowStats, false>}, {"add_layer_norm", bind_layer_norm<RowStats, true>},
      {"layer_norm_dx", bind_layer_norm_dx<RowStats>},  dw_kernel<RowStats>("layer_norm_dw"),
      {"rms_norm", bind_layer_norm<RmsStats, false>},   {"add_rms_norm", bind_layer_norm<RmsStats, true>},
      {"rms_norm_dx", bind_layer_norm_dx<RmsStats>},    dw_kernel<RmsStats>("rms_norm_dw")};
  return table;
}

}  // namespace lancet::ops
