#include <memory>
#include <vector>

#include "lancet/ops/peer_parts.h"
#include "ops/device/pack.h"
#include "ops/token_slots.h"

namespace lancet::ops {
namespace {

using namespace device;

// Sets the part's slots to empty ranges that begin where those of the part before end, or at 0.
struct Begin {
  static constexpr int threads = 128;
  const std::int32_t* before;  // [E, 2], or null
  std::int32_t* part;          // [E, 2]
  std::int64_t experts;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t e = block.index() * threads + block.thread();
    if (e < experts) part[2 * e] = part[2 * e + 1] = before ? before[2 * e + 1] : 0;
  }
};

// An expert's slots end after its last kept token. Bytes: 8 per choice of a token, read.
struct Split {
  static constexpr int threads = 256;
  const std::int32_t *expert, *slot;  // [T*K]
  std::int64_t choices;
  std::int32_t* part;  // [E, 2]

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t i = block.index() * threads + block.thread();
    if (i >= choices || slot[i] == dropped) return;
    std::int32_t* end = part + 2 * expert[i] + 1;
    // Slots rise with the tokens, so reading the end first saves most atomics if an expert has many tokens in a row.
    if (*end <= slot[i]) block.atomic_max(end, slot[i] + 1);
  }
};

Kernel bind_filled_parts_split(const KernelArgs& args) {
  const std::int64_t experts = args.results[0].shape()[0], choices = args.operands[0].elements();
  auto* part = args.results[0].as<std::int32_t>();
  const Begin begin{args.has(2) ? args.operands[2].as<std::int32_t>() : nullptr, part, experts};
  const Split split{args.operands[0].as<std::int32_t>(), args.operands[1].as<std::int32_t>(), choices, part};
  return run_steps(args.stream, Step{divide_up(experts, Begin::threads), begin},
                   Step{divide_up(choices, Split::threads), split});
}

struct SplitCapacity {
  static constexpr int threads = 128;
  const std::int32_t* whole;  // [E, 2]
  std::int32_t* part;         // [E, 2]
  std::int64_t experts, number, parts;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t e = block.index() * threads + block.thread();
    if (e >= experts) return;
    const std::int64_t begin = whole[2 * e], filled = whole[2 * e + 1] - begin;
    part[2 * e] = std::int32_t(begin + filled * number / parts);
    part[2 * e + 1] = std::int32_t(begin + filled * (number + 1) / parts);
  }
};

Kernel bind_split_capacity(const KernelArgs& args) {
  const SplitCapacity kernel{args.operands[0].as<std::int32_t>(), args.results[0].as<std::int32_t>(),
                             args.results[0].shape()[0], args.attributes.integer("part"),
                             args.attributes.integer("parts")};
  return run_steps(args.stream, Step{divide_up(kernel.experts, SplitCapacity::threads), kernel});
}

// Of the rows of an expert from each source, a share for each part, after those of the parts before.
struct CapacityRows {
  static constexpr int threads = 64;
  const std::int32_t* whole;  // [E/W, width]
  std::int32_t* part;         // [E/W, width]
  std::int64_t experts, width;
  std::int32_t number, parts;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t e = block.index() * threads + block.thread();
    if (e >= experts) return;
    const std::int32_t* all = whole + e * width;
    std::int32_t *mine = part + e * width, at = all[0];
    for (std::int64_t source = 0; source + 1 < width; ++source) at += until(all, source, number);
    mine[0] = at;
    for (std::int64_t source = 0; source + 1 < width; ++source)
      mine[source + 1] = at += until(all, source, number + 1) - until(all, source, number);
  }

  // The rows of the source in that many parts: rows * of_parts / parts, rounded down, in 32 bits.
  LANCET_DEVICE std::int32_t until(const std::int32_t* all, std::int64_t source, std::int32_t of_parts) const {
    const std::int32_t rows = all[source + 1] - all[source];
    return rows / parts * of_parts + rows % parts * of_parts / parts;
  }
};

Kernel bind_capacity_rows(const KernelArgs& args) {
  const CapacityRows kernel{args.operands[0].as<std::int32_t>(),
                            args.results[0].as<std::int32_t>(),
                            args.results[0].shape()[0],
                            args.results[0].shape()[1],
                            std::int32_t(args.attributes.integer("part")),
                            std::int32_t(args.attributes.integer("parts"))};
  return run_steps(args.stream, Step{divide_up(kernel.experts, CapacityRows::threads), kernel});
}

