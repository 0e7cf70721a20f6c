// The trace of a step on all ranks.
#pragma once
#include <span>
#include <string>

#include "lancet/comm/communicator.h"
#include "lancet/config/config.h"
#include "lancet/runtime/executor.h"

namespace lancet::train {

// Collective: the text of trace.json (runtime/executor.h) on rank 0, empty elsewhere. stages: the plans of all pipeline
// stages; one, if there is one stage. mine: this rank's spans of its stage's plan.
Result<std::string> trace_ranks(const config::Config& config, comm::Communicator& world,
                                std::span<const ir::Plan> stages, std::span<const runtime::Span> mine);

}  // namespace lancet::train
