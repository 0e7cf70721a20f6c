// Slots on a GPU: what slots/assign.h decides, in parallel.
//
// Count counts the experts of each chunk of 64 entries of a group (an entry is a choice of a token). The number of
// earlier entries with the same expert (ForEntries) is the sum over the chunks before plus a count within the chunk
// (device/counting.h). Where tokens are served one after the other, that number, counted within the group, is the slot
// after those of the groups and the part before (AssignSlots). Where first choices are served first, each expert's
// entries, skipped ones included, are listed in token order (ListEntries); then a block per group and expert finds the
// key of the last of its first `capacity` entries, by radix selection of 8 bits at a time, and counts those of them
// that are not skipped (FindFirst), which get the slots after those of the groups before (GiveSlots). Where experts
// choose, every E-th entry is of the expert, so that the two last kernels suffice. All counts are integers, so the
// result is that of the host.
#include "decision.h"
#include "ops/device/counting.h"

namespace lancet::ops {
namespace {

using namespace device;

constexpr int chunk_entries = 64;  // few enough that every multiprocessor has chunks

// A decision, and how its entries are cut in chunks. A chunk is within one group: the part's entries of each group that
// it has entries of are `chunks_per_group` chunks, of which the last may be empty.
struct Gate : routing::Decision {
  std::int64_t first_group, groups_here, chunks_per_group, chunks;
  std::int32_t* in_chunks;  // [E, chunks]: entries of the expert in the chunk; after a scan, in the chunks before

  Gate(const KernelArgs& args, const TensorView* before_)
      : Decision(routing::decision_of(args, before_)),
        first_group(group(0)),
        groups_here(group(entries - 1) - first_group + 1),
        chunks_per_group(divide_up(entries < group_entries ? entries : group_entries, chunk_entries)),
        chunks(groups_here * chunks_per_group),
        in_chunks(nullptr) {}

  LANCET_HD std::int32_t counted(std::int64_t entry) const { return counted_expert(expert[entry]); }
  LANCET_HD std::int64_t clamped(std::int64_t i) const { return i < 0 ? 0 : (i < entries ? i : entries); }
  // The chunk's first entry, and the one after its last.
  LANCET_HD std::int64_t chunk_begin(std::int64_t chunk) const {
    const std::int32_t i = group_of(chunk), in_group = std::int32_t(chunk) - i * std::int32_t(chunks_per_group);
    const std::int64_t begin = group_begin(i) + in_group * chunk_entries, end = group_begin(i + 1);
    return begin < end ? begin : end;
  }
  LANCET_HD std::int64_t chunk_end(std::int64_t chunk) const {
    const std::int64_t end = group_begin(group_of(chunk) + 1), full = chunk_begin(chunk) + chunk_entries;
    return full < end ? full : end;
  }
  // The place of its group among those that the part has entries of. A division of 64 bits would need a stack.
  LANCET_HD std::int32_t group_of(std::int64_t chunk) const {
    return std::int32_t(chunk) / std::int32_t(chunks_per_group);
  }
  // The first entry of the i-th group that the part has entries of; the end of the entries after the last group.
  LANCET_HD std::int64_t group_begin(std::int64_t i) const {
    return clamped((first_group + i) * group_entries - first);
  }
  // After the scan: the entries of the expert in the i-th group of the part, and in the groups before.
  LANCET_HD std::int32_t before_group(std::int64_t e, std::int64_t i) const {
    return in_chunks[e * chunks + i * chunks_per_group];
  }
};

// A block per chunk: counts the entries that count towards each expert's capacity.
struct Count {
  static constexpr int threads = 128;
  struct Shared {
    std::int32_t expert[chunk_entries];
  };
  Gate gate;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    Shared& shared = block.template shared<Shared>();
    const std::int64_t first = gate.chunk_begin(block.index()), end = gate.chunk_end(block.index());
    if (block.thread() < chunk_entries)
      shared.expert[block.thread()] = first + block.thread() < end ? gate.counted(first + block.thread()) : -1;
    block.sync();
    for (std::int64_t e = block.thread(); e < gate.experts; e += threads)
      gate.in_chunks[e * gate.chunks + block.index()] = count_equal(shared.expert, chunk_entries, std::int32_t(e));
  }
};

// A block per expert: scans its counts over the chunks, and writes what it keeps of each group, the range of slots that
// the entries get, and the loads.
struct ScanExperts {
  static constexpr int threads = 256;
  Gate gate;
  std::int32_t* slots;  // [groups_here, E]: the expert's first slot of an entry of the group

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

// Calls f(entry, expert, group of the part, number of earlier entries with the same expert) for those of the block's
// entries that count towards an expert's capacity, and drops the others.
struct ForEntries {
  static constexpr int threads = 256;
  static constexpr int chunks = threads / chunk_entries;
  struct Shared {
    std::int32_t expert[threads];
  };

