#include "builder.h"

#include <fmt/format.h>

#include <string>
#include <vector>

#include "lancet/base/check.h"
#include "lancet/base/random.h"

namespace lancet::model {
namespace {

// The experts that T tokens choose, K each.
struct Choice {
  TensorId expert, weight;      // [T,K]
  TensorId logits{}, scores{};  // [B,S,E]; invalid without scores
};

class RouteBuilder {
 public:
  RouteBuilder(Builder& builder, std::int64_t block, std::int64_t groups, std::int64_t capacity)
      : b_(builder), block_(block), groups_(groups), capacity_(capacity) {}

  Route build(TensorId x) {
    const Choice chosen = model_.has_scores() ? choose_by_scores(x) : choose_without_scores();
    const auto slots = gate_slots(sent(chosen), chosen.weight);
    const Route route{chosen.expert, chosen.weight, slots[0], slots[2]};
    if (b_.options().inspect) {
      if (chosen.logits.valid()) b_.program.add_output("score." + layer_, chosen.logits);
      b_.program.add_output("probability." + layer_, route.weight);
      b_.program.add_output("expert." + layer_, route.expert);
      b_.program.add_output("slot." + layer_, route.slot);
      b_.program.add_output("filled." + layer_, route.filled);
    }
    if (b_.trains()) balance(chosen, slots[3]);
    if (b_.trains() && model_.router_z_loss_coef > 0) limit_logits(chosen.logits);
    return route;
  }

 private:
  Choice choose_by_scores(TensorId x) {
    const std::string gate = name_ + ".gate";
    const TensorId weight =
        b_.add({.name = gate + ".weight", .shape = {experts_, model_.n_embd}, .deviation = b_.deviation}, DType::f32,
               {whole, whole});
    const TensorId logits = b_.emit("router", {jittered(x), weight}, {}, gate)[0];  // f32[B,S,E]
    const auto chosen = choose(logits, gate);
    return {chosen[0], chosen[1], logits, chosen[2]};
  }

  // expert, weight [T,K] and scores [B,S,E] of logits [B,S,E].
  std::vector<TensorId> choose(TensorId logits, const std::string& gate) {
    if (model_.experts_choose()) return b_.emit("every_expert", {logits}, {}, gate);
    ops::Attributes attributes{{"k", model_.num_experts_per_tok}};
    if (model_.norm_topk_prob || is_gshard()) attributes.set("normalize", std::int64_t(1));
    if (model_.router != config::Router::sigmoid) return b_.emit("top_k", {logits}, attributes, gate);
    if (model_.topk_groups() < model_.router_groups) {
      attributes.set("expert_groups", model_.router_groups);
      attributes.set("top_groups", model_.topk_groups());
    }
    if (model_.routed_scaling_factor != 1) attributes.set("scale", model_.routed_scaling_factor);
    const TensorId bias = b_.constant(gate + ".bias", {experts_}, {whole}, 0);
    if (b_.trains()) b_.program.add_output(ir::output_name(ir::OutputKind::bias, layer_), bias);
    return b_.emit("sigmoid_top_k", {logits, bias}, attributes, gate);
  }

  // Generated tokens have no sequence of a run. A random router then takes the hash: any expert will do, since all have
  // been trained on tokens of all kinds.
  Choice choose_without_scores() {
    ops::Attributes attributes{{"experts", experts_}};
    if (model_.router == config::Router::random && !b_.gives_logits()) {
      attributes.set("positions", b_.options().sequence);
      attributes.set("seed", seed("random"));
      const auto chosen = b_.emit("random_choice", {b_.sequence_numbers()}, attributes, name_ + ".gate");
      return {chosen[0], chosen[1]};
    }
    attributes.set("seed", block_);  // a hash belongs to the model: it is the same in runs of any seed
    const auto chosen = b_.emit("hash_choice", {b_.tokens_input}, attributes, name_ + ".gate");
    return {chosen[0], chosen[1]};
  }

  // The seed of what training draws in this layer for a purpose.
  std::int64_t seed(const std::string& purpose) const {
    const auto words = Philox(std::uint64_t(b_.options().seed), stream_of(name_ + "." + purpose)).block(0);
    return std::int64_t((std::uint64_t{words[0]} << 32 | words[1]) >> 1);
  }

  TensorId jittered(TensorId x) {
    if (!b_.trains() || model_.router_jitter_noise == 0) return x;
    const ops::Attributes attributes{{"eps", model_.router_jitter_noise}, {"seed", seed("jitter")}};
    return b_.emit("jitter", {x, b_.sequence_numbers()}, attributes, name_ + ".jitter")[0];
  }

