// Names the cause of a step whose loss or gradient norm is not finite.
#pragma once
#include <functional>
#include <string>

#include "lancet/comm/communicator.h"
#include "lancet/config/config.h"
#include "lancet/runtime/executor.h"

namespace lancet::train {

// Fills the inputs of the plan that ran micro batch `micro`, and returns its executor.
using FillMicroBatch = std::function<Result<runtime::Executor*>(int micro)>;

// Collective: names the first tensor of a failed step that is not finite, by running its micro batches again on the
// same weights. If several ranks have one, the earliest in the plan is named, since it spread from there to the
// others.
Result<std::string> find_non_finite_cause(const config::Config& config, comm::Communicator& world,
                                          const FillMicroBatch& fill);

}  // namespace lancet::train