  template <class Block, class F>
  LANCET_DEVICE static void run(Block& block, const Gate& gate, F f) {
    Shared& shared = block.template shared<Shared>();
    const int in_chunk = block.thread() % chunk_entries;
    const std::int64_t chunk = block.index() * chunks + block.thread() / chunk_entries;
    std::int64_t entry = 0, end = 0;
    if (chunk < gate.chunks) entry = gate.chunk_begin(chunk) + in_chunk, end = gate.chunk_end(chunk);
    const std::int32_t expert = entry < end ? gate.counted(entry) : -1;
    shared.expert[block.thread()] = expert;
    block.sync();
    if (entry >= end) return;
    if (expert == gate.experts) {
      gate.slot[entry] = dropped;
      return;
    }
    const std::int32_t rank = count_equal(shared.expert + block.thread() - in_chunk, in_chunk, expert);
    f(entry, expert, chunk / gate.chunks_per_group, gate.in_chunks[expert * gate.chunks + chunk] + rank);
  }
};

struct AssignSlots {
  static constexpr int threads = ForEntries::threads;
  using Shared = ForEntries::Shared;
  Gate gate;
  const std::int32_t* slots;  // see ScanExperts

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    ForEntries::run(block, gate, [this](std::int64_t entry, std::int32_t expert, std::int64_t i, std::int32_t before) {
      const std::int32_t in_group = before - gate.before_group(expert, i);
      const bool kept = gate.kept_before(gate.first_group + i, expert) + std::int64_t(in_group) < gate.capacity;
      gate.slot[entry] = kept ? slots[i * gate.experts + expert] + in_group : dropped;
    });
  }
};

struct ListEntries {
  static constexpr int threads = ForEntries::threads;
  using Shared = ForEntries::Shared;
  Gate gate;
  const std::int32_t* first;  // [E]
  std::int32_t* list;         // [T*K]

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    ForEntries::run(block, gate, [this](std::int64_t entry, std::int32_t expert, std::int64_t, std::int32_t before) {
      list[first[expert] + before] = std::int32_t(entry);
    });
  }
};

// What is found about the listed entries of a group and an expert.
struct First {
  std::uint64_t threshold;  // the key of the last of the first `capacity` entries
  std::int32_t ties;        // the number of entries with this key that are among them, the lowest ones
  std::int32_t chosen;      // the entries that are not skipped
};

// The entries of an expert and a group, in token order: those of a list, or every `stride`-th from `first` on.
struct Entries {
  const std::int32_t* list;  // or null
  std::int32_t first, stride, count;

  LANCET_DEVICE std::int32_t operator[](std::int32_t i) const { return list ? list[i] : first + i * stride; }
};

// The entries that ListEntries has listed or, where experts choose, all. An entry's key is the number of its choice
// and, if there are weights, the service_key of its token's first weight. Where experts choose, entries count as the
// first choices of tokens with one choice.
struct Listed {
  Gate gate;
  const std::int32_t *begins, *ends;  // [E]: the expert's range of the list
  const std::int32_t* list;           // null where experts choose
  const float* weight;                // [T, K], or null: no priorities
  std::int32_t choices;               // of a token that has a key
  First* first;                       // [G, E]

  // Those of expert e in group g.
  LANCET_DEVICE Entries entries(std::int32_t e, std::int32_t g) const {
    if (!list) {
      const std::int32_t experts = std::int32_t(gate.experts), of_group = std::int32_t(gate.group_entries);
      return {nullptr, g * of_group + e, experts, of_group / experts};
    }
    const std::int32_t before = gate.before_group(e, g);
    const std::int32_t after = g + 1 < gate.groups ? gate.before_group(e, g + 1) : ends[e] - begins[e];
    return {list + begins[e] + before, 0, 0, after - before};
  }
  LANCET_DEVICE bool skipped(std::int32_t entry) const { return list && is_skipped(gate.expert[entry]); }
  LANCET_DEVICE std::uint64_t key(std::int32_t entry) const {
    const std::int32_t k = entry % choices;
    return std::uint64_t(k) << 32 | (weight ? routing::service_key(weight[entry - k]) : 0u);
  }
  // The digits of keys that may differ, of 8 bits, from the lowest.
  LANCET_DEVICE int first_digit() const { return weight ? 0 : 4; }
  LANCET_DEVICE int last_digit() const {
    int digits = 4;
    for (std::int64_t most = 1; most < choices; most *= 256) ++digits;
    return digits;
  }

