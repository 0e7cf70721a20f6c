// Gates on a GPU: the route of gate/routing.h, made in parallel.
//
// Choose finds each token's expert, a group of threads per token, and counts the experts of each chunk of 64 tokens.
// The number of earlier tokens with the same expert (ForTokens) is the sum over the chunks before plus a count within
// the chunk (device/counting.h). For switch_gate that number is the slot, offset by the part before (AssignSlots).
// batch_prioritized_gate first lists each expert's tokens in token order (ListTokens); then a block per expert finds
// the key of the last token that is kept, by radix selection of 8 bits at a time, and gives slots to the tokens with
// smaller keys (KeepFirst). All counts are integers and the softmax has one order, so the result is that of the host.
#include "lancet/ir/route_layout.h"
#include "math.h"
#include "ops/device/counting.h"

namespace lancet::ops {
namespace {

using namespace device;

constexpr int chunk_tokens = 64;  // few enough that every multiprocessor has chunks

// Threads per token: the least power of 2 from 8 to 32 that is no less than the number of experts, else 32.
int group_width(std::int64_t experts) {
  int width = 8;
  while (width < warp_size && width < experts) width *= 2;
  return width;
}

struct Gate {
  ir::RouteLayout layout;
  void* route;
  const float* logits;         // [T, E]
  float* probabilities;        // [T, E]
  float* load;                 // [2, E]
  const std::int32_t* before;  // [E], or null
  std::int64_t capacity;
  std::int64_t chunks;
  std::int32_t* counts;  // [E, chunks]: tokens of the expert in the chunk; after a scan, in the chunks before
};

// A block per chunk of tokens: writes their probabilities, experts and weights, and counts the tokens of each expert.
// Bytes: the logits and the probabilities once.
struct Choose {
  static constexpr int threads = 256;
  struct Shared {
    std::int32_t expert[chunk_tokens];
  };
  Gate gate;
  int width;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    Shared& shared = block.template shared<Shared>();
    const ir::RouteLayout& layout = gate.layout;
    const std::int64_t first = block.index() * chunk_tokens;
    for (int i = block.thread() / width; i < chunk_tokens; i += threads / width) {
      const std::int64_t t = first + i;
      const bool exists = t < layout.tokens;
      const std::int32_t expert = choose(block, exists ? t : layout.tokens - 1, exists);
      if (block.thread() % width == 0) shared.expert[i] = exists ? expert : -1;
    }
    block.sync();
    for (std::int64_t e = block.thread(); e < layout.experts; e += threads)
      gate.counts[e * gate.chunks + block.index()] = count_equal(shared.expert, chunk_tokens, std::int32_t(e));
  }

  template <class Block>
  LANCET_DEVICE std::int32_t choose(Block& block, std::int64_t t, bool exists) const {
    const std::int64_t experts = gate.layout.experts;
    const float* logits = gate.logits + t * experts;
    const int member = block.thread() % width;  // of the token's group of threads
    std::uint64_t key = 0;
    for (std::int64_t e = member; e < experts; e += width)
      key = Larger{}(routing::choice_key(logits[e], std::uint32_t(e)), key);
    const std::uint32_t expert = routing::expert_of_key(block.warp_max(key, width));
    const float largest = logits[expert];
    float sum = 0;
    for (std::int64_t e = member; e < experts; e += width) sum += exp_f32(logits[e] - largest);
    sum = block.warp_sum(sum, width);
    if (!exists) return 0;
    for (std::int64_t e = member; e < experts; e += width) {
      const float p = exp_f32(logits[e] - largest) / sum;
      gate.probabilities[t * experts + e] = p;
      if (e == expert) gate.layout.weight(gate.route)[t] = p;
    }
    if (member == 0) gate.layout.expert(gate.route)[t] = std::int32_t(expert);
    return std::int32_t(expert);
  }
};

// A block per expert: scans its counts over the chunks, and writes the range of slots that the tokens get and the load.
struct ScanExperts {
  static constexpr int threads = 256;
  Gate gate;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t e = block.index();
    const std::int32_t total = scan_in_place(block, gate.counts + e * gate.chunks, gate.chunks);
    if (block.thread() > 0) return;
    const std::int32_t begin = gate.before ? gate.before[e] : 0;
    std::int64_t end = std::int64_t(begin) + total;
    if (end > gate.capacity) end = begin > gate.capacity ? begin : gate.capacity;
    gate.layout.begin(gate.route)[e] = begin;
    gate.layout.end(gate.route)[e] = std::int32_t(end);
    gate.load[e] = float(total);
    gate.load[gate.layout.experts + e] = float(end - begin);
  }
};

// Calls f(t, expert, number of earlier tokens with the same expert) for the block's tokens.
struct ForTokens {
  static constexpr int threads = 256;
  struct Shared {
    std::int32_t expert[threads];
  };

