// The trainer against PyTorch in float64 (tests/reference): loss, routing, every gradient, the weights after the
// last of three steps, or of ten.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "good.h"
#include "lancet/train/trainer.h"
#include "reference/reference.h"
#include "routers.h"
#include "train/rank_state.h"

namespace lancet::train {
namespace {

using test::Reference;

class ReferenceBatches final : public data::Batches {
 public:
  explicit ReferenceBatches(const Reference& reference) : reference_(reference) {}
  Status fill(std::int64_t step, int, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) override {
    const auto from = static_cast<std::size_t>(step) * inputs.size();
    std::ranges::copy(reference_.i32("tokens").subspan(from, inputs.size()), inputs.begin());
    std::ranges::copy(reference_.i32("targets").subspan(from, targets.size()), targets.begin());
    return {};
  }

 private:
  const Reference& reference_;
};

void set_router(config::Model& model, const Reference& r) {
  const auto named = std::ranges::find(test::routes, r.text("gate"),
                                       [](const test::Route& route) { return std::string(name(route.router)); });
  REQUIRE(named != test::routes.end());
  model.router = named->router;
  model.capacity_factor.reset();
  model.dropless_imbalance = 0.75;  // of what drops nothing: buffers that take several rounds a layer
  if (r.text("capacity_factor") != "null") model.capacity_factor = r.number("capacity_factor");
  if (r.has("router_second_expert")) {
    REQUIRE(r.text("router_second_expert") == "always");
    model.router_second_expert = config::SecondExpert::always;
  }
  if (r.has("router_z_loss_coef")) model.router_z_loss_coef = r.number("router_z_loss_coef");
  if (r.has("router_groups")) model.router_groups = r.integer("router_groups");
  if (r.has("router_topk_groups")) model.router_topk_groups = r.integer("router_topk_groups");
  if (r.has("routed_scaling_factor")) model.routed_scaling_factor = r.number("routed_scaling_factor");
  if (r.has("router_bias_update_rate")) model.router_bias_update_rate = r.number("router_bias_update_rate");
}

config::Config config_of(const Reference& r) {
  config::Config c;
  if (r.has("model_type")) {
    c.model.model_type = config::find_family(r.text("model_type"));
    c.model.num_key_value_heads = r.integer("num_key_value_heads");
    c.model.head_dim = r.integer("head_dim");
    c.model.rope_theta = r.number("rope_theta");
    c.model.tie_word_embeddings = r.has("tie_word_embeddings");
    c.model.n_inner = r.integer("n_inner");
    c.model.qkv_bias = r.has("qkv_bias");
    if (r.has("clip_qkv")) c.model.clip_qkv = r.number("clip_qkv");
    c.model.attention_bias = r.has("attention_bias");
    if (r.has("shared_expert_intermediate_size"))
      c.model.shared_expert_intermediate_size = r.integer("shared_expert_intermediate_size");
    if (r.has("rope_scaling")) {
      const std::string text = R"({"model": {"model_type": "llama", "rope_scaling": )" + r.text("rope_scaling") + "}}";
      c.model.rope_scaling = test::good(config::parse(text, "rope_scaling"))->model.rope_scaling;
    }
    if (r.has("mlp_only_layers")) c.model.mlp_only_layers = {0, 2};
  }
  c.model.n_layer = r.integer("n_layer");
  c.model.n_head = r.integer("n_head");
  c.model.n_embd = r.integer("n_embd");
  c.model.n_positions = r.integer("n_positions");
  c.model.vocab_size = r.integer("vocab_size");
  c.model.layer_norm_epsilon = r.number("layer_norm_epsilon");
  c.model.moe_layer_freq = r.integer("moe_layer_freq");
  c.model.num_local_experts = r.integer("num_local_experts");
  c.model.router_aux_loss_coef = r.number("router_aux_loss_coef");
  if (r.has("gate")) set_router(c.model, r);
  if (r.has("num_experts_per_tok")) c.model.num_experts_per_tok = r.integer("num_experts_per_tok");
  c.model.norm_topk_prob = r.has("norm_topk_prob");
  if (r.has("moe_intermediate_size")) c.model.moe_intermediate_size = r.integer("moe_intermediate_size");
  if (r.has("n_shared_experts")) c.model.n_shared_experts = r.integer("n_shared_experts");
  if (r.has("first_k_dense_replace")) c.model.first_k_dense_replace = r.integer("first_k_dense_replace");
  c.train.seq_len = r.integer("sequence_length");
  c.train.micro_batch_size = r.integer("batch_size");
  c.train.lr = r.number("lr");
  c.train.weight_decay = r.number("weight_decay");
  c.train.clip_grad = r.number("clip_grad");
  if (r.text("optimizer") == "adamw") {
    c.train.adam_beta1 = r.number("adam_beta1");
    c.train.adam_beta2 = r.number("adam_beta2");
    c.train.adam_eps = r.number("adam_eps");
  } else {
    c.train.optimizer = config::Optimizer::sgd;
    c.train.sgd_momentum = r.number("momentum");
  }
  c.data.synthetic = true;
  c.threads = 1;
  return c;
}

// The largest difference over the largest value: elements near zero are only as exact as their tensor.
double relative_error(std::span<const float> found, std::span<const float> expected) {
  double error = 0, scale = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    error = std::max(error, std::abs(double(found[i]) - double(expected[i])));
    scale = std::max(scale, std::abs(double(expected[i])));
  }
  return scale > 0 ? error / scale : error;
}

// The tensor in the reference's shape: without the vocabulary's padding.
std::span<const float> values(const float* data, const Reference& reference, const std::string& name) {
  return {data, static_cast<std::size_t>(reference.shape(name).elements())};
}

void load_weights(Trainer& trainer, const Reference& reference) {
  for (const std::string& name : reference.under("init/")) {
    const auto given = reference.f32("init/" + name);
    std::vector<float> padded(given.begin(), given.end());
    padded.resize(static_cast<std::size_t>(trainer.store()[name].type.shape.elements()));
    REQUIRE(set_parameter(trainer.store(), name, padded).ok());
  }
}

void check_gradients(Trainer& trainer, const Reference& reference, const std::string& step) {
  for (const std::string& name : reference.under(step + "/grad/")) {
    const auto expected = reference.f32(step + "/grad/" + name);
    const auto found = values(trainer.executor().output("grad." + name).as<float>(), reference, step + "/grad/" + name);
    INFO(step << " gradient of " << name);
    CHECK(relative_error(found, expected) < 1e-4);
  }
}

void check_routing(Trainer& trainer, const Reference& reference, const std::string& step) {
  for (const std::string& layer : reference.under(step + "/expert/")) {
    const ops::TensorView experts = trainer.executor().output("expert.h." + layer),
                          slots = trainer.executor().output("slot.h." + layer);
    const auto expert = reference.i32(step + "/expert/" + layer), slot = reference.i32(step + "/slot/" + layer);
    REQUIRE(std::int64_t(expert.size()) == experts.elements());
    for (std::size_t t = 0; t < expert.size(); ++t) {
      INFO(step << " layer " << layer << " token " << t);
      REQUIRE(experts.as<std::int32_t>()[t] == expert[t]);
      REQUIRE(slots.as<std::int32_t>()[t] == slot[t]);
    }
  }
}

void check_final_weights(Trainer& trainer, const Reference& reference) {
  for (const std::string& name : reference.under("final/")) {
    auto expected = reference.f32("final/" + name);
    auto found = values(trainer.store()[name].memory.as<float>(), reference, "final/" + name);
    double tolerance = 1e-5;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      // The gradient of the keys' bias is zero in exact arithmetic where keys are not rotated; Adam turns its rounding
      // into steps of up to lr.
      const bool keys = !reference.has("model_type") && name.ends_with("c_attn.bias") && i >= expected.size() / 3 &&
                        i < expected.size() * 2 / 3;
      const double allowed = keys && reference.text("optimizer") == "adamw" ? 3 * reference.number("lr") : tolerance;
      INFO("final " << name << " [" << i << "]");
      REQUIRE(std::abs(double(found[i]) - double(expected[i])) < allowed);
    }
  }
}

