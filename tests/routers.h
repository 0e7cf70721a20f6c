// Every router of the config, and every gate, for tests that try them all.
#pragma once
#include <vector>

#include "lancet/config/config.h"

namespace lancet::test {

// A router and the experts that a token has by it.
struct Route {
  config::Router router;
  std::int64_t experts_per_tok = 1;
  bool normalized = false;  // norm_topk_prob

  void set(config::Model& model) const {
    model.router = router;
    model.num_experts_per_tok = experts_per_tok;
    model.norm_topk_prob = normalized;
  }
};

inline const std::vector<Route> routes{
    {config::Router::switch_top1}, {config::Router::top_k, 2, true}, {config::Router::batch_prioritized, 2}};
// Those by which a token has one expert.
inline const std::vector<config::Router> top_1_routers{config::Router::switch_top1, config::Router::batch_prioritized};
inline const std::vector<const char*> gates{"slots", "slots_by_choice", "slots_by_priority"};

}  // namespace lancet::test