  bool is_gshard() const { return model_.router == config::Router::gshard; }

  // The choices for the gate, of which some may be skipped (ops/moe/second_choice).
  TensorId sent(const Choice& chosen) {
    if (!b_.trains() || !is_gshard() || model_.router_second_expert == config::SecondExpert::always)
      return chosen.expert;
    const bool keep = model_.router_skipped_slots == config::SkippedSlots::kept;
    const ops::Attributes attributes{{"seed", seed("second")}, {"experts", experts_}, {"keep", std::int64_t(keep)}};
    return b_.emit("skip_second", {chosen.expert, chosen.weight, b_.sequence_numbers()}, attributes,
                   name_ + ".gate")[0];
  }

  // The results of the gate's op (ops/moe/slots).
  std::vector<TensorId> gate_slots(TensorId expert, TensorId weight) {
    ops::Attributes attributes{{"capacity", capacity_}, {"groups", groups_}, {"experts", experts_}};
    if (const std::int64_t all = loads(); all > 1) attributes.set("load_groups", groups_ / all);
    if (model_.experts_choose()) return b_.emit("slots_by_weight", {weight}, attributes, name_ + ".gate");
    if (model_.router == config::Router::batch_prioritized)
      return b_.emit("slots_by_priority", {expert, weight}, attributes, name_ + ".gate");
    if (is_gshard()) return b_.emit("slots_by_choice", {expert}, attributes, name_ + ".gate");
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

  void balance(const Choice& chosen, TensorId load) {
    if (chosen.scores.valid()) {
      const std::int64_t of_load = b_.tokens() * 2 / b_.program.type(load).shape[0];
      ops::Attributes counted{{"load_tokens", of_load},
                              {"total_tokens", b_.tokens() * b_.options().accumulation},
                              {"coefficient", aux_loss_coefficient()}};
      if (model_.num_experts_per_tok > 1 && !is_gshard()) counted.set("choices", model_.num_experts_per_tok);
      if (model_.experts_choose()) counted.set("choices", double(experts_ * capacity_ * groups_) / double(b_.tokens()));
      TensorId counts = is_gshard() ? first_choices(chosen.expert, of_load) : load;
      if (model_.router_aux_loss_scope == config::AuxLossScope::global && b_.options().accumulation > 1) {
        const TensorId sum =
            b_.program.add_state(ir::StateKind::load_sum, name_, b_.program.type(counts), ir::Sharding::whole(2));
        counts = b_.emit("mean_load", {sum, counts}, {}, name_ + ".aux_loss")[0];
      }
      const TensorId aux = b_.emit("aux_loss", {chosen.scores, counts}, counted, name_ + ".aux_loss")[0];
      b_.program.add_output(ir::output_name(ir::OutputKind::aux, layer_), aux);
    }
    b_.program.add_output(ir::output_name(ir::OutputKind::load, layer_), load);
  }

  // GShard's loss is (1/E) * sum over experts of f_e P_e (algorithm 1); that of the op is E * the sum.
  // Where experts choose, their loads are even, and the loss is a constant without gradient.
  double aux_loss_coefficient() const {
    if (model_.experts_choose()) return 0;
    const bool mean = model_.router_aux_loss_form == config::AuxLossForm::gshard;
    return mean ? model_.router_aux_loss_coef / double(experts_ * experts_) : model_.router_aux_loss_coef;
  }

  TensorId first_choices(TensorId expert, std::int64_t of_load) {
    ops::Attributes attributes{{"experts", experts_}};
    if (of_load < b_.tokens()) attributes.set("load_tokens", of_load);
    return b_.emit("first_choices", {expert}, attributes, name_ + ".aux_loss")[0];
  }

  void limit_logits(TensorId logits) {
    const ops::Attributes attributes{{"total_tokens", b_.tokens() * b_.options().accumulation},
                                     {"coefficient", model_.router_z_loss_coef}};
    const TensorId loss = b_.emit("z_loss", {logits}, attributes, name_ + ".z_loss")[0];
    b_.program.add_output(ir::output_name(ir::OutputKind::z_loss, layer_), loss);
  }

  Builder& b_;
  const config::Model& model_ = b_.model();
  const std::int64_t block_, groups_, capacity_;
  const std::string layer_ = fmt::format("h.{}", block_), name_ = layer_ + ".moe";
  const std::int64_t experts_ = model_.num_local_experts.value();
};

}  // namespace

Route route(Builder& builder, std::int64_t block, TensorId x, std::int64_t groups, std::int64_t capacity) {
  return RouteBuilder(builder, block, groups, capacity).build(x);
}

}  // namespace lancet::model
