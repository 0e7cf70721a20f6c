// The kernel that runs the device instructions of ops/references/instructions.h: one block of two warps.
#pragma once
#include <cstring>

#include "lancet/base/math.h"
#include "ops/device/pack.h"
#include "ops/device/tensor_core.h"
#include "ops/references/instructions.h"

namespace lancet::test {

struct RunInstructions {
  static constexpr int threads = Instructions::threads, copies = Instructions::copies;
  struct Shared {
    alignas(16) std::uint16_t matrix[Instructions::warps][Instructions::matrix_rows][8];
    alignas(16) std::uint32_t arrived[copies][threads][4];
    std::int32_t sum, maximum;
  };
  Instructions* io;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    using namespace ops::device;
    auto& shared = block.template shared<Shared>();
    const int i = block.thread(), warp = block.warp(), lane = block.warp_lane();
    if (i == 0) shared.sum = shared.maximum = 0;
    for (int row = lane; row < Instructions::matrix_rows; row += 32)
      for (int e = 0; e < 8; ++e) shared.matrix[warp][row][e] = io->matrix[warp][row][e];
    for (int group = 0; group < copies; ++group)
      for (int e = 0; e < 4; ++e) shared.arrived[group][i][e] = ~0u;
    block.sync();

    multiply(block, io->c[i], io->a[i], io->b[i]);

    const SharedAddress row = shared_address(shared.matrix[warp][io->row[i]]);
    load_matrices<false>(block, io->plain[i], row);
    load_matrices<true>(block, io->transposed[i], row);

    Copies copy;
    for (int group = 0; group < copies; ++group) {
      const bool there = io->there[group][i] != 0;
      copy.start(shared_address(shared.arrived[group][i]), there ? io->source[group][i] : nullptr, there);
      copy.end_group();
    }
    auto take = [&](int group) {
      for (int e = 0; e < 4; ++e) io->arrived[group][i][e] = shared.arrived[group][i][e];
    };
    static_assert(copies == 4);
    copy.template wait<3>(), take(0);
    copy.template wait<2>(), take(1);
    copy.template wait<1>(), take(2);
    copy.template wait<0>(), take(3);

    for (int v = i; v < Instructions::values; v += threads) {
      float x, y;
      memcpy(&x, &io->x[v], 4);
      memcpy(&y, &io->y[v], 4);
      const Bf16Pair pair = rounded_pair(x, y);
      memcpy(&io->pair[v], &pair, 4);
      io->power[v] = exp_fast_f32(io->exponent[v]);
      io->quotient[v] = divide_fast_f32(io->dividend[v], io->divisor[v]);
    }

    io->shuffled[i] = block.shuffle(io->number[i], io->from[i]);
    io->mixed[i] = block.shuffle_xor(io->number[i], io->distance);
    io->upper[i] = block.shuffle_up(io->number[i], io->distance);

    io->before[i] = block.atomic_add(&shared.sum, io->number[i]);
    block.atomic_max(&shared.maximum, io->number[i]);
    block.set_word(&io->set[i], std::uint32_t(io->number[i]));
    block.add_word(&io->counted, std::uint32_t(io->number[i]));
    block.sync();
    io->loaded[i] = block.load_word(&io->set[i]);
    if (i > 0) return;
    io->sum = shared.sum, io->maximum = shared.maximum;
    io->reached = block.wait_word(&io->ahead, io->target, &io->stop);
    io->stopped = !block.wait_word(&io->behind, io->target, &io->stop);
  }
};

}  // namespace lancet::test
