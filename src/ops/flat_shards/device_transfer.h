// The exchange of packed shards (packed.h, cpu_exchange.h) on a GPU: kernels pack, add up and unpack, with one element
// a thread at a time, and find its tensor by binary search. Sums are in the order of the ranks, as on the CPU.
#pragma once
#include <memory>
#include <vector>

#include "ops/device/pack.h"
#include "slots.h"

namespace lancet::ops::device {

// Some tensors of a packed vector, which a launch takes as arguments, and the positions that they cover.
struct PackedTable {
  static constexpr int most = 64;
  PackedTensor tensors[most];
  int count = 0;

  std::int64_t begin() const { return tensors[0].at; }
  std::int64_t end() const { return tensors[count - 1].end; }

  // The tensor at position x.
  LANCET_DEVICE const PackedTensor& of(std::int64_t x) const {
    int at = 0;
    for (int step = most / 2; step > 0; step /= 2)
      if (at + step < count && tensors[at + step].at <= x) at += step;
    return tensors[at];
  }
};
static_assert(sizeof(PackedTable) < 3500);  // a launch takes 4 KB of arguments

inline std::vector<PackedTable> tables_of(const PackedTensors& tensors) {
  std::vector<PackedTable> tables;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (i % PackedTable::most == 0) tables.emplace_back();
    tables.back().tensors[tables.back().count++] = tensors[i];
  }
  return tables;
}

// The positions [begin, end) of the ranks [first_rank, first_rank + ranks), 1024 of one rank a block. Slots hold one
// rank's values each, from position `from` on.
struct PackedSpan {
  static constexpr int threads = 256;
  static constexpr std::int64_t block_elements = 4 * threads;
  PackedTable table;
  std::int64_t begin, end, from, slot;  // slot: elements of a slot
  int first_rank, ranks, place;

  std::int64_t blocks() const { return ranks * divide_up(end - begin, block_elements); }

  // Calls f(rank, position from `from` on, the tensor, the element of it) for the elements of this thread.
  template <class Block, class F>
  LANCET_DEVICE void each(Block& block, F f) const {
    const std::int64_t of_rank = divide_up(end - begin, block_elements);
    const int rank = first_rank + int(block.index() / of_rank);
    const std::int64_t start = begin + block.index() % of_rank * block_elements;
    for (int i = 0; i < 4; ++i) {
      const std::int64_t x = start + i * threads + block.thread();
      if (x >= end) continue;
      const PackedTensor& tensor = table.of(x);
      f(rank, x - from, tensor, rank * tensor.shard + tensor.begin + x - tensor.at);
    }
  }
};

// slot of rank q = the values of rank q's shards; that of this rank goes to `own`.
template <class T, class Wire>
struct PackShards {
  static constexpr int threads = PackedSpan::threads;
  PackedSpan span;
  Wire *slots, *own;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    span.each(block, [&](int rank, std::int64_t at, const PackedTensor& tensor, std::int64_t element) {
      const float x = element < tensor.elements ? to_f32(static_cast<const T*>(tensor.data)[element]) : 0.f;
      Wire* to = rank == span.place ? own : slots;
      to[rank * span.slot + at] = from_f32<Wire>(x);
    });
  }
};

// The sums of all slots, in order, to the shards of span.first_rank.
template <class Wire>
struct SumShards {
  static constexpr int threads = PackedSpan::threads;
  PackedSpan span;
  const Wire* slots;
  int summands;
  bool rounded;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    span.each(block, [&](int, std::int64_t at, const PackedTensor& tensor, std::int64_t element) {
      if (element >= tensor.elements) return;
      float sum = to_f32(slots[at]);
      for (int q = 1; q < summands; ++q) sum += to_f32(slots[q * span.slot + at]);
      static_cast<float*>(tensor.data)[element] = rounded ? to_f32(from_f32<Wire>(sum)) : sum;
    });
  }
};

// The values of all other ranks' shards = their slots.
template <class T, class Wire>
struct UnpackShards {
  static constexpr int threads = PackedSpan::threads;
  PackedSpan span;
  const Wire* slots;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    span.each(block, [&](int rank, std::int64_t at, const PackedTensor& tensor, std::int64_t element) {
      if (rank == span.place || element >= tensor.elements) return;
      static_cast<T*>(tensor.data)[element] = from_f32<T>(to_f32(slots[rank * span.slot + at]));
    });
  }
};

// 16 MiB a round keep a link busy; the scratch is twice that.
inline constexpr std::int64_t device_round_bytes = 16 << 20;

template <class Wire>
class DeviceShardExchange : public ShardSlots<Wire, device_round_bytes> {
  using Slots = ShardSlots<Wire, device_round_bytes>;
  using Slots::place_, Slots::ranks_, Slots::slot_, Slots::sent_of, Slots::received_of;

 public:
  DeviceShardExchange(const KernelArgs& args, std::int64_t ranks, std::int64_t length)
      : Slots(args.group, ranks, length, args.workspace),
        comm_(ranks > 1 ? args.group.device_comm : nullptr),
        stream_(args.stream) {}

  // As CpuShardExchange::sum() and gather().
  Status sum(const std::vector<PackedTable>& values, const std::vector<PackedTable>& results, int result_rank,
             bool rounded, std::int64_t from, std::int64_t to) const {
    LANCET_TRY(spans(values, from, to, 0, ranks_, [&](const PackedSpan& span) {
      return launch(*stream_, span.blocks(), PackShards<float, Wire>{span, sent_of(0), received_of(0)});
    }));
    LANCET_TRY(send(true, to - from));
    return spans(results, from, to, result_rank, 1, [&](const PackedSpan& span) {
      return launch(*stream_, span.blocks(), SumShards<Wire>{span, received_of(0), ranks_, rounded});
    });
  }

  template <class T>
  Status gather(const std::vector<PackedTable>& tensors, std::int64_t from, std::int64_t to) const {
    Wire* first = sent_of(0) - place_ * slot_;  // this rank's values go to the first slot
    LANCET_TRY(spans(tensors, from, to, place_, 1, [&](const PackedSpan& span) {
      return launch(*stream_, span.blocks(), PackShards<T, Wire>{span, first, first});
    }));
    LANCET_TRY(send(false, to - from));
    return spans(tensors, from, to, 0, ranks_, [&](const PackedSpan& span) {
      return launch(*stream_, span.blocks(), UnpackShards<T, Wire>{span, received_of(0)});
    });
  }

 private:
  template <class F>
  Status spans(const std::vector<PackedTable>& tables, std::int64_t from, std::int64_t to, int first_rank, int ranks,
               F f) const {
    for (const PackedTable& table : tables) {
      const std::int64_t begin = std::max(from, table.begin()), end = std::min(to, table.end());
      if (begin < end) LANCET_TRY(f(PackedSpan{table, begin, end, from, slot_, first_rank, ranks, place_}));
    }
    return {};
  }

  Status send(bool each, std::int64_t count) const {
    if (!comm_) return {};
    return this->exchange(each, count, [this](const auto& sends, const auto& receives) {
      return comm_->send_receive(*stream_, sends, receives);
    });
  }

  comm::DeviceCommunicator* comm_;  // null: this rank is alone
  backend::Stream* stream_;
};

}  // namespace lancet::ops::device
