// The costs decide for each all-to-all between several ranks: it travels through windows unless counted messages are
// requested or faster. Windows are the default of the executor, so only the others are marked (ops::take_counts), as
// long as the costs of both ways are known.
#include "lancet/schedule/all_to_all_choice.h"

#include <fmt/format.h>

#include "lancet/ops/all_to_all_way.h"
#include "lancet/ops/catalogue.h"

namespace lancet::schedule {
namespace {

bool is_all_to_all(const ir::Program& program, const ir::Instruction& at) {
  return at.stream == ir::Stream::expert && ops::kind(at) == ops::Kind::all_to_all &&
         cost::all_to_all_ranks(program, at) > 1;
}

}  // namespace

void choose_all_to_alls(const cost::Costs& costs, ir::Program& program) {
  for (ir::Instruction& at : program.instructions)
    if (is_all_to_all(program, at) && costs.window_all_to_all(program, at) && !cost::takes_window(costs, program, at))
      ops::take_counts(at);
}

AllToAllChoice all_to_all_choice(const cost::Costs& costs, const ir::Program& program) {
  AllToAllChoice choice;
  for (const ir::Instruction& at : program.instructions) {
    if (!is_all_to_all(program, at)) continue;
    const auto windows = costs.window_all_to_all(program, at);
    if (!windows) continue;
    const cost::OpCost counted = costs.counted_all_to_all(program, at, 0);
    const bool takes = cost::takes_window(costs, program, at);
    ++choice.known;
    choice.windows += takes;
    choice.ms += takes ? windows->ms : counted.ms;
    choice.windows_ms += windows->ms;
    choice.counted_ms += counted.ms;
  }
  return choice;
}

std::string to_string(const AllToAllChoice& choice) {
  if (choice.known == 0) return "";
  return fmt::format("{} of {} all-to-alls through windows: {:.3g} ms a step, all {:.3g} ms, none {:.3g} ms",
                     choice.windows, choice.known, choice.ms, choice.windows_ms, choice.counted_ms);
}

bool wants_window(const ir::Program& program) {
  for (const ir::Instruction& at : program.instructions)
    if (is_all_to_all(program, at) && !ops::takes_counts(at.attributes)) return true;
  return false;
}

}  // namespace lancet::schedule
