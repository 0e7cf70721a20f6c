// The choice of experts by sigmoid scores on a GPU: what sigmoid_top_k/choose.h decides, a few threads per token.
//
// The result `scores` first holds s, of which each of the token's threads writes and searches its own experts; the
// weights are read from it before the division by the sum. Where groups of experts are limited, each thread finds the
// keys of some groups, and all of the token's threads read them from shared memory.
#include "math.h"
#include "ops/moe/top_k/choice_gradient.h"
#include "ops/moe/top_k/token_threads.h"

namespace lancet::ops {
namespace {

using namespace device;

// Bytes: the logits and the scores once from device memory. The result holds s meanwhile, which the search for each of
// the K choices and the division read again, mostly from the cache.
struct ChooseSigmoid : TokenThreads {
  static constexpr int most_tokens = threads / least_width;  // of a block
  struct Shared {
    std::uint64_t keys[most_tokens][routing::most_expert_groups];
  };
  std::int64_t experts, choices, groups, open;
  bool normalized;
  float scale;
  const float *logits, *bias;  // [T, E]; [E] or null
  std::int32_t* expert;        // [T, K]
  float *weight, *scores;      // [T, K], [T, E]

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const auto [t, exists, member] = token_thread(block);
    float *own = scores + t * experts, sum = 0;
    for (std::int64_t e = member; e < experts; e += width) {
      const float s = routing::sigmoid_f32(logits[t * experts + e]);
      sum += s;
      if (exists) own[e] = s;
    }
    sum = block.warp_sum(sum, width) + routing::least_sum;
    block.sync();  // the token's other threads read s
    choose(block, t, exists, member, find_open(block, own, member));
    block.sync();  // s is replaced after it has been read
    for (std::int64_t e = member; e < experts && exists; e += width) own[e] /= sum;
  }

  LANCET_DEVICE float rank(const float* own, std::int64_t e) const { return own[e] + (bias ? bias[e] : 0.f); }

  // The groups that the token may choose from, as bits.
  template <class Block>
  LANCET_DEVICE std::uint64_t find_open(Block& block, const float* own, int member) const {
    if (open == groups) return ~std::uint64_t{0};
    std::uint64_t* keys = block.template shared<Shared>().keys[block.thread() / width];
    const std::int64_t size = experts / groups;
    for (std::int64_t g = member; g < groups; g += width)
      keys[g] =
          routing::group_key([&](std::int64_t e) { return rank(own, e); }, g * size, (g + 1) * size, std::uint32_t(g));
    block.sync();
    return routing::open_groups(keys, groups, open);
  }

  template <class Block>
  LANCET_DEVICE void choose(Block& block, std::int64_t t, bool exists, int member, std::uint64_t groups_open) const {
    const float* own = scores + t * experts;
    const std::int32_t size = std::int32_t(experts / groups);
    std::uint64_t last = 0;  // the key of the choice before
    float chosen = 0;        // the sum of the chosen scores
    for (std::int64_t k = 0; k < choices; ++k) {
      std::uint64_t best = 0;
      for (std::int32_t e = member; e < experts; e += width) {
        if ((groups_open >> (e / size) & 1) == 0) continue;
        const std::uint64_t key = routing::choice_key(rank(own, e), std::uint32_t(e));
        if (k == 0 || key < last) best = Larger{}(key, best);
      }
      last = block.warp_max(best, width);
      if (!exists || member != 0) continue;
      const std::uint32_t e = routing::expert_of_key(last);
      chosen += own[e];
      expert[t * choices + k] = std::int32_t(e);
      weight[t * choices + k] = own[e];
    }
    for (std::int64_t k = 0; k < choices && exists && member == 0; ++k) {
      const float s = weight[t * choices + k];
      weight[t * choices + k] = (normalized ? s / (chosen + routing::least_sum) : s) * scale;
    }
  }
};

Kernel bind_sigmoid_top_k(const KernelArgs& args) {
  const Shape& shape = args.operands[0].shape();
  const std::int64_t groups = args.attributes.integer("expert_groups", 1);
  const ChooseSigmoid kernel{TokenThreads::of(shape.rows(), shape.back()),
                             shape.back(),
                             args.attributes.integer("k"),
                             groups,
                             args.attributes.integer("top_groups", groups),
                             args.attributes.integer("normalize", 0) != 0,
                             float(args.attributes.real("scale", 1)),
                             args.operands[0].as<float>(),
                             args.has(1) ? args.operands[1].as<float>() : nullptr,
                             args.results[0].as<std::int32_t>(),
                             args.results[1].as<float>(),
                             args.results[2].as<float>()};
  const std::size_t shared = kernel.open < kernel.groups ? shared_bytes<ChooseSigmoid>() : 0;
  return run_steps(args.stream, Step{kernel.blocks(), kernel, shared});
}

// The gradient of the logits (routing::sigmoid_backward), written as by TopKDx (ops/moe/top_k). Bytes: the logits and
// dlogits once, and both again for the choices, mostly in the cache.
struct SigmoidDx : TokenThreads {
  ChoiceGradientArgs of;  // of_experts: the logits
  float scale;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const auto [t, exists, member] = token_thread(block);
    const std::int64_t experts = of.experts, choices = of.choices;
    const float* own = of.of_experts + t * experts;
    routing::ChosenGradient chosen{of.expert + t * choices, of.dweight + t * choices, choices, of.normalized, scale};
    chosen.find_sums([=](std::int32_t e) { return routing::sigmoid_f32(own[e]); }, routing::least_sum, member, width,
                     [&](float sum) { return block.warp_sum(sum, width); });
    const float* of_all = of.dscores_of(t);
    float sum = 0, dot = 0;
    for (std::int64_t e = member; e < experts; e += width) {
      const float s = routing::sigmoid_f32(own[e]);
      sum += s;
      if (of_all) dot += of_all[e] * s;
    }
    sum = block.warp_sum(sum, width) + routing::least_sum;
    dot = block.warp_sum(dot, width) / sum;
    const auto write = [&](std::int64_t e, float of_choice) {
      const float of_score = of_all ? (of_all[e] - dot) / sum : 0.f;
      of.dlogits[t * experts + e] = routing::sigmoid_dlogit(routing::sigmoid_f32(own[e]), of_score + of_choice);
    };
    for (std::int64_t e = member; e < experts && exists; e += width) write(e, 0.f);
    block.sync_warp();  // another thread of the token may have written that of a choice
    for (std::int64_t k = member; k < choices && exists; k += width) write(chosen.expert[k], chosen.of_choice(k));
  }
};

Kernel bind_sigmoid_top_k_dx(const KernelArgs& args) {
  const ChoiceGradientArgs of = choice_gradient_args(args);
  const SigmoidDx kernel{TokenThreads::of(of.tokens, of.experts), of, float(args.attributes.real("scale", 1))};
  return run_steps(args.stream, Step{kernel.blocks(), kernel});
}

}  // namespace

std::span<const DeviceKernel> sigmoid_top_k_cuda() {
  static const DeviceKernel table[] = {{"sigmoid_top_k", bind_sigmoid_top_k},
                                       {"sigmoid_top_k_dx", bind_sigmoid_top_k_dx}};
  return table;
}

}  // namespace lancet::ops
