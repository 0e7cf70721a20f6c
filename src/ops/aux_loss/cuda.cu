#include "ops/device/partial_sums.h"

namespace lancet::ops {
namespace {

using namespace device;

// What one chosen token adds to E * f_e / total_tokens.
double unit(const KernelArgs& args, std::int64_t experts) {
  return double(experts) /
         (double(args.attributes.integer("load_tokens")) * double(args.attributes.integer("total_tokens")));
}

// The sum of load[e] * probability over a piece of the tokens. Bytes: the probabilities once.
struct Weigh {
  static constexpr int lanes = 256;
  const float *probabilities, *load;
  float* parts;  // [blocks]
  std::int64_t n, experts, piece;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t begin = block.index() * piece, end = begin + piece < n ? begin + piece : n;
    float sum = 0;
#pragma unroll 4
    for (std::int64_t i = begin + block.lane(); i < end; i += lanes)
      sum += load[std::uint32_t(i % experts)] * probabilities[i];
    sum = block.sum(sum);
    if (block.lane() == 0) parts[block.index()] = sum;
  }
};

constexpr std::int64_t piece_elements = 4096;
std::int64_t pieces_of(const KernelArgs& args) { return divide_up(args.operands[0].elements(), piece_elements); }

std::size_t workspace(const KernelArgs& args) {
  Scratch scratch(nullptr);
  scratch.take<float>(pieces_of(args));
  return scratch.bytes();
}

// aux_loss(probabilities, load) -> loss f32[1]
Kernel bind(const KernelArgs& args) {
  const std::int64_t experts = args.operands[0].shape().back(), pieces = pieces_of(args);
  float* parts = reinterpret_cast<float*>(args.workspace);
  const Weigh weigh{args.operands[0].as<float>(),
                    args.operands[1].as<float>(),
                    parts,
                    args.operands[0].elements(),
                    experts,
                    piece_elements};
  const AddUp add{parts, pieces, float(unit(args, experts)), args.results[0].as<float>()};
  return run_steps(args.stream, Step{pieces, weigh}, Step{1, add});
}

struct Gradient {
  static constexpr int lanes = 128;
  const float* load;
  float* dprobability;
  std::int64_t experts;
  float scale;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t e = block.index() * lanes + block.lane();
    if (e < experts) dprobability[e] = scale * load[e];
  }
};

// aux_loss_dx(load) -> dprobability f32[E]
Kernel bind_dx(const KernelArgs& args) {
  const std::int64_t experts = args.results[0].elements();
  const Gradient kernel{args.operands[0].as<float>(), args.results[0].as<float>(), experts,
                        float(unit(args, experts) * args.attributes.real("coefficient"))};
  return run_steps(args.stream, Step{divide_up(experts, Gradient::lanes), kernel});
}

const DeviceKernel table[] = {{"aux_loss", bind, workspace}, {"aux_loss_dx", bind_dx}};

}  // namespace

std::span<const DeviceKernel> aux_loss_cuda() { return table; }

}  // namespace lancet::ops
