// Earliest Task First, and its variants: m-SCT and GETF say for each ready op and device when it may start.
#pragma once
#include <functional>
#include <string_view>

#include "partial.h"

namespace lancet::placement {

struct EarliestStart {
  double ms = never;   // `never`: the op may not run on the device
  bool waits = false;  // it is taken only if all others wait, too
};
using StartOn = std::function<EarliestStart(Partial&, int op, int device)>;
// Called after an op has run.
using HasRun = std::function<void(const Partial&, int op)>;

// Runs the pair of a ready op and a device that starts first, until all ops have run.
Result<Placement> earliest_first(std::string_view solver, const Problem& problem, const StartOn& start_on,
                                 const HasRun& has_run = {});

}  // namespace lancet::placement
