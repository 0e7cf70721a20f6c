#pragma once
#include <string>

#include "lancet/runtime/profiler.h"

namespace lancet::experiment {

// This machine's processor, as its profile calls it.
inline std::string cpu_name() { return runtime::this_device(1, 1).cpu; }

}  // namespace lancet::experiment