// The slots of the experts on the ranks of a part; empty ranges for the other experts.
struct SplitPeers {
  static constexpr int threads = 128;
  const std::int32_t* whole;  // [E, 2]
  std::int32_t* part;         // [E, 2]
  std::int64_t experts, rank, number;
  PeerParts peers;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t e = block.index() * threads + block.thread();
    if (e >= experts) return;
    const std::int32_t begin = whole[2 * e];
    part[2 * e] = begin;
    part[2 * e + 1] = peers.part_of(rank, e / (experts / peers.ranks)) == number ? whole[2 * e + 1] : begin;
  }
};

// The rows of an expert that come from the ranks of a part, after those of the parts before.
struct PeerRows {
  static constexpr int threads = 64;
  const std::int32_t* whole;  // [E/W, W+1]
  std::int32_t* part;         // [E/W, W+1]
  std::int64_t experts, rank, number;
  PeerParts peers;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t e = block.index() * threads + block.thread();
    if (e >= experts) return;
    const std::int32_t* all = whole + e * (peers.ranks + 1);
    std::int32_t* mine = part + e * (peers.ranks + 1);
    std::int32_t at = all[0];
    for (std::int64_t source = 0; source < peers.ranks; ++source)
      if (peers.part_of(source, rank) < number) at += all[source + 1] - all[source];
    mine[0] = at;
    for (std::int64_t source = 0; source < peers.ranks; ++source) {
      if (peers.part_of(source, rank) == number) at += all[source + 1] - all[source];
      mine[source + 1] = at;
    }
  }
};

// Of SplitPeers or PeerRows.
template <class K>
Kernel bind_by_peers(const KernelArgs& args) {
  const K kernel{args.operands[0].as<std::int32_t>(), args.results[0].as<std::int32_t>(),
                 args.results[0].shape()[0],          args.group.place,
                 args.attributes.integer("part"),     peer_parts(args.attributes)};
  return run_steps(args.stream, Step{divide_up(kernel.experts, K::threads), kernel});
}

struct JoinRows {
  static constexpr int threads = 128;
  const std::int32_t *first, *last;  // [E, width]
  std::int32_t* whole;
  std::int64_t n, width;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t i = block.index() * threads + block.thread();
    if (i >= n) return;
    const std::int64_t row = i / width * width;
    whole[i] = i == row ? first[i] : last[row + width - 1];
  }
};

Kernel bind_join_rows(const KernelArgs& args) {
  const TensorView& whole = args.results[0];
  const JoinRows kernel{args.operands.front().as<std::int32_t>(), args.operands.back().as<std::int32_t>(),
                        whole.as<std::int32_t>(), whole.elements(), whole.shape()[1]};
  return run_steps(args.stream, Step{divide_up(kernel.n, JoinRows::threads), kernel});
}

// The number of parts that one launch adds; their addresses are arguments of the kernel.
constexpr int parts_per_launch = 32;

// Bytes: each part and the sum once.
template <class T>
struct SumParts {
  static constexpr int threads = 256;
  const T* parts[parts_per_launch];
  int count;
  bool accumulate;  // onto the sum of earlier launches
  T* sum;
  std::int64_t n;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t i = block.index() * threads + block.thread();
    if (i >= n) return;
    float total = to_f32(accumulate ? sum[i] : parts[0][i]);
#pragma unroll 4
    for (int p = accumulate ? 0 : 1; p < count; ++p) total += to_f32(parts[p][i]);
    sum[i] = from_f32<T>(total);
  }
};

Kernel bind_filled_parts_sum(const KernelArgs& args) {
  return by_dtype(args.operands[0].dtype(), [&]<class T>(T) -> Kernel {
    std::vector<SumParts<T>> sums;
    for (std::size_t p = 0; p < args.operands.size(); ++p) {
      if (p % parts_per_launch == 0)
        sums.push_back({{}, 0, p > 0, args.results[0].as<T>(), args.results[0].elements()});
      sums.back().parts[sums.back().count++] = args.operands[p].as<T>();
    }
    return
        [stream = args.stream, sums = std::make_shared<const std::vector<SumParts<T>>>(std::move(sums))]() -> Status {
          for (const SumParts<T>& sum : *sums) LANCET_TRY(launch(*stream, divide_up(sum.n, SumParts<T>::threads), sum));
          return {};
        };
  });
}

}  // namespace

std::span<const DeviceKernel> filled_parts_cuda() {
  static const DeviceKernel table[] = {{"split_filled", bind_filled_parts_split},
                                       {"split_capacity", bind_split_capacity},
                                       {"capacity_rows", bind_capacity_rows},
                                       {"split_peers", bind_by_peers<SplitPeers>},
                                       {"peer_rows", bind_by_peers<PeerRows>},
                                       {"join_rows", bind_join_rows},
                                       {"sum", bind_filled_parts_sum}};
  return table;
}

}  // namespace lancet::ops
