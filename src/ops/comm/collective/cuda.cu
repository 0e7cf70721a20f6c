#include <algorithm>
#include <vector>

#include "lancet/backend/device.h"
#include "messages.h"
#include "ops/device/copy_shards.h"

namespace lancet::ops {
namespace {

using namespace device;

// out[i] = ((parts[i] + parts[stride + i]) + ...) over `ranks` parts, in f32, rounded once. A pack per thread. Bytes:
// each element of each part read once, of the sum written once.
template <class T>
struct SumInRankOrder {
  static constexpr int threads = 256;
  const T* parts;
  T* out;
  std::int64_t stride, ranks, n;
  bool wide;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t start = (std::int64_t(block.index()) * threads + block.thread()) * Pack<T>::size;
    if (start >= n) return;
    const Part part = part_of_row<T>(start, n);
    Floats<T> sum = to_floats(load(parts + start, part, wide));
    for (std::int64_t r = 1; r < ranks; ++r) {
      const Floats<T> x = to_floats(load(parts + r * stride + start, part, wide));
#pragma unroll
      for (int i = 0; i < Pack<T>::size; ++i) sum.v[i] += x.v[i];
    }
    store(out + start, from_floats<T>(sum), part, wide);
  }
};

template <class T>
Status sum_in_rank_order(backend::Stream& stream, const std::byte* parts, std::int64_t stride, std::int64_t ranks,
                         std::int64_t n, std::byte* out) {
  const auto* from = reinterpret_cast<const T*>(parts);
  auto* to = reinterpret_cast<T*>(out);
  const bool wide = aligned(from, to) && aligned_rows<T>(stride);
  return launch(stream, divide_up(n, SumInRankOrder<T>::threads * Pack<T>::size),
                SumInRankOrder<T>{from, to, stride, ranks, n, wide});
}

// The group's communicator and the stream of its calls. Without a communicator the rank is alone.
struct GroupStream {
  comm::DeviceCommunicator* comm;
  backend::Stream* stream;
  explicit GroupStream(const KernelArgs& args) : comm(args.group.device_comm), stream(args.stream) {}

  Status send(const Messages& messages) const {
    if (comm) return comm->send_receive(*stream, messages.sends, messages.receives);
    std::vector<backend::Copy> copies;
    for (std::size_t i = 0; i < messages.sends.size(); ++i)
      backend::append_copy(copies, {messages.receives[i].data, messages.sends[i].data, messages.sends[i].bytes});
    return stream->copy_all(copies);
  }
};

Kernel bind_collective_gather(const KernelArgs& args) {
  return [call = AllGather(args), group = GroupStream(args)]() -> Status {
    LANCET_TRY(group.send(call.messages));
    if (!call.joins) return {};
    return copy_shards(*group.stream, call.layout, call.unit, true, call.y, call.in, 0, call.shards);
  };
}

Kernel bind_scatter(const KernelArgs& args) {
  return by_dtype(args.operands[0].dtype(), [&]<class T>(T) -> Kernel {
    return [call = ReduceScatter(args), group = GroupStream(args)]() -> Status {
      if (call.splits)
        LANCET_TRY(copy_shards(*group.stream, call.layout, call.unit, false, call.x, call.out, 0, call.shards));
      LANCET_TRY(group.send(call.messages));
      const std::int64_t n = call.layout.shard();
      return sum_in_rank_order<T>(*group.stream, call.in, n, call.shards, n, call.y);
    };
  });
}

Kernel bind_collective_sum(const KernelArgs& args) {
  return by_dtype(args.operands[0].dtype(), [&]<class T>(T) -> Kernel {
    return [call = SumShards(args), group = GroupStream(args)]() -> Status {
      LANCET_TRY(group.send(call.parts));
      LANCET_TRY(sum_in_rank_order<T>(*group.stream, call.in, call.mine, call.shards, call.mine,
                                      call.y + call.first * call.unit));
      return group.send(call.sums);
    };
  });
}

Kernel bind_swap(const KernelArgs& args) {
  return [call = SwapShards(args), group = GroupStream(args)]() -> Status {
    if (call.splits)
      LANCET_TRY(copy_shards(*group.stream, call.to, call.unit, false, call.x, call.out, 0, call.shards));
    LANCET_TRY(group.send(call.messages));
    if (!call.joins) return {};
    return copy_shards(*group.stream, call.from, call.unit, true, call.y, call.in, 0, call.shards);
  };
}

Kernel bind_permute(const KernelArgs& args) {
  return [call = PermuteShards(args), group = GroupStream(args)]() -> Status { return group.send(call.messages); };
}

// No graph records a transport's calls.

}  // namespace

std::span<const DeviceKernel> collective_cuda() {
  static const DeviceKernel table[] = {{"all_gather", bind_collective_gather, collective_workspace<AllGather>, false},
                                       {"reduce_scatter", bind_scatter, collective_workspace<ReduceScatter>, false},
                                       {"sum_shards", bind_collective_sum, collective_workspace<SumShards>, false},
                                       {"swap_shards", bind_swap, collective_workspace<SwapShards>, false},
                                       {"permute_shards", bind_permute, nullptr, false}};
  return table;
}

}  // namespace lancet::ops