  template <class Block, class F>
  LANCET_DEVICE static void run(Block& block, const Gate& gate, F f) {
    Shared& shared = block.template shared<Shared>();
    const std::int64_t t = block.index() * threads + block.thread();
    const bool exists = t < gate.layout.tokens;
    const std::int32_t expert = exists ? gate.layout.expert(gate.route)[t] : -1;
    shared.expert[block.thread()] = expert;
    block.sync();
    if (!exists) return;
    const int in_chunk = block.thread() % chunk_tokens;
    const std::int32_t rank = count_equal(shared.expert + block.thread() - in_chunk, in_chunk, expert);
    f(t, expert, gate.counts[expert * gate.chunks + t / chunk_tokens] + rank);
  }
};

struct AssignSlots {
  static constexpr int threads = ForTokens::threads;
  using Shared = ForTokens::Shared;
  Gate gate;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    ForTokens::run(block, gate, [this](std::int64_t t, std::int32_t expert, std::int32_t before) {
      const std::int64_t slot = std::int64_t(gate.layout.begin(gate.route)[expert]) + before;
      gate.layout.slot(gate.route)[t] = slot < gate.capacity ? std::int32_t(slot) : ir::RouteLayout::dropped;
    });
  }
};

struct ListTokens {
  static constexpr int threads = ForTokens::threads;
  using Shared = ForTokens::Shared;
  Gate gate;
  const std::int32_t* first;  // [E]
  std::int32_t* list;         // [T]

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    ForTokens::run(block, gate, [this](std::int64_t t, std::int32_t expert, std::int32_t before) {
      list[first[expert] + before] = std::int32_t(t);
    });
  }
};

struct KeepFirst {
  static constexpr int threads = 256;
  struct Shared {
    std::int32_t counts[256], digit, left;
  };
  Gate gate;
  const std::int32_t *first, *last;  // [E]: the expert's range of the list
  const std::int32_t* list;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t e = block.index();
    const std::int32_t* tokens = list + first[e];
    const std::int32_t n = last[e] - first[e];
    const std::int32_t kept = n < gate.capacity ? n : std::int32_t(gate.capacity);
    std::uint32_t threshold = ~0u;
    std::int32_t ties = n;  // number of tokens with the threshold's key that are kept, the lowest ones
    if (kept < n) ties = find_last(block, tokens, n, kept, threshold);
    assign(block, tokens, n, threshold, ties);
    if (block.thread() > 0) return;
    gate.layout.begin(gate.route)[e] = 0;
    gate.layout.end(gate.route)[e] = kept;
    gate.load[e] = float(n);
    gate.load[gate.layout.experts + e] = float(kept);
  }

  LANCET_DEVICE std::uint32_t key(std::int32_t t) const {
    return routing::service_key(gate.layout.weight(gate.route)[t]);
  }

  // Sets threshold to the key of the last token that is kept; returns how many tokens with this key are kept.
  template <class Block>
  LANCET_DEVICE std::int32_t find_last(Block& block, const std::int32_t* tokens, std::int32_t n, std::int32_t kept,
                                       std::uint32_t& threshold) const {
    Shared& shared = block.template shared<Shared>();
    std::uint32_t known = 0, digits = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
      shared.counts[block.thread()] = 0;
      block.sync();
      for (std::int32_t i = block.thread(); i < n; i += threads)
        if (const std::uint32_t k = key(tokens[i]); (k & known) == digits)
          block.atomic_add(&shared.counts[(k >> shift) & 255], 1);
      block.sync();
      std::int32_t total;
      const std::int32_t own = shared.counts[block.thread()], before = block.exclusive_scan(own, total);
      if (before < kept && kept <= before + own) {  // true on exactly one thread
        shared.digit = block.thread();
        shared.left = kept - before;
      }
      block.sync();
      digits |= std::uint32_t(shared.digit) << shift;
      kept = shared.left;
      known |= 255u << shift;
    }
    threshold = digits;
    return kept;
  }

  template <class Block>
  LANCET_DEVICE void assign(Block& block, const std::int32_t* tokens, std::int32_t n, std::uint32_t threshold,
                            std::int32_t ties) const {
    std::int32_t slots = 0, equal = 0;  // slots given out and ties found among the tokens before
    for (std::int32_t start = 0; start < n; start += threads) {
      const std::int32_t i = start + block.thread();
      const std::int32_t t = i < n ? tokens[i] : 0;
      const std::uint32_t k = key(t);
      const bool tie = i < n && k == threshold;
      std::int32_t all_ties, all_kept;
      const std::int32_t tie_rank = equal + block.exclusive_scan(std::int32_t(tie), all_ties);
      const bool keep = i < n && (k < threshold || (tie && tie_rank < ties));
      const std::int32_t slot = slots + block.exclusive_scan(std::int32_t(keep), all_kept);
      if (i < n) gate.layout.slot(gate.route)[t] = keep ? slot : ir::RouteLayout::dropped;
      equal += all_ties;
      slots += all_kept;
    }
  }
};

