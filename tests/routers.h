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
  double jitter = 0;        // router_jitter_noise
  config::SkippedSlots skipped = config::SkippedSlots::kept;
  config::AuxLossForm form = config::AuxLossForm::switch_form;

  void set(config::Model& model) const {
    model.router = router;
    model.num_experts_per_tok = experts_per_tok;
    model.norm_topk_prob = normalized;
    model.router_jitter_noise = jitter;
    model.router_skipped_slots = skipped;
    model.router_aux_loss_form = form;
  }
};

// Each router is there once, but for gshard, whose two ways to count skipped choices are both there.
inline const std::vector<Route> routes{
    {config::Router::switch_top1},
    {config::Router::top_k, 2, true, 0.05},
    {config::Router::batch_prioritized, 2},
    {config::Router::gshard, 2},
    {config::Router::gshard, 2, false, 0.1, config::SkippedSlots::free, config::AuxLossForm::gshard},
    {config::Router::hash},
    {config::Router::random}};
// Those by which a token has one expert, which is chosen by scores.
inline const std::vector<config::Router> top_1_routers{config::Router::switch_top1, config::Router::batch_prioritized};
inline const std::vector<const char*> gates{"slots", "slots_by_choice", "slots_by_priority"};

}  // namespace lancet::test
