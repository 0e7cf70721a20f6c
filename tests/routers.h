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
  double bias_rate = 0;     // router_bias_update_rate; with one, a token chooses from one half of the experts
  double z_loss = 0;        // router_z_loss_coef
  double jitter = 0;        // router_jitter_noise
  config::SkippedSlots skipped = config::SkippedSlots::kept;
  config::AuxLossForm form = config::AuxLossForm::switch_form;

  // True if scarce capacity drops choices.
  bool drops() const { return router != config::Router::expert_choice; }
  void set(config::Model& model) const {
    model.router = router;
    model.num_experts_per_tok = experts_per_tok;
    model.norm_topk_prob = normalized;
    model.router_bias_update_rate = bias_rate;
    model.router_z_loss_coef = z_loss;
    if (bias_rate > 0) {
      model.router_groups = 2;
      model.router_topk_groups = 1;
      model.routed_scaling_factor = 1.5;
    }
    model.router_jitter_noise = jitter;
    model.router_skipped_slots = skipped;
    model.router_aux_loss_form = form;
  }
};

// Each router is there once, but for gshard, whose two ways to count skipped choices are both there.
inline const std::vector<Route> routes{
    {.router = config::Router::switch_top1},
    {.router = config::Router::top_k, .experts_per_tok = 2, .normalized = true, .z_loss = 0.01, .jitter = 0.05},
    {.router = config::Router::batch_prioritized, .experts_per_tok = 2},
    {.router = config::Router::gshard, .experts_per_tok = 2},
    {.router = config::Router::gshard,
     .experts_per_tok = 2,
     .jitter = 0.1,
     .skipped = config::SkippedSlots::free,
     .form = config::AuxLossForm::gshard},
    {.router = config::Router::hash},
    {.router = config::Router::random},
    {.router = config::Router::sigmoid, .experts_per_tok = 2, .normalized = true, .bias_rate = 0.01},
    {.router = config::Router::expert_choice}};
// Those by which a token has one expert, which is chosen by scores.
inline const std::vector<config::Router> top_1_routers{config::Router::switch_top1, config::Router::batch_prioritized};
inline const std::vector<const char*> gates{"slots", "slots_by_choice", "slots_by_priority", "slots_by_weight"};

}  // namespace lancet::test
