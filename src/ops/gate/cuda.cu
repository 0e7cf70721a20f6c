// Gates on a GPU: what gate/routing.h decides, in parallel.
//
// Choose finds each token's expert, a few threads per token, and counts the experts of each chunk of 64 tokens of a
// group. The number of earlier tokens with the same expert (ForTokens) is the sum over the chunks before plus a count
// within the chunk (device/counting.h). For switch_gate that number, counted within the group, is the slot after those
// of the groups and the part before (AssignSlots). batch_prioritized_gate first lists each expert's tokens in token
// order (ListTokens); then a block per group and expert finds the key of the last token that is kept, by radix
// selection of 8 bits at a time, and gives slots to the tokens with smaller keys (KeepFirst). All counts are integers
// and the softmax has one order, so the result is that of the host.
#include "decision.h"
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

// A decision, and how its tokens are cut in chunks. A chunk is within one group: the part's tokens of each group that
// it has tokens of are `chunks_per_group` chunks, of which the last may be empty.
struct Gate : routing::Decision {
  const float* logits;  // [T, E]
  std::int64_t first_group, groups_here, chunks_per_group, chunks;
  std::int32_t* in_chunks;  // [E, chunks]: tokens of the expert in the chunk; after a scan, in the chunks before

  explicit Gate(const KernelArgs& args)
      : Decision(routing::decision_of(args)),
        logits(args.operands[0].as<float>()),
        first_group(group(0)),
        groups_here(group(tokens - 1) - first_group + 1),
        chunks_per_group(divide_up(tokens < group_tokens ? tokens : group_tokens, chunk_tokens)),
        chunks(groups_here * chunks_per_group),
        in_chunks(nullptr) {}

  LANCET_HD std::int64_t clamped(std::int64_t t) const { return t < 0 ? 0 : (t < tokens ? t : tokens); }
  // The chunk's first token, and the one after its last.
  LANCET_HD std::int64_t chunk_begin(std::int64_t chunk) const {
    const std::int32_t i = group_of(chunk), in_group = std::int32_t(chunk) - i * std::int32_t(chunks_per_group);
    const std::int64_t begin = group_begin(i) + in_group * chunk_tokens, end = group_begin(i + 1);
    return begin < end ? begin : end;
  }
  LANCET_HD std::int64_t chunk_end(std::int64_t chunk) const {
    const std::int64_t end = group_begin(group_of(chunk) + 1), full = chunk_begin(chunk) + chunk_tokens;
    return full < end ? full : end;
  }
  // The place of its group among those that the part has tokens of. A division of 64 bits would need a stack.
  LANCET_HD std::int32_t group_of(std::int64_t chunk) const {
    return std::int32_t(chunk) / std::int32_t(chunks_per_group);
  }
  // The first token of the i-th group that the part has tokens of; the end of the tokens after the last group.
  LANCET_HD std::int64_t group_begin(std::int64_t i) const { return clamped((first_group + i) * group_tokens - first); }
  // After the scan: the tokens of the expert in the i-th group of the part, and in the groups before.
  LANCET_HD std::int32_t before_group(std::int64_t e, std::int64_t i) const {
    return in_chunks[e * chunks + i * chunks_per_group];
  }
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
    const std::int64_t first = gate.chunk_begin(block.index()), end = gate.chunk_end(block.index());
    for (int i = block.thread() / width; i < chunk_tokens; i += threads / width) {
      const std::int64_t t = first + i;
      const bool exists = t < end;
      const std::int32_t expert = choose(block, exists ? t : gate.tokens - 1, exists);
      if (block.thread() % width == 0) shared.expert[i] = exists ? expert : -1;
    }
    block.sync();
    for (std::int64_t e = block.thread(); e < gate.experts; e += threads)
      gate.in_chunks[e * gate.chunks + block.index()] = count_equal(shared.expert, chunk_tokens, std::int32_t(e));
  }

  template <class Block>
  LANCET_DEVICE std::int32_t choose(Block& block, std::int64_t t, bool exists) const {
    const std::int64_t experts = gate.experts;
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
      if (e == expert) gate.weight[t] = p;
    }
    if (member == 0) gate.expert[t] = std::int32_t(expert);
    return std::int32_t(expert);
  }
};

// A block per expert: scans its counts over the chunks, and writes what it keeps of each group, the range of slots that
// the tokens get, and the loads.
struct ScanExperts {
  static constexpr int threads = 256;
  Gate gate;
  std::int32_t* slots;  // [groups_here, E]: the expert's first slot of a token of the group

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t e = block.index(), experts = gate.experts;
    const std::int32_t total = scan_in_place(block, gate.in_chunks + e * gate.chunks, gate.chunks);
    block.sync();
    if (block.thread() > 0) return;
    std::int32_t begin = 0;
    for (std::int64_t g = 0; g < gate.groups; ++g) begin += gate.counts[g * experts + e] = gate.kept_before(g, e);
    std::int32_t end = begin;
    for (std::int64_t row = 0; row < 2 * gate.loads; ++row) gate.load[row * experts + e] = 0;
    for (std::int64_t i = 0; i < gate.groups_here; ++i) {
      slots[i * experts + e] = end;
      const std::int32_t after = i + 1 < gate.groups_here ? gate.before_group(e, i + 1) : total;
      std::int32_t& kept = gate.counts[(gate.first_group + i) * experts + e];
      const std::int64_t left = gate.capacity - kept, chosen = after - gate.before_group(e, i);
      const auto more = std::int32_t(chosen < left ? chosen : left);
      kept += more;
      end += more;
      *gate.chosen_load(gate.first_group + i, e) += float(chosen);
      *gate.kept_load(gate.first_group + i, e) += float(more);
    }
    gate.filled[2 * e] = begin;
    gate.filled[2 * e + 1] = end;
  }
};

