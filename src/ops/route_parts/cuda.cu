#include <memory>
#include <vector>

#include "lancet/ir/route_layout.h"
#include "ops/device/pack.h"

namespace lancet::ops {
namespace {

using namespace device;

struct Route {
  ir::RouteLayout layout;
  void* data;

  Route() = default;
  explicit Route(const TensorView& view) : layout{view.shape()[0], view.shape()[1]}, data(view.data) {}
  LANCET_DEVICE std::int32_t* expert() const { return layout.expert(data); }
  LANCET_DEVICE std::int32_t* slot() const { return layout.slot(data); }
  LANCET_DEVICE float* weight() const { return layout.weight(data); }
  LANCET_DEVICE std::int32_t* begin() const { return layout.begin(data); }
  LANCET_DEVICE std::int32_t* end() const { return layout.end(data); }
};

// Sets the part's slots to empty ranges that begin where those of the part before end, or at 0.
struct Begin {
  static constexpr int threads = 128;
  Route part;
  const std::int32_t* before;  // [E], or null

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t e = block.index() * threads + block.thread();
    if (e < part.layout.experts) part.begin()[e] = part.end()[e] = before ? before[e] : 0;
  }
};

// Copies the tokens [first, first + part.tokens) of the whole; an expert's slots end after its last kept token. Bytes:
// 12 per token, read and written.
struct Split {
  static constexpr int threads = 256;
  Route whole, part;
  std::int64_t first;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t t = block.index() * threads + block.thread();
    if (t >= part.layout.tokens) return;
    const std::int32_t expert = whole.expert()[first + t], slot = whole.slot()[first + t];
    part.expert()[t] = expert;
    part.slot()[t] = slot;
    part.weight()[t] = whole.weight()[first + t];
    // Slots rise with the tokens, so reading `end` first saves most atomics if an expert has many tokens in a row.
    if (slot != ir::RouteLayout::dropped && part.end()[expert] <= slot) block.atomic_max(part.end() + expert, slot + 1);
  }
};

Kernel bind_split(const KernelArgs& args) {
  const Route part(args.results[0]);
  const std::int32_t* before =
      args.has(1) ? Route(args.operands[1]).layout.end(static_cast<const void*>(args.operands[1].data)) : nullptr;
  const Split split{Route(args.operands[0]), part, args.attributes.integer("first")};
  return run_steps(args.stream, Step{divide_up(part.layout.experts, Begin::threads), Begin{part, before}},
                   Step{divide_up(part.layout.tokens, Split::threads), split});
}

struct SplitCapacity {
  static constexpr int threads = 128;
  Route whole, part;
  std::int32_t first, last;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t e = block.index() * threads + block.thread();
    if (e >= whole.layout.experts) return;
    const std::int32_t low = whole.begin()[e], high = whole.end()[e];
    part.begin()[e] = clamp(first, low, high);
    part.end()[e] = clamp(last, low, high);
  }
  LANCET_DEVICE static std::int32_t clamp(std::int32_t v, std::int32_t low, std::int32_t high) {
    return v < low ? low : (v > high ? high : v);
  }
};

Kernel bind_split_capacity(const KernelArgs& args) {
  const std::int64_t parts = args.attributes.integer("parts"), p = args.attributes.integer("part"),
                     capacity = args.attributes.integer("capacity");
  const SplitCapacity kernel{Route(args.operands[0]), Route(args.results[0]), std::int32_t(capacity * p / parts),
                             std::int32_t(capacity * (p + 1) / parts)};
  return run_steps(args.stream, Step{divide_up(kernel.whole.layout.experts, SplitCapacity::threads), kernel});
}

// The slots of the experts [first, last); empty ranges for the other experts.
struct SplitPeers {
  static constexpr int threads = 128;
  Route whole, part;
  std::int64_t first, last;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t e = block.index() * threads + block.thread();
    if (e >= whole.layout.experts) return;
    const std::int32_t begin = whole.begin()[e];
    part.begin()[e] = begin;
    part.end()[e] = e >= first && e < last ? whole.end()[e] : begin;
  }
};

Kernel bind_split_peers(const KernelArgs& args) {
  const Route whole(args.operands[0]);
  const std::int64_t parts = args.attributes.integer("parts"), ranks = args.attributes.integer("ranks");
  const std::int64_t group = ranks / parts, rank = args.device_comm ? args.device_comm->rank() : 0;
  const std::int64_t theirs = (rank / group + args.attributes.integer("part")) % parts;
  const std::int64_t first = theirs * group * (whole.layout.experts / ranks);
  const SplitPeers kernel{whole, Route(args.results[0]), first, first + whole.layout.experts / parts};
  return run_steps(args.stream, Step{divide_up(whole.layout.experts, SplitPeers::threads), kernel});
}

// Copies one part into the whole; `begin` comes from the first part and `end` from the last.
struct Join {
  static constexpr int threads = 256;
  Route part, whole;
  std::int64_t first_token;
  bool first, last;

  std::int64_t items() const { return std::max(part.layout.tokens, part.layout.experts); }

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t i = block.index() * threads + block.thread();
    if (i < part.layout.tokens) {
      whole.expert()[first_token + i] = part.expert()[i];
      whole.slot()[first_token + i] = part.slot()[i];
      whole.weight()[first_token + i] = part.weight()[i];
    }
    if (i < part.layout.experts) {
      if (first) whole.begin()[i] = part.begin()[i];
      if (last) whole.end()[i] = part.end()[i];
    }
  }
};

Kernel bind_join_route(const KernelArgs& args) {
  std::vector<Join> joins;
  std::int64_t token = 0;
  for (const TensorView& part : args.operands) {
    joins.push_back({Route(part), Route(args.results[0]), token, joins.empty(), false});
    token += part.shape()[0];
  }
  joins.back().last = true;
  return [stream = args.stream, joins = std::make_shared<const std::vector<Join>>(std::move(joins))]() -> Status {
    for (const Join& join : *joins) LANCET_TRY(launch(*stream, divide_up(join.items(), Join::threads), join));
    return {};
  };
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
struct Sum {
  static constexpr int threads = 256;
  const float* parts[parts_per_launch];
  int count;
  bool accumulate;  // onto the sum of earlier launches
  float* sum;
  std::int64_t n;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t i = block.index() * threads + block.thread();
    if (i >= n) return;
    float total = accumulate ? sum[i] : parts[0][i];
#pragma unroll 4
    for (int p = accumulate ? 0 : 1; p < count; ++p) total += parts[p][i];
    sum[i] = total;
  }
};

Kernel bind_sum(const KernelArgs& args) {
  std::vector<Sum> sums;
  for (std::size_t p = 0; p < args.operands.size(); ++p) {
    if (p % parts_per_launch == 0)
      sums.push_back({{}, 0, p > 0, args.results[0].as<float>(), args.results[0].elements()});
    sums.back().parts[sums.back().count++] = args.operands[p].as<float>();
  }
  return [stream = args.stream, sums = std::make_shared<const std::vector<Sum>>(std::move(sums))]() -> Status {
    for (const Sum& sum : *sums) LANCET_TRY(launch(*stream, divide_up(sum.n, Sum::threads), sum));
    return {};
  };
}

const DeviceKernel table[] = {{"split_route", bind_split},       {"split_capacity", bind_split_capacity},
                              {"split_peers", bind_split_peers}, {"join_route", bind_join_route},
                              {"join_rows", bind_join_rows},     {"sum", bind_sum}};

}  // namespace

std::span<const DeviceKernel> route_parts_cuda() { return table; }

}  // namespace lancet::ops