struct Workspace {
  std::int32_t *counts, *first, *last, *list;
  std::size_t bytes;

  Workspace(const KernelArgs& args, bool prioritized) {
    const std::int64_t tokens = args.operands[0].shape().rows(), experts = args.operands[0].shape()[2];
    Scratch scratch(args.workspace);
    counts = scratch.take<std::int32_t>(experts * divide_up(tokens, chunk_tokens));
    first = scratch.take<std::int32_t>(prioritized ? experts : 0);
    last = scratch.take<std::int32_t>(prioritized ? experts : 0);
    list = scratch.take<std::int32_t>(prioritized ? tokens : 0);
    bytes = scratch.bytes();
  }
};
template <bool prioritized>
std::size_t workspace(const KernelArgs& args) {
  return Workspace(args, prioritized).bytes;
}

template <bool prioritized>
Kernel bind_gate(const KernelArgs& args) {
  const Shape& shape = args.operands[0].shape();
  const std::int64_t tokens = shape.rows(), experts = shape[2];
  LANCET_CHECK(tokens < std::int64_t{1} << 24, "a gate counts up to 2^24 tokens");
  const Workspace memory(args, prioritized);
  Gate gate{{tokens, experts},
            args.results[0].data,
            args.operands[0].as<float>(),
            args.results[1].as<float>(),
            args.results[2].as<float>(),
            nullptr,
            args.attributes.integer("capacity"),
            divide_up(tokens, chunk_tokens),
            memory.counts};
  if (args.has(1)) {
    const void* before = args.operands[1].data;
    gate.before = ir::RouteLayout{args.operands[1].shape()[0], experts}.end(before);
  }
  const Step choose{gate.chunks, Choose{gate, group_width(experts)}};
  const std::int64_t blocks = divide_up(tokens, ForTokens::threads);
  if constexpr (prioritized)
    return run_steps(args.stream, choose, Step{experts, ScanChunks{memory.counts, gate.chunks, memory.first}},
                     Step{1, ScanBins{memory.first, memory.last, experts}},
                     Step{blocks, ListTokens{gate, memory.first, memory.list}},
                     Step{experts, KeepFirst{gate, memory.first, memory.last, memory.list}});
  else
    return run_steps(args.stream, choose, Step{experts, ScanExperts{gate}}, Step{blocks, AssignSlots{gate}});
}

// The gradient of the softmax (routing::softmax_backward). Bytes: the probabilities and dlogits once.
struct GateDx {
  static constexpr int threads = 256;
  ir::RouteLayout layout;
  const void* route;
  const float *dweight, *probabilities, *shared;  // [T], [T, E], [E] or null
  float* dlogits;
  int width;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t at = block.index() * (threads / width) + block.thread() / width, experts = layout.experts;
    const bool exists = at < layout.tokens;
    const std::int64_t t = exists ? at : layout.tokens - 1;
    const std::int32_t chosen = layout.expert(route)[t];
    const float own = dweight[t];
    const float* p = probabilities + t * experts;
    const auto dp = [&](std::int64_t e) { return (shared ? shared[e] : 0.f) + (e == chosen ? own : 0.f); };
    float dot = 0;
    for (std::int64_t e = block.thread() % width; e < experts; e += width) dot += p[e] * dp(e);
    dot = block.warp_sum(dot, width);
    if (!exists) return;
    for (std::int64_t e = block.thread() % width; e < experts; e += width)
      dlogits[t * experts + e] = routing::softmax_dlogit(p[e], dp(e), dot);
  }
};

Kernel bind_dx(const KernelArgs& args) {
  const Shape& shape = args.operands[2].shape();
  const ir::RouteLayout layout{shape.rows(), shape.back()};
  const int width = group_width(layout.experts);
  const GateDx kernel{layout,
                      args.operands[1].data,
                      args.operands[0].as<float>(),
                      args.operands[2].as<float>(),
                      args.has(3) ? args.operands[3].as<float>() : nullptr,
                      args.results[0].as<float>(),
                      width};
  return run_steps(args.stream, Step{divide_up(layout.tokens, GateDx::threads / width), kernel});
}

const DeviceKernel table[] = {
    {"switch_gate", bind_gate<false>, workspace<false>},
    {"batch_prioritized_gate", bind_gate<true>, workspace<true>},
    {"gate_dx", bind_dx},
};

}  // namespace

std::span<const DeviceKernel> gate_cuda() { return table; }

}  // namespace lancet::ops
