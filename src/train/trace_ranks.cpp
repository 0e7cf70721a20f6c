#include "trace_ranks.h"

#include <vector>

#include "lancet/runtime/trace.h"

namespace lancet::train {
namespace {

// Collective: the spans of all ranks, indexed by rank, on rank 0.
Result<std::vector<std::vector<runtime::Span>>> gather_spans(comm::Communicator& world,
                                                             std::span<const runtime::Span> mine) {
  std::vector<std::vector<runtime::Span>> all(std::size_t(world.size()), std::vector<runtime::Span>(mine.size()));
  std::vector<runtime::Span> sent(mine.begin(), mine.end());
  const std::size_t bytes = mine.size() * sizeof(runtime::Span);
  std::vector<comm::Segment> receives;
  const comm::Segment send{0, reinterpret_cast<std::byte*>(sent.data()), bytes};
  if (world.rank() == 0)
    for (int rank = 0; rank < world.size(); ++rank)
      receives.push_back({rank, reinterpret_cast<std::byte*>(all[std::size_t(rank)].data()), bytes});
  LANCET_TRY(world.send_receive(std::span(&send, 1), receives));
  return all;
}

}  // namespace

Result<std::string> trace_ranks(const config::Config& config, comm::Communicator& world, const ir::Plan& plan,
                                std::span<const runtime::Span> mine) {
  if (config.comm.transport == config::Transport::mirrored) {  // other ranks do not exist
    const std::vector<runtime::Span> one(mine.begin(), mine.end());
    return runtime::trace_json(plan, std::span(&one, 1));
  }
  LANCET_ASSIGN(const auto spans, gather_spans(world, mine));
  if (world.rank() != 0) return std::string();
  return runtime::trace_json(plan, spans);
}

}  // namespace lancet::train