// Calls f(t, expert, group of the part, number of earlier tokens with the same expert) for the block's tokens.
struct ForTokens {
  static constexpr int threads = 256;
  static constexpr int chunks = threads / chunk_tokens;
  struct Shared {
    std::int32_t expert[threads];
  };

  template <class Block, class F>
  LANCET_DEVICE static void run(Block& block, const Gate& gate, F f) {
    Shared& shared = block.template shared<Shared>();
    const int in_chunk = block.thread() % chunk_tokens;
    const std::int64_t chunk = block.index() * chunks + block.thread() / chunk_tokens;
    std::int64_t t = 0, end = 0;
    if (chunk < gate.chunks) t = gate.chunk_begin(chunk) + in_chunk, end = gate.chunk_end(chunk);
    const std::int32_t expert = t < end ? gate.expert[t] : -1;
    shared.expert[block.thread()] = expert;
    block.sync();
    if (t >= end) return;
    const std::int32_t rank = count_equal(shared.expert + block.thread() - in_chunk, in_chunk, expert);
    f(t, expert, chunk / gate.chunks_per_group, gate.in_chunks[expert * gate.chunks + chunk] + rank);
  }
};

struct AssignSlots {
  static constexpr int threads = ForTokens::threads;
  using Shared = ForTokens::Shared;
  Gate gate;
  const std::int32_t* slots;  // see ScanExperts

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    ForTokens::run(block, gate, [this](std::int64_t t, std::int32_t expert, std::int64_t i, std::int32_t before) {
      const std::int32_t in_group = before - gate.before_group(expert, i);
      const bool kept = gate.kept_before(gate.first_group + i, expert) + std::int64_t(in_group) < gate.capacity;
      gate.slot[t] = kept ? slots[i * gate.experts + expert] + in_group : dropped;
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
    ForTokens::run(block, gate, [this](std::int64_t t, std::int32_t expert, std::int64_t, std::int32_t before) {
      list[first[expert] + before] = std::int32_t(t);
    });
  }
};

// A block per group and expert.
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
    const std::int64_t e = block.index() % gate.experts, g = block.index() / gate.experts;
    const std::int32_t* tokens = list + first[e] + gate.before_group(e, g);
    const std::int32_t n = chosen(e, g), kept = kept_of(n);
    std::int32_t begin = 0;
    for (std::int64_t i = 0; i < g; ++i) begin += kept_of(chosen(e, i));
    std::uint32_t threshold = ~0u;
    std::int32_t ties = n;  // number of tokens with the threshold's key that are kept, the lowest ones
    if (kept < n) ties = find_last(block, tokens, n, kept, threshold);
    assign(block, tokens, n, threshold, ties, begin);
    if (block.thread() > 0) return;
    gate.counts[g * gate.experts + e] = kept;
    if (g + 1 == gate.groups || gate.chosen_load(g, e) != gate.chosen_load(g + 1, e)) write_load(e, g);
    if (g + 1 < gate.groups) return;
    gate.filled[2 * e] = 0;
    gate.filled[2 * e + 1] = begin + kept;
  }

  // The load whose last group is g.
  LANCET_DEVICE void write_load(std::int64_t e, std::int64_t g) const {
    std::int32_t all = 0, kept = 0;
    for (std::int64_t i = g; i >= 0 && gate.chosen_load(i, e) == gate.chosen_load(g, e); --i) {
      all += chosen(e, i);
      kept += kept_of(chosen(e, i));
    }
    *gate.chosen_load(g, e) = float(all);
    *gate.kept_load(g, e) = float(kept);
  }

  // The tokens of group g that chose expert e.
  LANCET_DEVICE std::int32_t chosen(std::int64_t e, std::int64_t g) const {
    const std::int32_t after = g + 1 < gate.groups ? gate.before_group(e, g + 1) : last[e] - first[e];
    return after - gate.before_group(e, g);
  }
  LANCET_DEVICE std::int32_t kept_of(std::int32_t n) const {
    return n < gate.capacity ? n : std::int32_t(gate.capacity);
  }
  LANCET_DEVICE std::uint32_t key(std::int32_t t) const { return routing::service_key(gate.weight[t]); }

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
                            std::int32_t ties, std::int32_t begin) const {
    std::int32_t slots = begin, equal = 0;  // slots given out and ties found among the tokens before
    for (std::int32_t start = 0; start < n; start += threads) {
      const std::int32_t i = start + block.thread();
      const std::int32_t t = i < n ? tokens[i] : 0;
      const std::uint32_t k = key(t);
      const bool tie = i < n && k == threshold;
      std::int32_t all_ties, all_kept;
      const std::int32_t tie_rank = equal + block.exclusive_scan(std::int32_t(tie), all_ties);
      const bool keep = i < n && (k < threshold || (tie && tie_rank < ties));
      const std::int32_t slot = slots + block.exclusive_scan(std::int32_t(keep), all_kept);
      if (i < n) gate.slot[t] = keep ? slot : dropped;
      equal += all_ties;
      slots += all_kept;
    }
  }
};

