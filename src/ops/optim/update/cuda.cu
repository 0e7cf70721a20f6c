// The updates over flat memory: one launch for many tensors.
#include <memory>
#include <span>
#include <vector>

#include "lancet/base/rounding.h"
#include "lancet/ops/schedule_layout.h"
#include "math.h"
#include "ops/device/tensor_table.h"

namespace lancet::ops {
namespace device {
namespace {

// The update of one tensor: n weights with `states` floats of state per weight. settings.from_schedule(numbers, scale)
// reads the numbers of the step on the device and returns a function (w, state..., gradient) -> new weight, which also
// updates the state. If the factor of the gradient is NaN, nothing is written. Weights are updated in f32: in `exact`
// (f32 weights or a master copy), with `rounded`, if any, rounded to nearest; or, without `exact`, in `rounded` by
// stochastic rounding. Bytes per weight: 4 * (3 + 2 * states), and 2 for the rounding.
template <class Settings, int states>
struct Update {
  static constexpr int threads = 256;
  static constexpr std::int64_t piece_elements = 4 * 4 * threads;  // of a block: four packs per thread

  std::int64_t first_piece;  // number of pieces before it in the launch
  float* exact;              // null: bf16 weights without a master copy
  bf16* rounded;             // null: f32 weights
  std::uint32_t seed;
  bool clipped, wide;
  float* state[states];
  const float *gradient, *numbers;
  Settings settings;
  std::int64_t n;
  std::int64_t first;  // the index of the first weight in the whole tensor, of which these may be a shard

  std::int64_t pieces() const { return divide_up(n, piece_elements); }

  LANCET_DEVICE void piece(std::int64_t piece, int thread) const {
    const float scale = clipped ? numbers[schedule::factor] : 1.f;
    if (scale != scale) return;
    const auto now = settings.from_schedule(numbers, scale);
    const std::int64_t begin = piece * piece_elements, end = begin + piece_elements < n ? begin + piece_elements : n;
    for (std::int64_t start = begin + thread * 4; start < end; start += threads * 4) pack(start, now);
  }

 private:
  template <class Now>
  LANCET_DEVICE void pack(std::int64_t start, const Now& now) const {
    const Part part = part_of_row<float>(start, n);
    Pack<float> w = exact ? load(exact + start, part, wide) : load_rounded(rounded + start, part), s[states];
    const Pack<float> g = load(gradient + start, part, wide);
#pragma unroll
    for (int k = 0; k < states; ++k) s[k] = load(state[k] + start, part, wide);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (states == 1)
        w.v[i] = now(w.v[i], s[0].v[i], g.v[i]);
      else
        w.v[i] = now(w.v[i], s[0].v[i], s[1].v[i], g.v[i]);
    }
    if (exact) store(exact + start, w, part, wide);
#pragma unroll
    for (int k = 0; k < states; ++k) store(state[k] + start, s[k], part, wide);
    if (rounded) store_rounded(rounded + start, w, part, start);
  }

  struct alignas(8) Half {
    bf16 v[4];
  };

  LANCET_DEVICE Pack<float> load_rounded(const bf16* p, Part part) const {
    Half half{};
    if (wide && part.whole<float>())
      half = *reinterpret_cast<const Half*>(p);
    else
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (i < part.last) half.v[i] = p[i];
    Pack<float> w;
#pragma unroll
    for (int i = 0; i < 4; ++i) w.v[i] = to_f32(half.v[i]);
    return w;
  }

  LANCET_DEVICE void store_rounded(bf16* p, const Pack<float>& w, Part part, std::int64_t start) const {
    const RoundingBits bits(seed, std::uint32_t(numbers[schedule::step]));
    Half half;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      const Bf16Pair nearest = rounded_pair(w.v[i], w.v[i + 1]);
      half.v[i] = exact ? nearest.v[0] : round_stochastically(w.v[i], bits(first + start + i));
      half.v[i + 1] = exact ? nearest.v[1] : round_stochastically(w.v[i + 1], bits(first + start + i + 1));
    }
    if (wide && part.whole<float>()) return store_at_once(reinterpret_cast<Half*>(p), half);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (i < part.last) p[i] = half.v[i];
  }
};

// The updates of several tensors in one launch, a block per piece.
template <class Settings, int states>
struct Updates {
  using Tensor = Update<Settings, states>;
  static constexpr int threads = Tensor::threads;
  static constexpr int most = int(4000 / sizeof(Tensor));  // a launch takes 4 KB of parameters
  static_assert(most <= most_entries);
  Tensor tensors[most];
  int count;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const Tensor& tensor = tensors[entry_of_piece(tensors, count, block.index())];
    tensor.piece(block.index() - tensor.first_piece, block.thread());
  }
};

