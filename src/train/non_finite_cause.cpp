#include "non_finite_cause.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "lancet/comm/collect.h"
#include "lancet/world/agree.h"

namespace lancet::train {

Result<std::string> find_non_finite_cause(const config::Config& config, comm::Communicator& world,
                                          const FillMicroBatch& fill) {
  for (int micro = 0; micro < config.train.gradient_accumulation_steps; ++micro) {
    LANCET_ASSIGN(runtime::Executor* const executor, fill(micro));
    LANCET_ASSIGN(const auto found, executor->find_non_finite());
    constexpr std::int64_t nowhere = std::numeric_limits<std::int64_t>::max();
    LANCET_ASSIGN(const auto places, world::gather(world, found ? found->place : nowhere));
    const auto first = std::min_element(places.begin(), places.end());
    if (*first == nowhere) continue;
    const int rank = static_cast<int>(first - places.begin());
    std::string mine = found ? runtime::to_string(executor->plan().program, *found) : "";
    if (found && !found->instruction.valid() && config.train.clip_grad == 0 &&
        config.train.on_non_finite == config::OnNonFinite::stop)
      mine += "; it may be a consequence: without train.clip_grad the step's updates do not wait for the norm";
    LANCET_ASSIGN(const std::string text, broadcast_text(world, mine, rank));
    return fmt::format("first not finite on rank {} in micro batch {}: {}", rank, micro, text);
  }
  return std::string("every tensor is finite when the step is run again");
}

}  // namespace lancet::train
