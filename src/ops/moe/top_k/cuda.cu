// The choice of experts on a GPU: what top_k/choose.h decides, a few threads per token.
//
// The keys of choice_key fall in the order of the choices, so that choice k is the largest key below that of choice
// k - 1: each is one maximum over the token's threads. The softmax has one order of sums, so the result is that of the
// host.
#include "choice_gradient.h"
#include "math.h"
#include "token_threads.h"

namespace lancet::ops {
namespace {

using namespace device;

// Bytes: the logits and the scores once.
struct Choose : TokenThreads {
  std::int64_t experts, choices;
  bool normalized;
  const float* logits;     // [T, E]
  std::int32_t* expert;    // [T, K]
  float *weight, *scores;  // [T, K], [T, E]

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const auto [t, exists, member] = token_thread(block);
    const float* own = logits + t * experts;
    std::uint64_t last = next_key(block, own, member, true, 0);
    const float largest = own[routing::expert_of_key(last)];
    float sum = 0;
    for (std::int64_t e = member; e < experts; e += width) sum += exp_f32(own[e] - largest);
    sum = block.warp_sum(sum, width);
    for (std::int64_t e = member; e < experts && exists; e += width)
      scores[t * experts + e] = exp_f32(own[e] - largest) / sum;
    block.sync();      // the token's other threads read them
    float chosen = 0;  // the sum of the chosen scores
    for (std::int64_t k = 0; k < choices; ++k) {
      if (k > 0) last = next_key(block, own, member, false, last);
      const std::uint32_t e = routing::expert_of_key(last);
      if (!exists || member != 0) continue;
      const float p = scores[t * experts + e];
      chosen += p;
      expert[t * choices + k] = std::int32_t(e);
      weight[t * choices + k] = p;
    }
    for (std::int64_t k = 0; k < choices && normalized && exists && member == 0; ++k) weight[t * choices + k] /= chosen;
  }

  // The largest key of the token's experts, for the first choice, or the largest below `last`.
  template <class Block>
  LANCET_DEVICE std::uint64_t next_key(Block& block, const float* own, int member, bool first,
                                       std::uint64_t last) const {
    std::uint64_t best = 0;
    for (std::int64_t e = member; e < experts; e += width) {
      const std::uint64_t key = routing::choice_key(own[e], std::uint32_t(e));
      if (first || key < last) best = Larger{}(key, best);
    }
    return block.warp_max(best, width);
  }
};

Kernel bind_top_k(const KernelArgs& args) {
  const Shape& shape = args.operands[0].shape();
  const Choose kernel{TokenThreads::of(shape.rows(), shape.back()),
                      shape.back(),
                      args.attributes.integer("k"),
                      args.attributes.integer("normalize", 0) != 0,
                      args.operands[0].as<float>(),
                      args.results[0].as<std::int32_t>(),
                      args.results[1].as<float>(),
                      args.results[2].as<float>()};
  return run_steps(args.stream, Step{kernel.blocks(), kernel});
}

// Every expert of every token, with the softmax. Bytes: the logits, the experts, the weights and the scores once.
struct EveryExpert : TokenThreads {
  std::int64_t experts;
  const float* logits;     // [T, E]
  std::int32_t* expert;    // [T, E]
  float *weight, *scores;  // [T, E]

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const auto [t, exists, member] = token_thread(block);
    const std::int64_t row = t * experts;
    std::uint64_t best = 0;
    for (std::int64_t e = member; e < experts; e += width)
      best = Larger{}(routing::choice_key(logits[row + e], std::uint32_t(e)), best);
    const float largest = logits[row + routing::expert_of_key(block.warp_max(best, width))];
    float sum = 0;
    for (std::int64_t e = member; e < experts; e += width) sum += exp_f32(logits[row + e] - largest);
    sum = block.warp_sum(sum, width);
    for (std::int64_t e = member; e < experts && exists; e += width) {
      const float p = exp_f32(logits[row + e] - largest) / sum;
      expert[row + e] = std::int32_t(e);
      weight[row + e] = p;
      scores[row + e] = p;
    }
  }
};

Kernel bind_every(const KernelArgs& args) {
  const Shape& shape = args.operands[0].shape();
  const EveryExpert kernel{TokenThreads::of(shape.rows(), shape.back()),
                           shape.back(),
                           args.operands[0].as<float>(),
                           args.results[0].as<std::int32_t>(),
                           args.results[1].as<float>(),
                           args.results[2].as<float>()};
  return run_steps(args.stream, Step{kernel.blocks(), kernel});
}

// The gradient of the softmax (routing::softmax_backward). The token's threads first write dlogits as if no expert were
// chosen, then those of the choices, so that the work grows with E + K. Bytes: the scores and dlogits once, and both
// again for the choices, mostly in the cache.
struct TopKDx : TokenThreads {
  ChoiceGradientArgs of;  // of_experts: the scores

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const auto [t, exists, member] = token_thread(block);
    const std::int64_t experts = of.experts, choices = of.choices;
    const float* p = of.of_experts + t * experts;
    const float* of_all = of.dscores_of(t);
    routing::ChosenGradient chosen{of.expert + t * choices, of.dweight + t * choices, choices, of.normalized};
    chosen.find_sums([=](std::int32_t e) { return p[e]; }, 0.f, member, width,
                     [&](float sum) { return block.warp_sum(sum, width); });
    float dot = 0;
    for (std::int64_t e = member; e < experts && of_all; e += width) dot += p[e] * of_all[e];
    for (std::int64_t k = member; k < choices; k += width) dot += p[chosen.expert[k]] * chosen.of_choice(k);
    dot = block.warp_sum(dot, width);
    const auto write = [&](std::int64_t e, float own) {
      of.dlogits[t * experts + e] = routing::softmax_dlogit(p[e], (of_all ? of_all[e] : 0.f) + own, dot);
    };
    for (std::int64_t e = member; e < experts && exists; e += width) write(e, 0.f);
    block.sync_warp();  // another thread of the token may have written that of a choice
    for (std::int64_t k = member; k < choices && exists; k += width) write(chosen.expert[k], chosen.of_choice(k));
  }
};

Kernel bind_top_k_dx(const KernelArgs& args) {
  const ChoiceGradientArgs of = choice_gradient_args(args);
  const TopKDx kernel{TokenThreads::of(of.tokens, of.experts), of};
  return run_steps(args.stream, Step{kernel.blocks(), kernel});
}

}  // namespace

std::span<const DeviceKernel> top_k_cuda() {
  static const DeviceKernel table[] = {
      {"top_k", bind_top_k}, {"every_expert", bind_every}, {"top_k_dx", bind_top_k_dx}};
  return table;
}

}  // namespace lancet::ops