// update(&w, &state..., gradient, schedule [, &master])
template <int states, class Settings>
Update<Settings, states> make_update(const KernelArgs& args, const Settings& settings) {
  const auto& operands = args.operands;
  const bool master = args.has(states + 3);
  Update<Settings, states> update{};
  const bool rounded = operands[0].type.dtype == DType::bf16;
  const FlatRange range = updated_range(args);
  update.exact = master    ? operands[states + 3].template as<float>()
                 : rounded ? nullptr
                           : operands[0].template as<float>() + range.begin;
  update.rounded = rounded ? operands[0].template as<bf16>() + range.begin : nullptr;
  update.seed = std::uint32_t(args.attributes.integer("rounding_seed", 0));
  for (int k = 0; k < states; ++k) update.state[k] = operands[std::size_t(1 + k)].template as<float>();
  update.gradient = operands[states + 1].template as<float>();
  update.numbers = operands[states + 2].template as<float>();
  update.settings = settings;
  update.n = range.size();
  update.first = range.begin;
  update.clipped = operands[states + 2].elements() == schedule::clipped;
  update.wide =
      aligned(update.exact, update.gradient, update.state[0], update.state[states - 1]) && aligned(update.rounded);
  return update;
}

// Binds updates with states of `states` tensors; settings(args) returns the settings of one.
template <int states, class MakeSettings>
Kernel bind_updates(std::span<const KernelArgs> calls, const MakeSettings& settings) {
  using Table = Updates<decltype(settings(calls[0])), states>;
  std::vector<Step<Table>> launches;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (i % Table::most == 0) launches.push_back({0, {}});
    auto& [pieces, table, shared] = launches.back();
    typename Table::Tensor update = make_update<states>(calls[i], settings(calls[i]));
    update.first_piece = pieces;
    pieces += update.pieces();
    table.tensors[table.count++] = update;
  }
  backend::Stream* stream = calls[0].stream;
  return [stream, launches = std::make_shared<const std::vector<Step<Table>>>(std::move(launches))]() -> Status {
    for (const Step<Table>& step : *launches) LANCET_TRY(launch(*stream, step.blocks, step.kernel));
    return {};
  };
}

// One block. Bytes: the bias twice, the counts once.
struct Balance {
  static constexpr int threads = 256;
  float* bias;                    // [E]
  const float *counts, *numbers;  // [E]; the schedule
  std::int64_t experts;
  bool clipped;
  float rate;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const float scale = clipped ? numbers[schedule::factor] : 1.f;
    double total = 0;  // of integers, which is exact in any order
    for (std::int64_t e = block.thread(); e < experts; e += threads) total += double(counts[e]);
    total = block.sum(total);
    if (scale != scale) return;
    for (std::int64_t e = block.thread(); e < experts; e += threads)
      bias[e] = balanced(bias[e], counts[e], total, experts, rate);
  }
};

}  // namespace
}  // namespace device

namespace {

// The attributes of AdamW; the kernel reads the schedule when it runs.
struct AdamWSettings {
  float beta1, rest1, beta2, rest2, eps, weight_decay;

  LANCET_DEVICE AdamW from_schedule(const float* numbers, float scale) const {
    const float lr = numbers[schedule::lr];
    return {beta1,
            rest1,
            beta2,
            rest2,
            eps,
            scale,
            1.f - lr * weight_decay,
            lr / numbers[schedule::correction1],
            1.f / __builtin_sqrtf(numbers[schedule::correction2])};
  }
};

AdamWSettings adamw_settings(const KernelArgs& args) {
  const double beta1 = args.attributes.real("beta1"), beta2 = args.attributes.real("beta2");
  return {float(beta1),
          float(1 - beta1),
          float(beta2),
          float(1 - beta2),
          float(args.attributes.real("eps")),
          float(args.attributes.real("weight_decay"))};
}

Kernel bind_all_adamw(std::span<const KernelArgs> calls) { return device::bind_updates<2>(calls, adamw_settings); }
Kernel bind_adamw(const KernelArgs& args) { return bind_all_adamw({&args, 1}); }

// The attributes of SGD; the kernel reads the schedule when it runs.
struct SgdSettings {
  float momentum, weight_decay;

  LANCET_DEVICE Sgd from_schedule(const float* numbers, float scale) const {
    return {momentum, weight_decay, numbers[schedule::lr], scale};
  }
};

SgdSettings sgd_settings(const KernelArgs& args) {
  return {float(args.attributes.real("momentum")), float(args.attributes.real("weight_decay"))};
}

Kernel bind_all_sgd(std::span<const KernelArgs> calls) { return device::bind_updates<1>(calls, sgd_settings); }
Kernel bind_sgd(const KernelArgs& args) { return bind_all_sgd({&args, 1}); }

Kernel bind_balance(const KernelArgs& args) {
  const device::Balance kernel{args.operands[0].as<float>(),
                               args.operands[1].as<float>(),
                               args.operands[2].as<float>(),
                               args.operands[0].elements(),
                               args.operands[2].elements() == schedule::clipped,
                               float(args.attributes.real("rate"))};
  return device::run_steps(args.stream, device::Step{1, kernel});
}

}  // namespace

std::span<const DeviceKernel> update_cuda() {
  static const DeviceKernel table[] = {{.op = "adamw", .bind = bind_adamw, .bind_all = bind_all_adamw},
                                       {.op = "sgd", .bind = bind_sgd, .bind_all = bind_all_sgd},
                                       {"balance_bias", bind_balance}};
  return table;
}

}  // namespace lancet::ops