  // Calls f(entry, number of kept entries before it, or -1 if it is not kept) for the entries of the expert and the
  // group; returns how many are kept. An entry is kept if it is among the first and not skipped.
  template <class Block, class F>
  LANCET_DEVICE std::int32_t for_kept(Block& block, const Entries& entries, const First& limit, F f) const {
    const std::int32_t n = entries.count;
    std::int32_t kept = 0, equal = 0;  // kept entries and ties found among the entries before
    for (std::int32_t start = 0; start < n; start += Block::threads()) {
      const std::int32_t i = start + block.thread();
      const std::int32_t entry = i < n ? entries[i] : 0;
      const std::uint64_t k = key(entry);
      const bool tie = i < n && k == limit.threshold;
      std::int32_t all_ties, all_kept;
      const std::int32_t tie_rank = equal + block.exclusive_scan(std::int32_t(tie), all_ties);
      const bool is_first = i < n && (k < limit.threshold || (tie && tie_rank < limit.ties));
      const bool keep = is_first && !skipped(entry);
      const std::int32_t before = kept + block.exclusive_scan(std::int32_t(keep), all_kept);
      if (i < n) f(entry, keep ? before : -1);
      equal += all_ties;
      kept += all_kept;
    }
    return kept;
  }
};

// A block per group and expert: sets `first`, and the number of entries that the expert keeps.
struct FindFirst {
  static constexpr int threads = 256;
  struct Shared {
    std::int32_t counts[256], digit, left;
  };
  Listed listed;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const Gate& gate = listed.gate;
    const std::int32_t experts = std::int32_t(gate.experts), index = std::int32_t(block.index());
    const std::int32_t e = index % experts, g = index / experts;  // 64 bits would need a stack
    const Entries entries = listed.entries(e, g);
    First found{~std::uint64_t{0}, entries.count, 0};
    if (gate.capacity < entries.count) find_last(block, entries, std::int32_t(gate.capacity), found);
    std::int32_t own = 0;
    const std::int32_t kept = listed.for_kept(block, entries, found,
                                              [&](std::int32_t entry, std::int32_t) { own += !listed.skipped(entry); });
    found.chosen = block.sum(own);
    if (block.thread() > 0) return;
    listed.first[block.index()] = found;
    gate.counts[block.index()] = kept;
  }

  // Finds the key of entry number `capacity` in the order of keys, and how many entries with this key are not after it.
  template <class Block>
  LANCET_DEVICE void find_last(Block& block, const Entries& entries, std::int32_t capacity, First& found) const {
    Shared& shared = block.template shared<Shared>();
    std::uint64_t known = 0, digits = 0;
    for (int shift = 8 * listed.last_digit() - 8; shift >= 8 * listed.first_digit(); shift -= 8) {
      shared.counts[block.thread()] = 0;
      block.sync();
      for (std::int32_t i = block.thread(); i < entries.count; i += threads)
        if (const std::uint64_t k = listed.key(entries[i]); (k & known) == digits)
          block.atomic_add(&shared.counts[(k >> shift) & 255], 1);
      block.sync();
      std::int32_t total;
      const std::int32_t own = shared.counts[block.thread()], before = block.exclusive_scan(own, total);
      if (before < capacity && capacity <= before + own) {  // true on exactly one thread
        shared.digit = block.thread();
        shared.left = capacity - before;
      }
      block.sync();
      digits |= std::uint64_t(shared.digit) << shift;
      capacity = shared.left;
      known |= std::uint64_t{255} << shift;
    }
    found.threshold = digits;
    found.ties = capacity;
  }
};

// A block per group and expert.
struct GiveSlots {
  static constexpr int threads = 256;
  Listed listed;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const Gate& gate = listed.gate;
    const std::int32_t experts = std::int32_t(gate.experts), index = std::int32_t(block.index());
    const std::int32_t e = index % experts, g = index / experts;  // 64 bits would need a stack
    std::int32_t begin = 0;
    for (std::int64_t i = 0; i < g; ++i) begin += gate.counts[i * gate.experts + e];
    const std::int32_t kept = listed.for_kept(
        block, listed.entries(e, g), listed.first[block.index()],
        [&](std::int32_t entry, std::int32_t before) { gate.slot[entry] = before < 0 ? dropped : begin + before; });
    if (block.thread() > 0) return;
    if (g + 1 == gate.groups || gate.chosen_load(g, e) != gate.chosen_load(g + 1, e)) write_load(e, g);
    if (g + 1 < gate.groups) return;
    gate.filled[2 * e] = 0;
    gate.filled[2 * e + 1] = begin + kept;
  }

  // The load whose last group is g.
  LANCET_DEVICE void write_load(std::int64_t e, std::int64_t g) const {
    const Gate& gate = listed.gate;
    std::int32_t all = 0, kept = 0;
    for (std::int64_t i = g; i >= 0 && gate.chosen_load(i, e) == gate.chosen_load(g, e); --i) {
      const std::int32_t keeps = gate.counts[i * gate.experts + e];
      kept += keeps;
      all += listed.list ? listed.first[i * gate.experts + e].chosen : keeps;
    }
    *gate.chosen_load(g, e) = float(all);
    *gate.kept_load(g, e) = float(kept);
  }
};

