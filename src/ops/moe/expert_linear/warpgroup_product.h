// The products over experts' filled rows (ExpertProduct) by the instructions of sm_90a (warpgroup.h).
//
// A tile of 128x256 is computed by a block of three groups of four warps. One thread of the first group fills a ring of
// four stages by bulk tensor copies: 64 of k of both operands each. The other two groups multiply 64x256 each, with the
// sums in registers, and store them. Two barriers a stage say that it is full (its bytes have come) and empty (all
// warps that multiply have read it). Block b of n computes the tiles b, b + n, ...; the copies for the next tile start
// while the sums are stored. (Clusters of two blocks that share b were slower on an H200: 348 us against 217.)
//
// Beside each stage is the tile whose first slice it holds. With GELU, dx's argument comes through the ring, too: as
// two stages of 128 columns after a tile's last. Copies know the matrices only, not the filled rows, so a tile may hold
// rows of a neighbour or unfilled ones: they are not stored. For dw, where rows are summed over, the multiplying warps
// overwrite those beyond the last filled row by zeros.
#pragma once
#include "grouped_tiles.h"
#include "lancet/backend/cuda/tensor_map.h"
#include "ops/device/pack.h"
#include "ops/device/warpgroup.h"
#include "ops/nn/gelu/math.h"
#include "tile_product.h"

namespace lancet::ops::device {

struct WarpgroupShape {
  static constexpr int rows = 128, columns = 256, depth = 64, stages = 4;
  static constexpr int box = 64;  // columns of a bulk copy: 128 bytes
  static constexpr int a_bytes = rows * depth * 2, b_bytes = columns * depth * 2, stage_bytes = a_bytes + b_bytes;
  static constexpr int argument_columns = 128, argument_bytes = rows * argument_columns * 2;  // of GELU, in a stage
  static constexpr int groups = 2;                                                            // that multiply
  static constexpr int warps = groups * warpgroup_size / warp_size;
};

// width and all_columns are multiples of 8, depth (forward, dx) of 64, height (dw) of 8.
template <ExpertProduct product, Epilogue epilogue>
struct GroupedWarpgroupProduct {
  using S = WarpgroupShape;
  static constexpr int threads = (1 + S::groups) * warpgroup_size;
  static constexpr int blocks_per_sm = 1;
  // Blocks are short-lived, so that kernels of other streams (messages, flags) get in between. Against blocks that
  // stay, one tile a block costs 2% to 3% on an H200, and 7% to 10% with GELU; these numbers cost 1%, and with GELU 2%
  // (dx) and 7% (forward). For dw, one is as fast as any.
  static constexpr int tiles_per_block = product == ExpertProduct::dw ? 1 : epilogue == Epilogue::gelu ? 4 : 2;
  static constexpr bool argument_read = product == ExpertProduct::dx && epilogue == Epilogue::gelu;
  static constexpr bool dw = product == ExpertProduct::dw;
  static constexpr Along along_a = dw ? Along::rows : Along::k;
  static constexpr Along along_b = product == ExpertProduct::forward ? Along::k : Along::rows;
  static constexpr int box_bytes = S::depth * S::box * 2;  // of an operand across k

  struct StageTile {
    GroupedTile tile;  // this block's
    int slices;        // of k; 0: there are no more tiles
  };
  struct Shared {
    std::byte ring[S::stages * S::stage_bytes + 1024];  // begins at a multiple of 1024
    bf16 rounded[S::warps][16 * 128];                   // results on their way out
    bf16 ones[64];
    std::uint64_t full[S::stages], empty[S::stages];
    StageTile tiles[S::stages];
  };

