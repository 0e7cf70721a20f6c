// Names the cause of a step whose loss or gradient norm is not finite.
#pragma once
#include <functional>
#include <optional>
#include <string>

#include "lancet/comm/communicator.h"
#include "lancet/config/config.h"
#include "lancet/runtime/executor.h"

namespace lancet::train {

// Fills the inputs of a run of the step's plan (0 is the first) and searches it (Executor::find_non_finite).
using SearchRun = std::function<Result<std::optional<runtime::NonFinite>>(int run)>;

// Collective: names the first tensor of a failed step that is not finite, by running its micro batches again on the
// same weights. If several ranks have one, that of the smallest place is named (runtime::NonFinite), since no other one
// can be its cause. program: the plan's, of which a step is `runs` runs.
Result<std::string> find_non_finite_cause(const config::Config& config, comm::Communicator& world,
                                          const ir::Program& program, int runs, const SearchRun& search);

}  // namespace lancet::train
