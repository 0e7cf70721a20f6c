#include <algorithm>

#include "lancet/backend/cpu/parallel.h"
#include "lancet/ops/kernel.h"
#include "math.h"

namespace lancet::ops {
namespace {

using backend::cpu::parallel_for;

Kernel bind_hash(const KernelArgs& args) {
  const auto seed = std::uint64_t(args.attributes.integer("seed"));
  const auto experts = std::int32_t(args.attributes.integer("experts"));
  const auto* token = args.operands[0].as<std::int32_t>();  // [T]
  auto* expert = args.results[0].as<std::int32_t>();        // [T]
  auto* weight = args.results[1].as<float>();               // [T]
  return [=, tokens = args.operands[0].elements()]() -> Status {
    parallel_for(tokens, 1024, [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) expert[t] = unscored::hashed_expert(seed, token[t], experts);
    });
    std::fill_n(weight, tokens, 1.f);
    return {};
  };
}

Kernel bind_random(const KernelArgs& args) {
  const auto seed = std::uint64_t(args.attributes.integer("seed"));
  const auto experts = std::int32_t(args.attributes.integer("experts"));
  const std::int64_t positions = args.attributes.integer("positions");
  const auto* sequence = args.operands[0].as<std::int32_t>();  // [B]
  auto* expert = args.results[0].as<std::int32_t>();           // [B*S]
  auto* weight = args.results[1].as<float>();                  // [B*S]
  return [=, tokens = args.results[0].elements()]() -> Status {
    parallel_for(tokens, 128, [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        const unscored::PositionShuffle shuffle(seed, sequence[t / positions], std::int32_t(positions));
        expert[t] = unscored::dealt_expert(shuffle, std::int32_t(t % positions), experts);
      }
    });
    std::fill_n(weight, tokens, 1.f);
    return {};
  };
}

const CpuKernel table[] = {{"hash_choice", bind_hash}, {"random_choice", bind_random}};

}  // namespace

std::span<const CpuKernel> unscored_choice_cpu() { return table; }

}  // namespace lancet::ops
