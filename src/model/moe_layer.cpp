#include "moe_layer.h"

#include <algorithm>

#include "lancet/base/check.h"
#include "lancet/model/capacity.h"

namespace lancet::model {
namespace {

// What a gate decides about T tokens with K choices each.
struct Route {
  TensorId expert, weight, slot;  // [T,K]
  TensorId filled;                // i32[E,2]
};

class MoeLayer {
 public:
  MoeLayer(Builder& builder, const std::string& layer) : b_(builder), layer_(layer), name_(layer + ".moe") {
    const BuildOptions& options = b_.options();
    const bool keeps_all = (b_.gives_logits() || options.keep_all) && !model_.experts_choose();
    groups_ = keeps_all ? options.loads : options.groups;
    const std::int64_t tokens = b_.tokens() / groups_;
    capacity_ = keeps_all ? tokens : capacity(model_.capacity_factor, tokens, experts_, model_.num_experts_per_tok);
  }

  TensorId build(TensorId x) {
    const Route to = route(x);
    const TensorId sent = b_.emit("dispatch", {x, to.expert, to.slot, to.filled}, {{"slots", groups_ * capacity_}},
                                  name_ + ".dispatch")[0];  // [E,C,D]
    const TensorId routed = b_.emit("combine", {experts(sent, to.filled), to.expert, to.slot, to.weight, to.filled},
                                    {{"batch", b_.options().batch}}, name_ + ".combine")[0];  // [B,S,D]
    return model_.n_shared_experts > 0 ? add_shared(x, routed) : routed;
  }

 private:
  Route route(TensorId x) {
    const std::string gate = name_ + ".gate";
    const TensorId weight =
        b_.add({.name = gate + ".weight", .shape = {experts_, model_.n_embd}, .deviation = b_.deviation}, DType::f32,
               {whole, whole});
    const TensorId logits = b_.emit("router", {x, weight}, {}, gate)[0];  // f32[B,S,E]
    const auto chosen = choose(logits, gate);
    const auto slots = gate_slots(chosen[0], chosen[1]);
    const Route route{chosen[0], chosen[1], slots[0], slots[2]};
    if (b_.options().inspect) {
      b_.program.add_output("score." + layer_, logits);
      b_.program.add_output("probability." + layer_, route.weight);
      b_.program.add_output("expert." + layer_, route.expert);
      b_.program.add_output("slot." + layer_, route.slot);
      b_.program.add_output("filled." + layer_, route.filled);
    }
    if (b_.trains()) balance(chosen[2], slots[3]);
    if (b_.trains() && model_.router_z_loss_coef > 0) limit_logits(logits);
    return route;
  }

  // expert, weight [T,K] and scores [B,S,E] of logits [B,S,E].
  std::vector<TensorId> choose(TensorId logits, const std::string& gate) {
    if (model_.experts_choose()) return b_.emit("every_expert", {logits}, {}, gate);
    ops::Attributes attributes{{"k", model_.num_experts_per_tok}};
    if (model_.norm_topk_prob) attributes.set("normalize", std::int64_t(1));
    if (model_.router != config::Router::sigmoid) return b_.emit("top_k", {logits}, attributes, gate);
    if (model_.topk_groups() < model_.router_groups) {
      attributes.set("expert_groups", model_.router_groups);
      attributes.set("top_groups", model_.topk_groups());
    }
    if (model_.routed_scaling_factor != 1) attributes.set("scale", model_.routed_scaling_factor);
    std::vector<TensorId> operands{logits};
    if (model_.router_bias_update_rate > 0) operands.push_back(b_.constant(gate + ".bias", {experts_}, {whole}, 0));
    return b_.emit("sigmoid_top_k", operands, attributes, gate);
  }

  // The results of the gate's op (ops/slots).
  std::vector<TensorId> gate_slots(TensorId expert, TensorId weight) {
    ops::Attributes attributes{{"capacity", capacity_}, {"groups", groups_}, {"experts", experts_}};
    if (const std::int64_t all = loads(); all > 1) attributes.set("load_groups", groups_ / all);
    if (model_.experts_choose()) return b_.emit("slots_by_weight", {expert, weight}, attributes, name_ + ".gate");
    if (model_.router == config::Router::batch_prioritized)
      return b_.emit("slots_by_priority", {expert, weight}, attributes, name_ + ".gate");
    return b_.emit("slots", {expert}, attributes, name_ + ".gate");
  }

