// Communication's part of the profiler.
#pragma once
#include "lancet/runtime/profiler.h"

namespace lancet::runtime {

// Measures what the profile lacks; true if anything was. Collective.
Result<bool> fill_wire(cost::Profile& profile, std::span<const ir::Plan> plans, const ProfilerOptions& options);

}  // namespace lancet::runtime
