// What a router takes, and what it refuses.
#include "config/parsed.h"

using namespace lancet;
using namespace lancet::config;

TEST_CASE("a router takes the experts per token and the fields that it has a use for") {
  const auto error = [](const std::vector<std::string>& overrides) { return fault(check(good("{}", overrides), 4)); };
  CHECK(error({"model.router=gshard"}) ==
        "config: model.num_experts_per_tok: expected 2 with model.router \"gshard\", found 1; model.router=top_k takes "
        "any number");
  for (const std::string router : {"hash", "random"}) {
    CHECK(error({"model.router=" + router, "model.num_experts_per_tok=2"}) ==
          "config: model.num_experts_per_tok: expected 1 with model.router \"" + router +
              "\", found 2; model.router=top_k takes several");
    CHECK(error({"model.router=" + router, "model.router_jitter_noise=0.01"}) ==
          "config: model.router_jitter_noise: expected 0 with model.router \"" + router +
              "\", which has no scores, found 0.01; model.router=switch takes it");
    CHECK(error({"model.router=" + router, "model.norm_topk_prob=true"}) ==
          "config: model.norm_topk_prob: expected false with model.router \"" + router +
              "\", whose weights are 1, found true");
    CHECK(check(good("{}", {"model.router=" + router}), 4).ok());
  }
  CHECK(error({"model.router_second_expert=always"}) ==
        "config: model.router_second_expert: expected \"random\" with model.router \"switch\", found \"always\"; "
        "model.router=gshard takes it");
  const std::vector<std::string> of_gshard{"model.router_second_expert=always", "model.router_skipped_slots=free",
                                           "model.router_aux_loss_form=gshard"};
  for (const std::string& field : of_gshard) {
    CHECK(error({"model.router=top_k", field}).find("model.router=gshard takes it") != std::string::npos);
    CHECK(check(good("{}", {"model.router=gshard", "model.num_experts_per_tok=2", field}), 4).ok());
    CHECK(check(good("{}", {"model.moe_layer_freq=0", field}), 4).ok());
  }
  for (const std::string router : {"switch", "top_k", "batch_prioritized", "sigmoid"})
    CHECK(
        error({"model.router=" + router, "model.norm_topk_prob=true"}) ==
        "config: model.norm_topk_prob: expected false with model.num_experts_per_tok = 1, where every weight would be "
        "1 and the router would not learn, found true");
  CHECK(fault("{}", {"model.router_jitter_noise=1"}).find("router_jitter_noise") != std::string::npos);
}