struct Workspace {
  std::int32_t *in_chunks, *slots, *first, *last, *list;
  std::size_t bytes;

  Workspace(const KernelArgs& args, const Gate& gate, bool prioritized) {
    Scratch scratch(args.workspace);
    in_chunks = scratch.take<std::int32_t>(gate.experts * gate.chunks);
    slots = scratch.take<std::int32_t>(prioritized ? 0 : gate.experts * gate.groups_here);
    first = scratch.take<std::int32_t>(prioritized ? gate.experts : 0);
    last = scratch.take<std::int32_t>(prioritized ? gate.experts : 0);
    list = scratch.take<std::int32_t>(prioritized ? gate.tokens : 0);
    bytes = scratch.bytes();
  }
};
template <bool prioritized>
std::size_t workspace(const KernelArgs& args) {
  return Workspace(args, Gate(args), prioritized).bytes;
}

template <bool prioritized>
Kernel bind_gate(const KernelArgs& args) {
  Gate gate(args);
  LANCET_CHECK(gate.tokens < std::int64_t{1} << 24, "a gate counts up to 2^24 tokens");
  const Workspace memory(args, gate, prioritized);
  gate.in_chunks = memory.in_chunks;
  const Step choose{gate.chunks, Choose{gate, group_width(gate.experts)}};
  const std::int64_t blocks = divide_up(gate.chunks, ForTokens::chunks);
  if constexpr (prioritized)
    return run_steps(args.stream, choose, Step{gate.experts, ScanChunks{memory.in_chunks, gate.chunks, memory.first}},
                     Step{1, ScanBins{memory.first, memory.last, gate.experts}},
                     Step{blocks, ListTokens{gate, memory.first, memory.list}},
                     Step{gate.experts * gate.groups, KeepFirst{gate, memory.first, memory.last, memory.list}});
  else
    return run_steps(args.stream, choose, Step{gate.experts, ScanExperts{gate, memory.slots}},
                     Step{blocks, AssignSlots{gate, memory.slots}});
}

// The gradient of the softmax (routing::softmax_backward). Bytes: the probabilities and dlogits once.
struct GateDx {
  static constexpr int threads = 256;
  std::int64_t tokens, experts;
  const std::int32_t* expert;                     // [T]
  const float *dweight, *probabilities, *shared;  // [T], [T, E], [L, E] or null
  std::int64_t of_load;                           // tokens that share a row of `shared`
  float* dlogits;
  int width;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t at = block.index() * (threads / width) + block.thread() / width;
    const bool exists = at < tokens;
    const std::int64_t t = exists ? at : tokens - 1;
    const std::int32_t chosen = expert[t];
    const float own = dweight[t];
    const float* p = probabilities + t * experts;
    const float* of_all = shared ? shared + std::int32_t(t) / std::int32_t(of_load) * experts : nullptr;
    const auto dp = [&](std::int64_t e) { return (of_all ? of_all[e] : 0.f) + (e == chosen ? own : 0.f); };
    float dot = 0;
    for (std::int64_t e = block.thread() % width; e < experts; e += width) dot += p[e] * dp(e);
    dot = block.warp_sum(dot, width);
    if (!exists) return;
    for (std::int64_t e = block.thread() % width; e < experts; e += width)
      dlogits[t * experts + e] = routing::softmax_dlogit(p[e], dp(e), dot);
  }
};

Kernel bind_dx(const KernelArgs& args) {
  const std::int64_t tokens = args.operands[2].shape().rows(), experts = args.operands[2].shape().back();
  const int width = group_width(experts);
  const GateDx kernel{tokens,
                      experts,
                      args.operands[1].as<std::int32_t>(),
                      args.operands[0].as<float>(),
                      args.operands[2].as<float>(),
                      args.has(3) ? args.operands[3].as<float>() : nullptr,
                      args.has(3) ? tokens / (args.operands[3].elements() / experts) : tokens,
                      args.results[0].as<float>(),
                      width};
  return run_steps(args.stream, Step{divide_up(tokens, GateDx::threads / width), kernel});
}

const DeviceKernel table[] = {
    {"switch_gate", bind_gate<false>, workspace<false>},
    {"batch_prioritized_gate", bind_gate<true>, workspace<true>},
    {"gate_dx", bind_dx},
};

}  // namespace

std::span<const DeviceKernel> gate_cuda() { return table; }

}  // namespace lancet::ops
