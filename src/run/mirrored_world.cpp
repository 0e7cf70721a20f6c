// The mirrored communicator (comm/mirrored.h) gets the duration of each call from two functions. Here they apply the
// cost model of the declared hardware (cost/hardware.h) to the bytes sent, and add the result to `times`.
#include "lancet/run/mirrored_world.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "lancet/comm/mirrored.h"
#include "lancet/cost/hardware.h"

namespace lancet::run {

Result<std::unique_ptr<comm::Communicator>> mirrored_world(const config::Config& config,
                                                           const comm::Communicator& world, DeclaredTimes* times) {
  if (config.comm.transport != config::Transport::mirrored) return std::unique_ptr<comm::Communicator>();
  if (world.size() > 1)
    return config_error(fmt::format(
        "comm.transport: expected one process for \"mirrored\", which stands for all ranks, found {}", world.size()));
  const int ranks = static_cast<int>(config.comm.mirrored_ranks);
  LANCET_TRY(config::check(config, std::max(ranks, 1)));  // requires mirrored_ranks and network
  LANCET_ASSIGN(const cost::Hardware hardware, cost::read_hardware(config.comm.network));
  const cost::Layout layout{ranks, hardware.nodes(ranks)};
  const auto counted = [times](std::atomic<double> DeclaredTimes::*kind, double ms) {
    if (times) (times->*kind).fetch_add(ms, std::memory_order_relaxed);
    return ms;
  };
  return comm::make_mirrored_world(
      ranks,
      {.name = hardware.name,
       .all_to_all_ms =
           [=](std::span<const int> members, double bytes) {
             return counted(&DeclaredTimes::all_to_alls, cost::all_to_all_ms(hardware, layout.group(members), bytes));
           },
       .all_reduce_ms =
           [=](std::span<const int> members, double bytes) {
             return counted(&DeclaredTimes::all_reduces, cost::all_reduce_ms(hardware, layout.group(members), bytes));
           }});
}

}  // namespace lancet::run
