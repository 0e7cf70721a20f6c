#include "math.h"
#include "ops/device/partial_sums.h"

namespace lancet::ops {
namespace {

using namespace device;

// E * f_e / total_tokens per choice of e: E / (load_tokens * choices * total_tokens).
double unit(const KernelArgs& args, std::int64_t experts) {
  const double of_load = args.attributes.real("load_tokens") * args.attributes.real("choices", 1);
  return double(experts) / (of_load * double(args.attributes.integer("total_tokens")));
}

// A block per piece of the probabilities: the sums of load[e] * p and of -p log p. Bytes: the probabilities once.
struct Weigh {
  static constexpr int threads = 256;
  const float *probabilities, *load;        // load: [2L, E]
  float *loss, *entropy;                    // [blocks]
  std::int64_t n, experts, of_load, piece;  // of_load: probabilities of the tokens that share a load

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t begin = block.index() * piece, end = begin + piece < n ? begin + piece : n;
    float weighed = 0, surprises = 0;
#pragma unroll 4
    for (std::int64_t i = begin + block.thread(); i < end; i += threads) {
      const float p = probabilities[i];
      weighed += load[i / of_load * 2 * experts + i % experts] * p;
      surprises += surprise(p);
    }
    weighed = block.sum(weighed);
    surprises = block.sum(surprises);
    if (block.thread() > 0) return;
    loss[block.index()] = weighed;
    entropy[block.index()] = surprises;
  }
};

constexpr std::int64_t loss_piece = 4096;
std::int64_t pieces_of_loss(const KernelArgs& args) { return divide_up(args.operands[0].elements(), loss_piece); }

std::size_t workspace_aux_loss(const KernelArgs& args) {
  Scratch scratch(nullptr);
  scratch.take<float>(2 * pieces_of_loss(args));
  return scratch.bytes();
}

Kernel bind_aux_loss(const KernelArgs& args) {
  const std::int64_t experts = args.operands[0].shape()[2], pieces = pieces_of_loss(args);
  float *loss = reinterpret_cast<float*>(args.workspace), *entropy = loss + pieces;
  float* shares = args.results[0].as<float>();
  const Weigh weigh{args.operands[0].as<float>(),
                    args.operands[1].as<float>(),
                    loss,
                    entropy,
                    args.operands[0].elements(),
                    experts,
                    args.operands[0].elements() / (args.operands[1].shape()[0] / 2),
                    loss_piece};
  const float each = float(1.0 / double(args.attributes.integer("total_tokens")));
  return run_steps(args.stream, Step{pieces, weigh}, Step{1, AddUp{loss, pieces, float(unit(args, experts)), shares}},
                   Step{1, AddUp{entropy, pieces, each, shares + 1}});
}

struct Gradient {
  static constexpr int threads = 128;
  const float* load;        // [2L, E]
  float* dprobability;      // [L, E]
  std::int64_t n, experts;  // n: L * E
  float scale;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t i = block.index() * threads + block.thread();
    if (i < n) dprobability[i] = scale * load[i + i / experts * experts];
  }
};

Kernel bind_aux_loss_dx(const KernelArgs& args) {
  const std::int64_t n = args.results[0].elements(), experts = args.operands[0].shape()[1];
  const Gradient kernel{args.operands[0].as<float>(), args.results[0].as<float>(), n, experts,
                        float(unit(args, experts) * args.attributes.real("coefficient"))};
  return run_steps(args.stream, Step{divide_up(n, Gradient::threads), kernel});
}

// One block, for a few hundred experts.
struct Mean {
  static constexpr int threads = 256;
  float* sum;         // [2, E]
  const float* load;  // [2, E]
  float* mean;        // [2, E]
  std::int64_t experts;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    float of_sum = 0, of_load = 0;
    for (std::int64_t i = block.thread(); i < 2 * experts; i += threads) {
      const float total = sum[i] + load[i];
      sum[i] = total;
      if (i < experts) of_sum += total, of_load += load[i];
    }
    of_sum = block.sum(of_sum);
    of_load = block.sum(of_load);
    const float share = of_load / of_sum;
    for (std::int64_t i = block.thread(); i < 2 * experts; i += threads) mean[i] = share * sum[i];
  }
};

Kernel bind_aux_loss_mean(const KernelArgs& args) {
  const Mean kernel{args.operands[0].as<float>(), args.operands[1].as<float>(), args.results[0].as<float>(),
                    args.results[0].shape()[1]};
  return run_steps(args.stream, Step{1, kernel});
}

}  // namespace

std::span<const DeviceKernel> aux_loss_cuda() {
  static const DeviceKernel table[] = {{"aux_loss", bind_aux_loss, workspace_aux_loss},
                                       {"aux_loss_dx", bind_aux_loss_dx},
                                       {"mean_load", bind_aux_loss_mean}};
  return table;
}

}  // namespace lancet::ops
