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

// The weights and biases of the experts' two products.
struct Experts {
  TensorId w1, b1, w2, b2;
};

// The last number of a repeat that the program uses.
std::int32_t last_repeat(const ir::Program& program) {
  std::int32_t last = 0;
  for (const ir::Instruction& at : program.instructions) last = std::max(last, at.repeated);
  return last;
}

class MoeLayer {
 public:
  MoeLayer(Builder& builder, const std::string& layer) : b_(builder), layer_(layer), name_(layer + ".moe") {
    const BuildOptions& options = b_.options();
    const std::int64_t choices = model_.num_experts_per_tok;
    const bool keeps_all = b_.gives_logits() || options.keep_all;
    groups_ = keeps_all ? options.loads : options.groups;
    const std::int64_t tokens = b_.tokens() / groups_;
    capacity_ = keeps_all ? tokens : capacity(model_.kept_factor(), tokens, experts_, choices);
    slots_ = groups_ * capacity_;
    // Each run of tokens that will be on one rank has windows of its own.
    if (!keeps_all && !model_.capacity_factor)
      slots_ = options.loads * capacity(model_.dropless_imbalance, b_.tokens() / options.loads, experts_, choices);
  }

  TensorId build(TensorId x) {
    const Route all = route(x);
    const Experts weights = experts();
    if (slots_ == groups_ * capacity_) return through(x, all, weights);
    return in_windows(x, all, weights);
  }

 private:
  // The first window of the slots (ops/window) is an MoE layer as any other. Further ones, where an expert has more
  // choices than a window has slots, take a round each, in the body of a repeat.
  TensorId in_windows(TensorId x, const Route& all, const Experts& weights) {
    const ops::Attributes window{{"slots", slots_}};
    const auto first = b_.emit("first_window", {all.expert, all.slot, all.filled}, window, name_ + ".gate");
    b_.program.add_output(ir::output_name(ir::OutputKind::rounds, layer_), first[2]);
    const TensorId y = through(x, {all.expert, all.weight, first[0], first[1]}, weights);
    b_.repeated = last_repeat(b_.program) + 1;
    const TensorId round = b_.emit("round", {first[2]}, {}, name_ + ".rounds")[0];
    const auto next = b_.emit("window", {all.slot, all.filled, round}, window, name_ + ".rounds");
    const TensorId more = through(x, {all.expert, all.weight, next[0], next[1]}, weights);
    const TensorId sum = b_.emit("add_to", {y, more}, {}, name_ + ".rounds")[0];
    b_.repeated = 0;
    return sum;
  }

  // To the experts and back: [B,S,D] -> [B,S,D].
  TensorId through(TensorId x, const Route& to, const Experts& weights) {
    const TensorId sent = b_.emit("dispatch", {x, to.expert, to.slot, to.filled}, {{"slots", slots_}},
                                  name_ + ".dispatch")[0];  // [E,C,D]
    return b_.emit("combine", {apply(weights, sent, to.filled), to.expert, to.slot, to.weight, to.filled},
                   {{"batch", b_.options().batch}}, name_ + ".combine")[0];
  }

  Route route(TensorId x) {
    const std::string gate = name_ + ".gate";
    const TensorId weight =
        b_.add({.name = gate + ".weight", .shape = {experts_, model_.n_embd}, .deviation = b_.deviation}, DType::f32,
               {whole, whole});
    const TensorId logits = b_.emit("router", {x, weight}, {}, gate)[0];  // f32[B,S,E]
    ops::Attributes of_choice{{"k", model_.num_experts_per_tok}};
    if (model_.norm_topk_prob) of_choice.set("normalize", std::int64_t(1));
    const auto chosen = b_.emit("top_k", {logits}, of_choice, gate);
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
    return route;
  }

  // The results of the gate's op (ops/slots).
  std::vector<TensorId> gate_slots(TensorId expert, TensorId weight) {
    ops::Attributes attributes{{"capacity", capacity_}, {"groups", groups_}, {"experts", experts_}};
    if (const std::int64_t all = loads(); all > 1) attributes.set("load_groups", groups_ / all);
    if (model_.router == config::Router::batch_prioritized)
      return b_.emit("slots_by_priority", {expert, weight}, attributes, name_ + ".gate");
    return b_.emit("slots", {expert}, attributes, name_ + ".gate");
  }

  // The loads of the layer.
  std::int64_t loads() const {
    const bool global = model_.router_aux_loss_scope == config::AuxLossScope::global;
    if (!b_.trains() || global) return 1;
    const std::int64_t all = b_.options().loads;
    LANCET_CHECK(groups_ % all == 0, "{} groups have {} loads", groups_, all);
    return all;
  }

  void balance(TensorId scores, TensorId load) {
    ops::Attributes counted{{"load_tokens", b_.tokens() * 2 / b_.program.type(load).shape[0]},
                            {"total_tokens", b_.tokens() * b_.options().accumulation},
                            {"coefficient", model_.router_aux_loss_coef}};
    if (model_.num_experts_per_tok > 1) counted.set("choices", model_.num_experts_per_tok);
    const TensorId aux = b_.emit("aux_loss", {scores, load}, counted, name_ + ".aux_loss")[0];
    b_.program.add_output(ir::output_name(ir::OutputKind::aux, layer_), aux);
    b_.program.add_output(ir::output_name(ir::OutputKind::load, layer_), load);
  }

  Experts experts() {
    const std::string name = name_ + ".experts";
    const std::int64_t d = model_.n_embd, f = model_.inner();
    Experts made;
    made.w1 = b_.weight(name + ".c_fc.weight", {experts_, f, d}, {over_experts, over_tensor, whole}, b_.deviation);
    made.b1 = b_.constant(name + ".c_fc.bias", {experts_, f}, {over_experts, over_tensor}, 0);
    made.w2 =
        b_.weight(name + ".c_proj.weight", {experts_, d, f}, {over_experts, whole, over_tensor}, b_.residual_deviation);
    made.b2 = b_.constant(name + ".c_proj.bias", {experts_, d}, {over_experts, whole}, 0);
    return made;
  }

  // [E,C,D] -> [E,C,D]
  TensorId apply(const Experts& to, TensorId sent, TensorId filled) {
    const std::string name = name_ + ".experts";
    const std::int64_t choices = b_.tokens() * model_.num_experts_per_tok;
    const ops::Attributes rows{{"tokens", std::min(choices, experts_ * slots_)}};  // that the experts get
    ops::Attributes product = b_.product_of(b_.tokens());
    product.set("tokens", rows.integer("tokens"));
    const TensorId hidden = b_.emit("expert_linear", {sent, to.w1, to.b1, filled}, product, name + ".c_fc")[0];
    const TensorId active = b_.emit("gelu", {hidden, filled}, rows, name + ".gelu")[0];
    return b_.emit("expert_linear", {active, to.w2, to.b2, filled}, product, name + ".c_proj")[0];
  }

  Builder& b_;
  const config::Model& model_ = b_.model();
  const std::string layer_, name_;
  const std::int64_t experts_ = model_.num_local_experts.value();
  std::int64_t groups_ = 1;    // of neighbouring sequences; capacity is counted in each
  std::int64_t capacity_ = 1;  // slots of an expert for a group
  std::int64_t slots_ = 1;     // of an expert's buffer
};

}  // namespace

TensorId moe_layer(Builder& builder, const std::string& name, TensorId x) { return MoeLayer(builder, name).build(x); }

}  // namespace lancet::model