// Those of tests/reference.
std::vector<std::string> reference_runs() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(LANCET_SOURCE_DIR "/tests/reference"))
    if (entry.path().extension() == ".safetensors") names.push_back(entry.path().stem().string());
  std::ranges::sort(names);
  return names;
}

}  // namespace

TEST_CASE("the first steps equal PyTorch's") {
  const std::string name = GENERATE(from_range(reference_runs()));
  INFO(name);
  const Reference reference = Reference::load(name);
  ReferenceBatches batches(reference);
  const auto world = comm::make_self();
  auto trainer = test::good(
      Trainer::create(config_of(reference), *world, {.local_ranks = 1, .inspect = true, .batches = &batches}));
  load_weights(**trainer, reference);
  for (int s = 0; s < reference.steps(); ++s) {
    const std::string step = "step" + std::to_string(s);
    const auto record = test::good((*trainer)->step(s));
    CHECK(record->loss == Approx(reference.scalar(step + "/loss")).epsilon(1e-5));
    CHECK(record->aux_loss == Approx(reference.scalar(step + "/aux")).epsilon(1e-5).margin(1e-6));
    CHECK(record->grad_norm == Approx(reference.scalar(step + "/grad_norm")).epsilon(1e-5));
    if (reference.has("router_z_loss_coef"))
      CHECK(record->z_loss.value() == Approx(reference.scalar(step + "/z_loss")).epsilon(1e-5));
    if (reference.has("gate")) check_routing(**trainer, reference, step);
    if (!reference.has("gradient_steps") || s < reference.integer("gradient_steps"))
      check_gradients(**trainer, reference, step);
  }
  check_final_weights(**trainer, reference);
}

}  // namespace lancet::train
