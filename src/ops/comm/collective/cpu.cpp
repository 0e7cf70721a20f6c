#include <algorithm>
#include <memory>

#include "messages.h"
#include "ops/cpu_shards.h"

namespace lancet::ops {
namespace {

// The communicator of the instruction's group. Without one the rank is alone.
struct GroupComm {
  std::shared_ptr<comm::Communicator> self;
  comm::Communicator* comm;
  explicit GroupComm(const KernelArgs& args)
      : self(args.group.comm ? nullptr : comm::make_self()), comm(args.group.comm ? args.group.comm : self.get()) {}
  Status send(const Messages& messages) const { return comm->send_receive(messages.sends, messages.receives); }
};

// out[i] = ((parts[i] + parts[stride + i]) + ...) over `ranks` parts, in f32, rounded once.
template <class T>
void sum_in_rank_order(const T* parts, std::int64_t stride, std::int64_t ranks, std::int64_t count, T* out) {
  cpu::parallel_for(count, cpu::grain_elements, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; i += cpu::block) {
      const std::int64_t n = std::min(cpu::block, end - i);
      float sum[cpu::block];
      for (std::int64_t j = 0; j < n; ++j) sum[j] = to_f32(parts[i + j]);
      for (std::int64_t r = 1; r < ranks; ++r)
        for (std::int64_t j = 0; j < n; ++j) sum[j] += to_f32(parts[r * stride + i + j]);
      for (std::int64_t j = 0; j < n; ++j) out[i + j] = from_f32<T>(sum[j]);
    }
  });
}

Kernel bind_gather(const KernelArgs& args) {
  return [call = AllGather(args), group = GroupComm(args), moves = !args.messages_only]() -> Status {
    LANCET_TRY(group.send(call.messages));
    if (moves && call.joins) cpu::join_shards(call.layout, call.unit, call.in, call.y);
    return {};
  };
}

Kernel bind_scatter(const KernelArgs& args) {
  return cpu::by_dtype(args.operands[0].dtype(), [&]<class T>(T) -> Kernel {
    return [call = ReduceScatter(args), group = GroupComm(args), moves = !args.messages_only]() -> Status {
      if (moves && call.splits) cpu::split_shards(call.layout, call.unit, call.x, call.out);
      LANCET_TRY(group.send(call.messages));
      const std::int64_t n = call.layout.shard();
      if (moves)
        sum_in_rank_order(reinterpret_cast<const T*>(call.in), n, call.shards, n, reinterpret_cast<T*>(call.y));
      return {};
    };
  });
}

Kernel bind_sum(const KernelArgs& args) {
  return cpu::by_dtype(args.operands[0].dtype(), [&]<class T>(T) -> Kernel {
    return [call = SumShards(args), group = GroupComm(args), moves = !args.messages_only]() -> Status {
      LANCET_TRY(group.send(call.parts));
      if (moves)
        sum_in_rank_order(reinterpret_cast<const T*>(call.in), call.mine, call.shards, call.mine,
                          reinterpret_cast<T*>(call.y) + call.first);
      return group.send(call.sums);
    };
  });
}

Kernel bind_swap(const KernelArgs& args) {
  return [call = SwapShards(args), group = GroupComm(args), moves = !args.messages_only]() -> Status {
    if (moves && call.splits) cpu::split_shards(call.to, call.unit, call.x, call.out);
    LANCET_TRY(group.send(call.messages));
    if (moves && call.joins) cpu::join_shards(call.from, call.unit, call.in, call.y);
    return {};
  };
}

Kernel bind_permute(const KernelArgs& args) {
  return [call = PermuteShards(args), group = GroupComm(args)]() -> Status { return group.send(call.messages); };
}

const CpuKernel table[] = {{"all_gather", bind_gather, collective_workspace<AllGather>},
                           {"reduce_scatter", bind_scatter, collective_workspace<ReduceScatter>},
                           {"sum_shards", bind_sum, collective_workspace<SumShards>},
                           {"swap_shards", bind_swap, collective_workspace<SwapShards>},
                           {"permute_shards", bind_permute}};

}  // namespace

std::span<const CpuKernel> collective_cpu() { return table; }

}  // namespace lancet::ops
