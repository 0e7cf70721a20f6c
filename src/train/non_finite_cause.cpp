#include "non_finite_cause.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "lancet/comm/collect.h"
#include "lancet/ir/micro_batches.h"

namespace lancet::train {

namespace {

// The micro batch of the program in which the tensor was made. What closes the step belongs to the last one.
std::int32_t micro_batch_of(const ir::Program& program, const runtime::NonFinite& found) {
  if (!found.instruction.valid()) return 0;
  const std::size_t i = found.instruction.index();
  return ir::closes_step(program)[i] ? ir::micro_batches(program) - 1 : program.instructions[i].micro_batch;
}

}  // namespace

Result<std::string> find_non_finite_cause(const config::Config& config, comm::Communicator& world,
                                          const ir::Program& program, int runs, const SearchRun& search) {
  for (int run = 0; run < runs; ++run) {
    LANCET_ASSIGN(const auto found, search(run));
    constexpr std::int64_t nowhere = std::numeric_limits<std::int64_t>::max();
    LANCET_ASSIGN(const auto places, comm::collect(world, found ? found->place : nowhere));
    const auto first = std::min_element(places.begin(), places.end());
    if (*first == nowhere) continue;
    const int rank = static_cast<int>(first - places.begin());
    std::string mine =
        found ? fmt::format("micro batch {}: {}", run * ir::micro_batches(program) + micro_batch_of(program, *found),
                            runtime::to_string(program, *found))
              : "";
    if (found && !found->instruction.valid() && config.train.clip_grad == 0 &&
        config.train.on_non_finite == config::OnNonFinite::stop)
      mine += "; it may be a consequence: without train.clip_grad the step's updates do not wait for the norm";
    LANCET_ASSIGN(const std::string text, broadcast_text(world, mine, rank));
    return fmt::format("first not finite on rank {} in {}", rank, text);
  }
  return std::string("every tensor is finite when the step is run again");
}

}  // namespace lancet::train