  // Matrices in tiles: a [experts * buffer_rows, depth] in [128, 64], for dw [.., height] in [64, 64]; b
  // [experts * all_columns, depth] in [128, 64], for dx [experts * depth, width] and for dw [.., width] in [64, 64];
  // the argument [experts * buffer_rows, width] in [128, 64].
  backend::cuda::TensorMap map_a, map_b, map_argument;
  GroupedOperands<bf16> p;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    auto& shared = block.template shared<Shared>();
    const Ring ring(shared);
    if (block.thread() == 0) {
      prefetch_map(&map_a);
      prefetch_map(&map_b);
      if constexpr (argument_read) prefetch_map(&map_argument);
      for (int s = 0; s < S::stages; ++s) {
        ring.full(s).init(1);
        ring.empty(s).init(S::warps);
      }
      fence_barrier_init();
    }
    if (dw && block.thread() < 64) shared.ones[block.thread()] = from_f32<bf16>(1.f);
    fence_async();
    block.sync();
    if (block.thread() < warpgroup_size) {
      fewer_registers<40>();
      if (block.warp() == 0) produce(block, shared, ring);
    } else {
      more_registers<232>();
      multiply(block, shared, ring);
    }
#endif
  }

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
 private:
  struct Ring {
    SharedAddress stages, full_at, empty_at;
    LANCET_DEVICE explicit Ring(Shared& shared)
        : stages((shared_address(shared.ring) + 1023) / 1024 * 1024),
          full_at(shared_address(shared.full)),
          empty_at(shared_address(shared.empty)) {}
    LANCET_DEVICE SharedAddress a(int s) const { return stages + SharedAddress(s * S::stage_bytes); }
    LANCET_DEVICE SharedAddress b(int s) const { return a(s) + S::a_bytes; }
    LANCET_DEVICE PhaseBarrier full(int s) const { return {full_at + 8 * SharedAddress(s)}; }
    LANCET_DEVICE PhaseBarrier empty(int s) const { return {empty_at + 8 * SharedAddress(s)}; }
  };
  // A position in the ring: the stage, and the parity of its barriers' phase.
  struct Use {
    int stage = 0, parity = 0;
    LANCET_DEVICE void next() {
      if (++stage == S::stages) stage = 0, parity ^= 1;
    }
  };

  template <class Block>
  LANCET_DEVICE void produce(Block& block, Shared& shared, const Ring& ring) const {
    Use use;
    const bool first_lane = block.warp_lane() == 0;
    for (int index = int(block.index());; index += int(block.count())) {
      StageTile begun;
      const bool more = GroupedTiles().template find<product, S::rows, S::columns>(block, p, index, begun.tile);
      const int depth = dw ? begun.tile.rows : p.depth;
      // An expert without rows has a slice of zeros.
      begun.slices = !more ? 0 : dw && depth == 0 ? 1 : (depth + S::depth - 1) / S::depth;
      if (first_lane) {
        for (int slice = 0; slice < (more ? begun.slices : 1); ++slice, use.next()) {
          ring.empty(use.stage).wait(use.parity ^ 1);  // at once in the first round: the phase before the first counts
          if (slice == 0) shared.tiles[use.stage] = begun;
          if (more) {
            ring.full(use.stage).arrive_expecting(S::stage_bytes);
            copy_slice(ring, use.stage, begun.tile, slice * S::depth);
          } else {
            ring.full(use.stage).arrive();
          }
        }
        if constexpr (argument_read) {
          for (int part = 0; more && part < S::columns / S::argument_columns; ++part, use.next()) {
            ring.empty(use.stage).wait(use.parity ^ 1);
            ring.full(use.stage).arrive_expecting(S::argument_bytes);
            for (int i = 0; i < S::argument_columns / S::box; ++i)
              copy_tile(ring.a(use.stage) + i * S::rows * S::box * 2, &map_argument, ring.full(use.stage),
                        int(begun.tile.first_row) + begun.tile.row,
                        begun.tile.column + part * S::argument_columns + i * S::box);
          }
        }
      }
      block.sync_warp();
      if (!more) return;
    }
  }

  // k: from which on the slice is.
  LANCET_DEVICE void copy_slice(const Ring& ring, int stage, const GroupedTile& tile, int k) const {
    const PhaseBarrier full = ring.full(stage);
    const int first_row = int(tile.first_row);
    if constexpr (along_a == Along::k) {
      copy_tile(ring.a(stage), &map_a, full, first_row + tile.row, k);
    } else {
      for (int i = 0; i < S::rows / S::box; ++i)
        copy_tile(ring.a(stage) + i * box_bytes, &map_a, full, first_row + k, tile.row + i * S::box);
    }
    if constexpr (along_b == Along::k) {
      for (int i = 0; i < 2; ++i)
        copy_tile(ring.b(stage) + i * S::b_bytes / 2, &map_b, full,
                  tile.expert * p.all_columns + tile.column + i * S::columns / 2, k);
    } else {
      const int first_k = (dw ? first_row : tile.expert * p.depth) + k;
      for (int i = 0; i < S::columns / S::box; ++i)
        copy_tile(ring.b(stage) + i * box_bytes, &map_b, full, first_k, tile.column + i * S::box);
    }
  }