  // The loads of the layer.
  std::int64_t loads() const {
    const config::AuxLossScope scope = model_.router_aux_loss_scope;
    if (!b_.trains() || scope == config::AuxLossScope::global) return 1;
    if (scope == config::AuxLossScope::group) return groups_;
    const std::int64_t all = b_.options().loads;
    LANCET_CHECK(groups_ % all == 0, "{} groups have {} loads", groups_, all);
    return all;
  }

  // Where experts choose, their loads are even, and the loss is a constant without gradient.
  void balance(TensorId scores, TensorId load) {
    const double coefficient = model_.experts_choose() ? 0.0 : model_.router_aux_loss_coef;
    ops::Attributes counted{{"load_tokens", b_.tokens() * 2 / b_.program.type(load).shape[0]},
                            {"total_tokens", b_.tokens() * b_.options().accumulation},
                            {"coefficient", coefficient}};
    if (model_.num_experts_per_tok > 1) counted.set("choices", model_.num_experts_per_tok);
    const TensorId aux = b_.emit("aux_loss", {scores, load}, counted, name_ + ".aux_loss")[0];
    b_.program.add_output(ir::output_name(ir::OutputKind::aux, layer_), aux);
    b_.program.add_output(ir::output_name(ir::OutputKind::load, layer_), load);
  }

  // Adds the result of the shared experts, which read x and no route, so that they can run beside the all-to-alls.
  TensorId add_shared(TensorId x, TensorId routed) {
    const std::string name = name_ + ".shared_experts";
    return b_.emit("add", {routed, b_.mlp(name, x, model_.shared_inner())}, {}, name)[0];
  }

  void limit_logits(TensorId logits) {
    const ops::Attributes attributes{{"total_tokens", b_.tokens() * b_.options().accumulation},
                                     {"coefficient", model_.router_z_loss_coef}};
    const TensorId loss = b_.emit("z_loss", {logits}, attributes, name_ + ".z_loss")[0];
    b_.program.add_output(ir::output_name(ir::OutputKind::z_loss, layer_), loss);
  }

  // [E,C,D] -> [E,C,D]
  TensorId experts(TensorId sent, TensorId filled) {
    const std::string name = name_ + ".experts";
    const std::int64_t d = model_.n_embd, f = model_.expert_inner(), slots = experts_ * groups_ * capacity_;
    const std::int64_t choices = choices_of(model_, b_.tokens(), slots);
    const ops::Attributes rows{{"tokens", std::min(choices, slots)}};  // that the experts get
    ops::Attributes product = b_.product_of(b_.tokens());
    product.set("tokens", rows.integer("tokens"));
    const TensorId w1 =
        b_.weight(name + ".c_fc.weight", {experts_, f, d}, {over_experts, over_tensor, whole}, b_.deviation);
    const TensorId b1 = b_.constant(name + ".c_fc.bias", {experts_, f}, {over_experts, over_tensor}, 0);
    const TensorId w2 =
        b_.weight(name + ".c_proj.weight", {experts_, d, f}, {over_experts, whole, over_tensor}, b_.residual_deviation);
    const TensorId b2 = b_.constant(name + ".c_proj.bias", {experts_, d}, {over_experts, whole}, 0);
    const TensorId hidden = b_.emit("expert_linear", {sent, w1, b1, filled}, product, name + ".c_fc")[0];
    const TensorId active = b_.emit("gelu", {hidden, filled}, rows, name + ".gelu")[0];
    return b_.emit("expert_linear", {active, w2, b2, filled}, product, name + ".c_proj")[0];
  }

  Builder& b_;
  const config::Model& model_ = b_.model();
  const std::string layer_, name_;
  const std::int64_t experts_ = model_.num_local_experts.value();
  std::int64_t groups_ = 1;    // of neighbouring sequences; capacity is counted in each
  std::int64_t capacity_ = 1;  // slots of an expert for a group
};

}  // namespace

TensorId moe_layer(Builder& builder, const std::string& name, TensorId x) { return MoeLayer(builder, name).build(x); }

}  // namespace lancet::model
