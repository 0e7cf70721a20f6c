#include "math.h"
#include "ops/device/pack.h"

namespace lancet::ops {
namespace {

using namespace device;

// A thread per token. Bytes: ids, experts and weights once.
struct HashChoice {
  static constexpr int threads = 256;
  std::uint64_t seed;
  const std::int32_t* token;  // [T]
  std::int32_t* expert;       // [T]
  float* weight;              // [T]
  std::int64_t tokens;
  std::int32_t experts;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t t = block.index() * threads + block.thread();
    if (t >= tokens) return;
    expert[t] = unscored::hashed_expert(seed, token[t], experts);
    weight[t] = 1;
  }
};

Kernel bind_hash(const KernelArgs& args) {
  const HashChoice kernel{std::uint64_t(args.attributes.integer("seed")),
                          args.operands[0].as<std::int32_t>(),
                          args.results[0].as<std::int32_t>(),
                          args.results[1].as<float>(),
                          args.operands[0].elements(),
                          std::int32_t(args.attributes.integer("experts"))};
  return run_steps(args.stream, Step{divide_up(kernel.tokens, HashChoice::threads), kernel});
}

// A thread per token. Bytes: experts and weights once.
struct RandomChoice {
  static constexpr int threads = 128;
  std::uint64_t seed;
  const std::int32_t* sequence;  // [B]
  std::int32_t* expert;          // [B*S]
  float* weight;                 // [B*S]
  std::int64_t tokens;
  std::int32_t positions, experts;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t t = block.index() * threads + block.thread();
    if (t >= tokens) return;
    const std::int32_t b = std::int32_t(t) / positions;
    const unscored::PositionShuffle shuffle(seed, sequence[b], positions);
    expert[t] = unscored::dealt_expert(shuffle, std::int32_t(t) - b * positions, experts);
    weight[t] = 1;
  }
};

Kernel bind_random(const KernelArgs& args) {
  const RandomChoice kernel{std::uint64_t(args.attributes.integer("seed")),
                            args.operands[0].as<std::int32_t>(),
                            args.results[0].as<std::int32_t>(),
                            args.results[1].as<float>(),
                            args.results[0].elements(),
                            std::int32_t(args.attributes.integer("positions")),
                            std::int32_t(args.attributes.integer("experts"))};
  return run_steps(args.stream, Step{divide_up(kernel.tokens, RandomChoice::threads), kernel});
}

}  // namespace

std::span<const DeviceKernel> unscored_choice_cuda() {
  static const DeviceKernel table[] = {{"hash_choice", bind_hash}, {"random_choice", bind_random}};
  return table;
}

}  // namespace lancet::ops
