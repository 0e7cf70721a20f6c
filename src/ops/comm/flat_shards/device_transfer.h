// The transfer of packed shards (cpu_transfer.h) on a GPU: kernels pack, add up and unpack, with one element
// a thread at a time, and find its tensor by binary search. Sums are in the order of the ranks, as on the CPU.
#pragma once
#include <memory>
#include <vector>

#include "messages.h"
#include "ops/device/pack.h"

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

// The positions [begin, end) of the ranks [first_rank, first_rank + ranks), 1024 of one rank a block. Messages hold one
// rank's values each, from position `from` on.
struct PackedSpan {
  static constexpr int threads = 256;
  static constexpr std::int64_t block_elements = 4 * threads;
  PackedTable table;
  std::int64_t begin, end, from, message_length;
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

// The message to rank q = the values of rank q's shards; that of this rank goes to `own`.
template <class T, class Wire>
struct PackShards {
  static constexpr int threads = PackedSpan::threads;
  PackedSpan span;
  Wire *messages, *own;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    span.each(block, [&](int rank, std::int64_t at, const PackedTensor& tensor, std::int64_t element) {
      const float x = element < tensor.elements ? to_f32(static_cast<const T*>(tensor.data)[element]) : 0.f;
      Wire* to = rank == span.place ? own : messages;
      to[rank * span.message_length + at] = from_f32<Wire>(x);
    });
  }
};

// The sums of all messages, in order, to the shards of span.first_rank.
template <class Wire>
struct SumReceived {
  static constexpr int threads = PackedSpan::threads;
  PackedSpan span;
  const Wire* messages;
  int summands;
  bool rounded;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    span.each(block, [&](int, std::int64_t at, const PackedTensor& tensor, std::int64_t element) {
      if (element >= tensor.elements) return;
      float sum = to_f32(messages[at]);
      for (int q = 1; q < summands; ++q) sum += to_f32(messages[q * span.message_length + at]);
      static_cast<float*>(tensor.data)[element] = rounded ? to_f32(from_f32<Wire>(sum)) : sum;
    });
  }
};

// The values of all other ranks' shards = their messages.
template <class T, class Wire>
struct UnpackShards {
  static constexpr int threads = PackedSpan::threads;
  PackedSpan span;
  const Wire* messages;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    span.each(block, [&](int rank, std::int64_t at, const PackedTensor& tensor, std::int64_t element) {
      if (rank == span.place || element >= tensor.elements) return;
      static_cast<T*>(tensor.data)[element] = from_f32<T>(to_f32(messages[rank * span.message_length + at]));
    });
  }
};

// 16 MiB a round keep a link busy; the scratch is twice that.
inline constexpr std::int64_t device_round_bytes = 16 << 20;

template <class Wire>
class DeviceShardTransfer : public ShardMessages<Wire, device_round_bytes> {
  using Messages = ShardMessages<Wire, device_round_bytes>;
  using Messages::place_, Messages::ranks_, Messages::message_length_, Messages::sent_of, Messages::received_of;

 public:
  DeviceShardTransfer(const KernelArgs& args, std::int64_t ranks, std::int64_t length)
      : Messages(args.group, ranks, length, args.workspace),
        comm_(ranks > 1 ? args.group.device_comm : nullptr),
        stream_(args.stream) {}

  // As CpuShardTransfer::sum() and gather().
  Status sum(const std::vector<PackedTable>& values, const std::vector<PackedTable>& results, int result_rank,
             bool rounded, std::int64_t from, std::int64_t to) const {
    LANCET_TRY(spans(values, from, to, 0, ranks_, [&](const PackedSpan& span) {
      return launch(*stream_, span.blocks(), PackShards<float, Wire>{span, sent_of(0), received_of(0)});
    }));
    LANCET_TRY(send(true, to - from));
    return spans(results, from, to, result_rank, 1, [&](const PackedSpan& span) {
      return launch(*stream_, span.blocks(), SumReceived<Wire>{span, received_of(0), ranks_, rounded});
    });
  }

  template <class T>
  Status gather(const std::vector<PackedTable>& tensors, std::int64_t from, std::int64_t to) const {
    Wire* first = sent_of(0) - place_ * message_length_;  // this rank's values go to the first message
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
      if (begin < end) LANCET_TRY(f(PackedSpan{table, begin, end, from, message_length_, first_rank, ranks, place_}));
    }
    return {};
  }

  Status send(bool each, std::int64_t count) const {
    if (!comm_) return {};
    return this->transfer(each, count, [this](const auto& sends, const auto& receives) {
      return comm_->send_receive(*stream_, sends, receives);
    });
  }

  comm::DeviceCommunicator* comm_;  // null: this rank is alone
  backend::Stream* stream_;
};

}  // namespace lancet::ops::device