  // The warp is done with a stage: it may be overwritten.
  template <class Block>
  LANCET_DEVICE void release(Block& block, const Ring& ring, int stage) const {
    if (block.warp_lane() == 0) ring.empty(stage).arrive();
  }

  template <class Block>
  LANCET_DEVICE void multiply(Block& block, Shared& shared, const Ring& ring) const {
    Use use;
    for (;;) {
      ring.full(use.stage).wait(use.parity);
      const GroupedTile tile = shared.tiles[use.stage].tile;
      const int slices = shared.tiles[use.stage].slices;
      if (slices == 0) return;
      float sums[128];
      if constexpr (dw) {
        float row_sums[4];
        if (p.db && tile.column == 0)
          multiply_slices<true>(block, shared, ring, use, tile.rows, slices, sums, row_sums);
        else
          multiply_slices<false>(block, shared, ring, use, tile.rows, slices, sums, row_sums);
        store_gradient(block, tile, sums, row_sums);
      } else {
        float row_sums[4];
        multiply_slices<false>(block, shared, ring, use, 0, slices, sums, row_sums);
        store(block, shared, ring, use, tile, sums);
      }
    }
  }

  template <bool with_row_sums, class Block>
  LANCET_DEVICE void multiply_slices(Block& block, const Shared& shared, const Ring& ring, Use& use, int rows,
                                     int slices, float (&sums)[128], float (&row_sums)[4]) const {
    const SharedAddress group = SharedAddress(block.thread() / warpgroup_size - 1);
    constexpr int next_a = along_a == Along::k ? 32 : 2048, next_b = along_b == Along::k ? 32 : 2048;  // of 16 k
    for (int slice = 0; slice < slices; ++slice) {
      ring.full(use.stage).wait(use.parity);
      if constexpr (dw) {
        if (rows < (slice + 1) * S::depth) clear_rows(block, ring.a(use.stage), rows - slice * S::depth);
      }
      const std::uint64_t a = wgmma_operand(ring.a(use.stage) + group * (S::a_bytes / S::groups), box_bytes),
                          b = wgmma_operand(ring.b(use.stage), box_bytes);
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < S::depth / 16; ++i) {
        const bool add = slice > 0 || i > 0;
        wgmma<along_a == Along::rows, along_b == Along::rows>(sums, a + (i * next_a >> 4), b + (i * next_b >> 4), add);
        if constexpr (with_row_sums)  // b: ones, whatever their order; both halves of 8 k are the same 128 bytes
          wgmma<along_a == Along::rows>(row_sums, a + (i * next_a >> 4), (shared_address(shared.ones) & 0x3ffff) >> 4,
                                        add);
      }
      wgmma_commit();
      if (slice > 0) {
        wgmma_wait<1>();
        release(block, ring, (use.stage + S::stages - 1) % S::stages);
      }
      use.next();
    }
    wgmma_wait<0>();
    wgmma_pin(sums);
    if constexpr (with_row_sums) wgmma_pin(row_sums);
    release(block, ring, (use.stage + S::stages - 1) % S::stages);
  }

  // dw: overwrites all but the first `rows` of 64 rows of both operands by zeros.
  template <class Block>
  LANCET_DEVICE void clear_rows(Block& block, SharedAddress stage, int rows) const {
    const int cleared = (S::depth - rows) * 8;  // pieces of 16 bytes of a box
    for (int i = block.thread() - warpgroup_size; i < S::stage_bytes / box_bytes * cleared; i += S::warps * warp_size) {
      store_zeros(stage + SharedAddress(i / cleared * box_bytes + rows * 128 + i % cleared * 16));
    }
    fence_async();
    sync_threads(1, S::warps * warp_size);
  }

  template <class Block>
  LANCET_DEVICE void store(Block& block, Shared& shared, const Ring& ring, Use& use, const GroupedTile& tile,
                           float (&sums)[128]) const {
    const int warp = block.warp() - 4, lane = block.warp_lane(), g = lane / 4, t = lane % 4;
    const int row = tile.row + 16 * warp, rows = tile.rows - row;
    bf16* const stage = shared.rounded[warp];
    const auto pair = [&](int j, int h) { return stage + (8 * h + g) * 128 + (j ^ g) * 8 + 2 * t; };
    const float* bias =
        product == ExpertProduct::forward && p.bias ? p.bias + std::int64_t(tile.expert) * p.all_columns : nullptr;
    // A half of the columns. Constants number the sums, so that they stay in registers.
    const auto store_part = [&]<int part>(std::integral_constant<int, part>) {
      const int first_column = tile.column + 128 * part;
      const std::int64_t at = (tile.first_row + row) * p.width + first_column;
      const auto write = [&](bf16* to) {
        block.sync_warp();
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const int r = 2 * i + lane / 16, j = lane % 16;
          if (r < rows && first_column + 8 * j < p.width)
            *reinterpret_cast<uint4*>(to + at + std::int64_t(r) * p.width + 8 * j) =
                *reinterpret_cast<const uint4*>(stage + r * 128 + (j ^ r % 8) * 8);
        }
        block.sync_warp();
      };
      if constexpr (argument_read) ring.full(use.stage).wait(use.parity);
#pragma unroll
      for (int j = 0; j < 16; ++j) {
        constexpr int first = 64 * part;
        const int column = first_column + 8 * j + 2 * t;
        if (bias && column < p.width) {
          const float2 b = *reinterpret_cast<const float2*>(bias + column);
          sums[first + 4 * j] += b.x, sums[first + 4 * j + 1] += b.y;
          sums[first + 4 * j + 2] += b.x, sums[first + 4 * j + 3] += b.y;
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          float x = sums[first + 4 * j + 2 * h], y = sums[first + 4 * j + 2 * h + 1];
          if constexpr (argument_read) {
            const int r = 16 * warp + 8 * h + g;
            const std::uint32_t both = load_pair(
                ring.a(use.stage) + SharedAddress(j / 8 * (S::rows * 128) + r * 128 + (j % 8 ^ g) * 16 + 4 * t));
            x *= gelu_slope(__uint_as_float(both << 16)), y *= gelu_slope(__uint_as_float(both & 0xffff0000u));
          }
          const Bf16Pair rounded = rounded_pair(x, y);
          memcpy(pair(j, h), &rounded, 4);
        }
      }
      if constexpr (argument_read) {
        block.sync_warp();  // all lanes have read their arguments
        release(block, ring, use.stage);
        use.next();
      }
      if constexpr (epilogue == Epilogue::gelu && product == ExpertProduct::forward) {
        write(p.argument);
#pragma unroll
        for (int j = 0; j < 16; ++j)
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const Bf16Pair rounded =
                rounded_pair(gelu(sums[64 * part + 4 * j + 2 * h]), gelu(sums[64 * part + 4 * j + 2 * h + 1]));
            memcpy(pair(j, h), &rounded, 4);
          }
      }
      write(static_cast<bf16*>(p.c));
    };
    store_part(std::integral_constant<int, 0>());
    store_part(std::integral_constant<int, 1>());
  }

  template <class Block>
  LANCET_DEVICE void store_gradient(Block& block, const GroupedTile& tile, const float (&sums)[128],
                                    const float (&row_sums)[4]) const {
    const int warp = block.warp() - 4, lane = block.warp_lane(), g = lane / 4, t = lane % 4;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = tile.row + 16 * warp + 8 * h + g;
      if (row >= p.height) continue;
      const std::int64_t of_all = std::int64_t(tile.expert) * p.height + row;
      float* c = static_cast<float*>(p.c) + of_all * p.width;
#pragma unroll
      for (int j = 0; j < 32; ++j) {
        const int column = tile.column + 8 * j + 2 * t;
        if (column >= p.width) continue;
        float2 sum{sums[4 * j + 2 * h], sums[4 * j + 2 * h + 1]};
        float2* at = reinterpret_cast<float2*>(c + column);
        if (p.accumulate) sum.x += at->x, sum.y += at->y;
        *at = sum;
      }
      if (p.db && tile.column == 0 && t == 0) p.db[of_all] = (p.accumulate ? p.db[of_all] : 0.f) + row_sums[2 * h];
    }
  }
#endif
};

}  // namespace lancet::ops::device
