#include "trace_ranks.h"

#include <vector>

#include "lancet/runtime/executor.h"

namespace lancet::train {
namespace {

// Collective: the spans of all ranks, indexed by rank, on rank 0. The ranks of a stage are consecutive.
Result<std::vector<std::vector<runtime::Span>>> gather_spans(comm::Communicator& world,
                                                             std::span<const ir::Plan> stages,
                                                             std::span<const runtime::Span> mine) {
  const auto ranks = std::size_t(world.size());
  std::vector<std::vector<runtime::Span>> all;
  std::vector<runtime::Span> sent(mine.begin(), mine.end());
  std::vector<comm::Segment> receives;
  const comm::Segment send{0, reinterpret_cast<std::byte*>(sent.data()), sent.size() * sizeof(runtime::Span)};
  for (std::size_t rank = 0; world.rank() == 0 && rank < ranks; ++rank)
    all.emplace_back(stages[rank * stages.size() / ranks].program.instructions.size());
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    receives.push_back(
        {int(rank), reinterpret_cast<std::byte*>(all[rank].data()), all[rank].size() * sizeof(runtime::Span)});
  LANCET_TRY(world.send_receive(std::span(&send, 1), receives));
  return all;
}

}  // namespace

Result<std::string> trace_ranks(const config::Config& config, comm::Communicator& world,
                                std::span<const ir::Plan> stages, std::span<const runtime::Span> mine) {
  if (config.comm.transport == config::Transport::mirrored) {  // other ranks do not exist
    const std::vector<runtime::Span> one(mine.begin(), mine.end());
    return runtime::trace_json(stages, std::span(&one, 1));
  }
  LANCET_ASSIGN(const auto spans, gather_spans(world, stages, mine));
  if (world.rank() != 0) return std::string();
  return runtime::trace_json(stages, spans);
}

}  // namespace lancet::train
