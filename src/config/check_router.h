#pragma once
#include "refused.h"

namespace lancet::config {

// Checks that the fields of the router fit together, the experts and what the run does. Config errors.
Status check_router(const Config& config, const ir::Mesh& mesh);

}  // namespace lancet::config
