#include <algorithm>
#include <vector>

#include "lancet/ops/peer_parts.h"
#include "ops/cpu.h"
#include "ops/token_slots.h"

namespace lancet::ops {
namespace {

Kernel bind_split(const KernelArgs& args) {
  const std::int64_t choices = args.operands[0].elements(), experts = args.results[0].shape()[0];
  const auto *expert = args.operands[0].as<std::int32_t>(), *slot = args.operands[1].as<std::int32_t>();
  const std::int32_t* before = args.has(2) ? args.operands[2].as<std::int32_t>() : nullptr;
  auto* part = args.results[0].as<std::int32_t>();
  return [=]() -> Status {
    for (std::int64_t e = 0; e < experts; ++e) part[2 * e] = part[2 * e + 1] = before ? before[2 * e + 1] : 0;
    for (std::int64_t i = 0; i < choices; ++i) {
      if (slot[i] == dropped) continue;
      std::int32_t& end = part[2 * expert[i] + 1];
      end = std::max(end, slot[i] + 1);
    }
    return {};
  };
}

Kernel bind_split_capacity(const KernelArgs& args) {
  const std::int64_t experts = args.results[0].shape()[0];
  const std::int64_t parts = args.attributes.integer("parts"), p = args.attributes.integer("part");
  const auto* whole = args.operands[0].as<std::int32_t>();
  auto* part = args.results[0].as<std::int32_t>();
  return [=]() -> Status {
    for (std::int64_t e = 0; e < experts; ++e) {
      const std::int64_t begin = whole[2 * e], filled = whole[2 * e + 1] - begin;
      part[2 * e] = std::int32_t(begin + filled * p / parts);
      part[2 * e + 1] = std::int32_t(begin + filled * (p + 1) / parts);
    }
    return {};
  };
}

Kernel bind_split_peers(const KernelArgs& args) {
  const PeerParts peers = peer_parts(args.attributes);
  const std::int64_t experts = args.results[0].shape()[0], of_rank = experts / peers.ranks;
  const std::int64_t part_number = args.attributes.integer("part"), rank = args.group.place;
  const auto* whole = args.operands[0].as<std::int32_t>();
  auto* part = args.results[0].as<std::int32_t>();
  return [=]() -> Status {
    for (std::int64_t e = 0; e < experts; ++e) {
      const bool mine = peers.part_of(rank, e / of_rank) == part_number;
      part[2 * e] = whole[2 * e];
      part[2 * e + 1] = mine ? whole[2 * e + 1] : whole[2 * e];
    }
    return {};
  };
}

Kernel bind_capacity_rows(const KernelArgs& args) {
  const std::int64_t experts = args.results[0].shape()[0], width = args.results[0].shape()[1];
  const std::int64_t parts = args.attributes.integer("parts"), p = args.attributes.integer("part");
  const auto* whole = args.operands[0].as<std::int32_t>();
  auto* part = args.results[0].as<std::int32_t>();
  return [=]() -> Status {
    for (std::int64_t e = 0; e < experts; ++e) {
      const std::int32_t* all = whole + e * width;
      std::int32_t *mine = part + e * width, at = all[0];
      const auto until = [&](std::int64_t source, std::int64_t of_parts) {  // rows of the source in that many parts
        return std::int32_t(std::int64_t(all[source + 1] - all[source]) * of_parts / parts);
      };
      for (std::int64_t source = 0; source + 1 < width; ++source) at += until(source, p);
      mine[0] = at;
      for (std::int64_t source = 0; source + 1 < width; ++source)
        mine[source + 1] = at += until(source, p + 1) - until(source, p);
    }
    return {};
  };
}

Kernel bind_peer_rows(const KernelArgs& args) {
  const PeerParts peers = peer_parts(args.attributes);
  const std::int64_t experts = args.results[0].shape()[0], width = peers.ranks + 1;
  const std::int64_t part_number = args.attributes.integer("part"), rank = args.group.place;
  const auto* whole = args.operands[0].as<std::int32_t>();
  auto* part = args.results[0].as<std::int32_t>();
  return [=]() -> Status {
    for (std::int64_t e = 0; e < experts; ++e) {
      const std::int32_t* all = whole + e * width;
      std::int32_t *mine = part + e * width, at = all[0];
      for (std::int64_t source = 0; source < peers.ranks; ++source)
        if (peers.part_of(source, rank) < part_number) at += all[source + 1] - all[source];
      mine[0] = at;
      for (std::int64_t source = 0; source < peers.ranks; ++source) {
        if (peers.part_of(source, rank) == part_number) at += all[source + 1] - all[source];
        mine[source + 1] = at;
      }
    }
    return {};
  };
}

Kernel bind_join_rows(const KernelArgs& args) {
  const std::int32_t *first = args.operands.front().as<std::int32_t>(), *last = args.operands.back().as<std::int32_t>();
  auto* whole = args.results[0].as<std::int32_t>();
  const std::int64_t experts = args.results[0].shape()[0], width = args.results[0].shape()[1];
  return [=]() -> Status {
    for (std::int64_t e = 0; e < experts; ++e) {
      whole[e * width] = first[e * width];
      std::fill_n(whole + e * width + 1, width - 1, last[e * width + width - 1]);
    }
    return {};
  };
}

// out[i] = (parts[0][i] + parts[1][i]) + ..., in f32.
template <class T>
void sum_in_order(const std::vector<const T*>& parts, std::int64_t begin, std::int64_t n, T* out) {
  float sum[cpu::block];
  for (std::int64_t i = 0; i < n; ++i) sum[i] = to_f32(parts[0][begin + i]);
  for (std::size_t p = 1; p < parts.size(); ++p)
    for (std::int64_t i = 0; i < n; ++i) sum[i] += to_f32(parts[p][begin + i]);
  for (std::int64_t i = 0; i < n; ++i) out[begin + i] = from_f32<T>(sum[i]);
}

Kernel bind_sum(const KernelArgs& args) {
  return cpu::by_dtype(args.operands[0].dtype(), [&]<class T>(T) -> Kernel {
    std::vector<const T*> parts;
    for (const TensorView& part : args.operands) parts.push_back(part.as<T>());
    return [parts, sum = args.results[0].as<T>(), n = args.results[0].elements()]() -> Status {
      cpu::parallel_for(n, cpu::grain_elements, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; i += cpu::block)
          sum_in_order(parts, i, std::min(cpu::block, end - i), sum);
      });
      return {};
    };
  });
}

const CpuKernel table[] = {{"split_filled", bind_split},
                           {"split_capacity", bind_split_capacity},
                           {"split_peers", bind_split_peers},
                           {"peer_rows", bind_peer_rows},
                           {"capacity_rows", bind_capacity_rows},
                           {"join_rows", bind_join_rows},
                           {"sum", bind_sum}};

}  // namespace

std::span<const CpuKernel> filled_parts_cpu() { return table; }

}  // namespace lancet::ops