struct Workspace {
  std::int32_t *in_chunks, *slots, *begins, *ends, *list;
  First* first;
  std::size_t bytes;

  Workspace(const KernelArgs& args, const Gate& gate, routing::Service service) {
    const bool listed = service == routing::Service::by_choice;
    Scratch scratch(args.workspace);
    in_chunks = scratch.take<std::int32_t>(gate.experts * gate.chunks);
    slots = scratch.take<std::int32_t>(listed ? 0 : gate.experts * gate.groups_here);
    begins = scratch.take<std::int32_t>(listed ? gate.experts : 0);
    ends = scratch.take<std::int32_t>(listed ? gate.experts : 0);
    list = scratch.take<std::int32_t>(listed ? gate.entries : 0);
    first = scratch.take<First>(listed ? gate.groups * gate.experts : 0);
    bytes = scratch.bytes();
  }
};

std::size_t workspace_slots(const KernelArgs& args) {
  return Workspace(args, Gate(args, nullptr), routing::Service::by_token).bytes;
}
std::size_t workspace_by_choice(const KernelArgs& args) {
  return Workspace(args, Gate(args, nullptr), routing::Service::by_choice).bytes;
}

Kernel bind_slots(const KernelArgs& args) {
  Gate gate(args, args.has(1) ? &args.operands[1] : nullptr);
  const Workspace memory(args, gate, routing::Service::by_token);
  gate.in_chunks = memory.in_chunks;
  return run_steps(args.stream, Step{gate.chunks, Count{gate}}, Step{gate.experts, ScanExperts{gate, memory.slots}},
                   Step{divide_up(gate.chunks, ForEntries::chunks), AssignSlots{gate, memory.slots}});
}

// weight: the priorities of tokens, or null.
Kernel bind_listed(const KernelArgs& args, const float* weight) {
  Gate gate(args, nullptr);
  const Workspace memory(args, gate, routing::Service::by_choice);
  gate.in_chunks = memory.in_chunks;
  const Listed listed{gate, memory.begins, memory.ends, memory.list, weight, std::int32_t(gate.choices), memory.first};
  return run_steps(args.stream, Step{gate.chunks, Count{gate}},
                   Step{gate.experts, ScanChunks{memory.in_chunks, gate.chunks, memory.begins}},
                   Step{1, ScanBins{memory.begins, memory.ends, gate.experts}},
                   Step{divide_up(gate.chunks, ForEntries::chunks), ListEntries{gate, memory.begins, memory.list}},
                   Step{gate.experts * gate.groups, FindFirst{listed}},
                   Step{gate.experts * gate.groups, GiveSlots{listed}});
}
Kernel bind_by_choice(const KernelArgs& args) { return bind_listed(args, nullptr); }
Kernel bind_by_priority(const KernelArgs& args) { return bind_listed(args, args.operands[1].as<float>()); }

std::size_t workspace_by_weight(const KernelArgs& args) {
  const Gate gate(args, nullptr);
  return std::size_t(gate.groups * gate.experts) * sizeof(First);
}
Kernel bind_by_weight(const KernelArgs& args) {
  const Gate gate(args, nullptr);
  const Listed all{
      gate, nullptr, nullptr, nullptr, args.operands[0].as<float>(), 1, reinterpret_cast<First*>(args.workspace)};
  return run_steps(args.stream, Step{gate.experts * gate.groups, FindFirst{all}},
                   Step{gate.experts * gate.groups, GiveSlots{all}});
}

}  // namespace

std::span<const DeviceKernel> slots_cuda() {
  static const DeviceKernel table[] = {
      {"slots", bind_slots, workspace_slots},
      {"slots_by_choice", bind_by_choice, workspace_by_choice},
      {"slots_by_priority", bind_by_priority, workspace_by_choice},
      {"slots_by_weight", bind_by_weight, workspace_by_weight},
  };
  return table;
}

}  // namespace lancet::ops
