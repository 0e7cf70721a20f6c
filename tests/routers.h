// Every router of the config and the ops that are their gates, for tests that try them all.
#pragma once
#include <vector>

#include "lancet/config/config.h"

namespace lancet::test {

inline const std::vector<config::Router> routers{config::Router::switch_top1, config::Router::batch_prioritized};
inline const std::vector<const char*> gates{"switch_gate", "batch_prioritized_gate"};

}  // namespace lancet::test
