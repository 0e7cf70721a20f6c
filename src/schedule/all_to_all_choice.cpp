#include "lancet/schedule/all_to_all_choice.h"

#include <fmt/format.h>

#include "lancet/ops/catalogue.h"
#include "lancet/ops/exchange_way.h"

namespace lancet::schedule {
namespace {

bool is_exchange(const ir::Program& program, const ir::Instruction& at) {
  return at.lane == ir::Lane::expert && ops::kind(at) == ops::Kind::all_to_all && cost::exchange_ranks(program, at) > 1;
}

}  // namespace

void mark_counted(const cost::Costs& costs, ir::Program& program) {
  for (ir::Instruction& at : program.instructions)
    if (is_exchange(program, at) && costs.window_exchange(program, at) && !cost::takes_window(costs, program, at))
      ops::take_counts(at);
}

ExchangeChoice exchange_choice(const cost::Costs& costs, const ir::Program& program) {
  ExchangeChoice choice;
  for (const ir::Instruction& at : program.instructions) {
    if (!is_exchange(program, at)) continue;
    const auto windows = costs.window_exchange(program, at);
    if (!windows) continue;
    const cost::Load counted = costs.counted_exchange(program, at, 0);
    const bool takes = cost::takes_window(costs, program, at);
    ++choice.known;
    choice.windows += takes;
    choice.ms += takes ? windows->ms : counted.ms;
    choice.windows_ms += windows->ms;
    choice.counted_ms += counted.ms;
  }
  return choice;
}

std::string to_string(const ExchangeChoice& choice) {
  if (choice.known == 0) return "";
  return fmt::format("{} of {} all-to-alls through windows: {:.3g} ms a step, all {:.3g} ms, none {:.3g} ms",
                     choice.windows, choice.known, choice.ms, choice.windows_ms, choice.counted_ms);
}

bool wants_window(const ir::Program& program) {
  for (const ir::Instruction& at : program.instructions)
    if (is_exchange(program, at) && !ops::takes_counts(at.attributes)) return true;
  return false;
}

}  // namespace lancet::schedule
