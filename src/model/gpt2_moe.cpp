#include "lancet/model/gpt2_moe.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lancet/base/check.h"
#include "lancet/ops/catalogue.h"

namespace lancet::model {
namespace {

using ir::TensorId;
using ir::TensorKind;
using mesh::Axis;
using mesh::Split;

// Annotations: how a dimension is split, on any mesh.
const Split whole{}, over_tensor{{Axis::tensor}}, over_experts{{Axis::expert}}, over_batch{{Axis::data, Axis::expert}};
const Split qkv_over_tensor{{Axis::tensor}, 3};  // queries, keys and values, each for itself

class Builder {
 public:
  Builder(const config::Model& model, const BuildOptions& options) : model_(model), options_(options) {
    program_.name = "gpt2-moe";
  }

  std::vector<Parameter> parameters() && {
    build();
    return std::move(parameters_);
  }

  ir::Program build() {
    const std::int64_t d = model_.n_embd, batch = options_.batch, sequence = options_.sequence;
    tokens_ = input("tokens", {batch, sequence});
    const std::int64_t rows = model_.padded_vocab(options_.vocabulary_shards);
    const TensorId wte = weight("wte.weight", {rows, d}, {over_tensor, whole}, deviation_);
    parameters_.back().unused = (rows - model_.vocab_size) * d;
    parameters_.back().extra_rows = rows - model_.padded_vocab();
    const TensorId wpe = weight("wpe.weight", {model_.n_positions, d}, {whole, whole}, deviation_);
    if (decodes()) cursor_ = program_.add_named(TensorKind::input, "cursor", {DType::i32, {2}});
    x_ = decodes() ? emit("embedding_at", {tokens_, wte, wpe, cursor_}, {}, "wte")[0]
                   : emit("embedding", {tokens_, wte, wpe}, {}, "wte")[0];  // [B,S,D]
    split_sequence(x_);
    for (std::int64_t i = 0; i < model_.n_layer; ++i) block(i);
    TensorId y = norm("ln_f");
    if (decodes()) y = emit("take_row", {y, cursor_}, {}, "lm_head.row")[0];  // [B,1,D]
    const TensorId logits =
        emit("linear", {y, wte}, product_of(program_.type(y).shape.rows()), "lm_head")[0];  // [B,S,V']
    split_features(logits, over_tensor);
    finish(logits);
    return std::move(program_);
  }

 private:
  bool decodes() const { return options_.mode == Mode::decode; }
  // Attributes of a product with this many rows. When decoding a token, a product does little but read its weights.
  ops::Attributes product_of(std::int64_t rows) const {
    return decodes() && rows <= 2 ? ops::Attributes{{"streamed", std::int64_t(1)}} : ops::Attributes{};
  }
  bool gives_logits() const { return decodes() || options_.mode == Mode::generate; }

  std::vector<TensorId> emit(std::string_view op, std::vector<TensorId> operands, ops::Attributes attributes,
                             std::string label) {
    return ops::append(program_, op, std::move(operands), std::move(attributes), ir::Role::forward, std::move(label));
  }
  void annotate(TensorId id, std::vector<Split> dimensions) {
    program_[id].sharding = mesh::Sharding{std::move(dimensions), {}};
  }
  // Sequences of the batch. All ranks read those that are generated.
  TensorId input(const char* name, Shape shape) {
    const TensorId id = program_.add_named(TensorKind::input, name, {DType::i32, shape});
    if (!gives_logits()) annotate(id, {over_batch, whole});
    return id;
  }
  // Under sequence parallelism: what lies between the pairs of products [B,S,D] is split along the sequence, and what a
  // pair has in its middle along the features (Korthikanti et al., Reducing Activation Recomputation, section 4.2.2).
  void split_sequence(TensorId id) {
    if (splits_sequence()) annotate(id, {over_batch, over_tensor, whole});
  }
  void split_features(TensorId id, const Split& features) {
    if (splits_sequence()) annotate(id, {over_batch, whole, features});
  }
  bool splits_sequence() const { return options_.sequence_parallel && !gives_logits(); }

  // Every parameter is annotated, so that all Programs of a model spread it alike.
  TensorId add(Parameter parameter, DType dtype, std::vector<Split> dimensions) {
    parameter.is_experts = dimensions[0] == over_experts;
    const TensorId id = program_.add_named(TensorKind::parameter, parameter.name, {dtype, parameter.shape});
    annotate(id, std::move(dimensions));
    parameters_.push_back(std::move(parameter));
    return id;
  }
  // A product's weight, in the activations' type.
  TensorId weight(const std::string& name, Shape shape, std::vector<Split> dimensions, float deviation) {
    return add({.name = name, .shape = shape, .deviation = deviation}, options_.dtype, std::move(dimensions));
  }
  // A bias, or the scale of a layer norm: `value` at first.
  TensorId constant(const std::string& name, Shape shape, std::vector<Split> dimensions, float value) {
    return add({.name = name, .shape = shape, .value = value}, DType::f32, std::move(dimensions));
  }

  // The first product of a pair, whose results tensor splits, and the second, which adds up over it (Megatron-LM,
  // section 3).
  TensorId widen(const std::string& name, TensorId x, std::int64_t out, const Split& features = over_tensor) {
    const TensorId y = linear(name, x, out, deviation_, {features, whole}, features);
    split_features(y, features);
    return y;
  }
  TensorId narrow(const std::string& name, TensorId x) {
    return linear(name, x, model_.n_embd, residual_deviation_, {whole, over_tensor}, whole);
  }
  TensorId linear(const std::string& name, TensorId x, std::int64_t out, float deviation, std::vector<Split> of_weight,
                  const Split& of_bias) {
    const std::int64_t in = program_.type(x).shape.back();
    const TensorId w = weight(name + ".weight", {out, in}, std::move(of_weight), deviation);
    const TensorId b = constant(name + ".bias", {out}, {of_bias}, 0);
    return emit("linear", {x, w, b}, product_of(program_.type(x).shape.rows()), name)[0];
  }

  // Layer norm of the residual x_, after adding the result of the last sublayer, delta_.
  TensorId norm(const std::string& name) {
    const TensorId gamma = constant(name + ".weight", {model_.n_embd}, {whole}, 1);
    const TensorId beta = constant(name + ".bias", {model_.n_embd}, {whole}, 0);
    const ops::Attributes attributes{{"eps", model_.layer_norm_epsilon}};
    const auto results = delta_.valid() ? emit("add_layer_norm", {x_, delta_, gamma, beta}, attributes, name)
                                        : emit("layer_norm", {x_, gamma, beta}, attributes, name);
    if (delta_.valid()) {
      split_sequence(delta_);
      split_sequence(x_ = results[0]);
    }
    const TensorId y = results[delta_.valid() ? 1 : 0];
    split_sequence(y);
    return y;
  }

  void block(std::int64_t i) {
    const std::string name = fmt::format("h.{}", i);
    const TensorId qkv =
        widen(name + ".attn.c_attn", norm(name + ".ln_1"), 3 * model_.n_embd, qkv_over_tensor);  // [B,S,3D]
    delta_ = narrow(name + ".attn.c_proj", attention(name + ".attn", qkv));
    const TensorId y = norm(name + ".ln_2");
    delta_ = model_.is_moe(i) ? moe(name, y) : mlp(name + ".mlp", y);
  }

  TensorId attention(const std::string& name, TensorId qkv) {
    ops::Attributes attributes{{"heads", model_.n_head}};
    if (!options_.deterministic) attributes.set("deterministic", std::int64_t(0));
    if (!decodes()) return emit("attention", {qkv}, attributes, name)[0];
    const ir::TensorType cache{options_.dtype,
                               {options_.batch, model_.n_head, model_.n_positions, model_.n_embd / model_.n_head}};
    const TensorId keys = program_.add_state(ir::StateKind::keys, name, cache);
    const TensorId values = program_.add_state(ir::StateKind::values, name, cache);
    for (const TensorId id : {keys, values}) annotate(id, {whole, over_tensor, whole, whole});
    return emit("attention_decode", {qkv, keys, values, cursor_}, attributes, name)[0];
  }

  TensorId mlp(const std::string& name, TensorId y) {
    const TensorId hidden = widen(name + ".c_fc", y, model_.inner());  // [B,S,F]
    return narrow(name + ".c_proj", emit("gelu", {hidden}, {}, name + ".gelu")[0]);
  }

  TensorId moe(const std::string& layer, TensorId y) {
    const std::string name = layer + ".moe";
    const std::int64_t d = model_.n_embd, f = model_.inner(), experts = model_.num_local_experts.value();
    const std::int64_t tokens = options_.batch * options_.sequence, choices = model_.num_experts_per_tok;
    const bool keeps_all = gives_logits() || options_.keep_all;
    const std::int64_t groups = keeps_all ? options_.loads : options_.groups;
    const std::int64_t of_group =
        keeps_all ? tokens / groups : capacity(model_.capacity_factor, tokens / groups, experts, choices);
    const std::int64_t slots = groups * of_group;

    const TensorId gate = add({.name = name + ".gate.weight", .shape = {experts, d}, .deviation = deviation_},
                              DType::f32, {whole, whole});
    const TensorId logits = emit("router", {y, gate}, {}, name + ".gate")[0];             // f32[B,S,E]
    const ops::Attributes rows{{"tokens", std::min(tokens * choices, experts * slots)}};  // that the experts get
    ops::Attributes product = product_of(tokens);
    product.set("tokens", rows.integer("tokens"));
    ops::Attributes of_choice{{"k", choices}};
    if (model_.norm_topk_prob) of_choice.set("normalize", std::int64_t(1));
    const auto chosen = emit("top_k", {logits}, of_choice, name + ".gate");
    const TensorId expert = chosen[0], weighed = chosen[1];  // [B*S,K]
    ops::Attributes of_gate{{"capacity", of_group}, {"groups", groups}, {"experts", experts}};
    if (const std::int64_t loads = loads_of(groups); loads > 1) of_gate.set("load_groups", groups / loads);
    const bool prioritized = model_.router == config::Router::batch_prioritized;
    const auto gated = prioritized ? emit("slots_by_priority", {expert, weighed}, of_gate, name + ".gate")
                                   : emit("slots", {expert}, of_gate, name + ".gate");
    const TensorId slot = gated[0], filled = gated[2];  // i32[B*S,K], i32[E,2]
    if (options_.inspect) {
      program_.add_output("score." + layer, logits);
      program_.add_output("probability." + layer, weighed);
      program_.add_output("expert." + layer, expert);
      program_.add_output("slot." + layer, slot);
      program_.add_output("filled." + layer, filled);
    }
    if (options_.mode == Mode::train) balance(layer, chosen[2], gated[3]);
    const TensorId sent =
        emit("dispatch", {y, expert, slot, filled}, {{"slots", slots}}, name + ".dispatch")[0];  // [E,C,D]

    const TensorId w1 =
        weight(name + ".experts.c_fc.weight", {experts, f, d}, {over_experts, over_tensor, whole}, deviation_);
    const TensorId b1 = constant(name + ".experts.c_fc.bias", {experts, f}, {over_experts, over_tensor}, 0);
    const TensorId w2 = weight(name + ".experts.c_proj.weight", {experts, d, f}, {over_experts, whole, over_tensor},
                               residual_deviation_);
    const TensorId b2 = constant(name + ".experts.c_proj.bias", {experts, d}, {over_experts, whole}, 0);
    const TensorId hidden = emit("expert_linear", {sent, w1, b1, filled}, product, name + ".experts.c_fc")[0];
    const TensorId active = emit("gelu", {hidden, filled}, rows, name + ".experts.gelu")[0];
    const TensorId made = emit("expert_linear", {active, w2, b2, filled}, product, name + ".experts.c_proj")[0];
    return emit("combine", {made, expert, slot, weighed, filled}, {{"batch", options_.batch}},
                name + ".combine")[0];  // [B,S,D]
  }

  // The loads of a layer with that many groups.
  std::int64_t loads_of(std::int64_t groups) const {
    const bool global = model_.router_aux_loss_scope == config::AuxLossScope::global;
    if (options_.mode != Mode::train || global) return 1;
    LANCET_CHECK(groups % options_.loads == 0, "{} groups have {} loads", groups, options_.loads);
    return options_.loads;
  }

  void balance(const std::string& layer, TensorId scores, TensorId load) {
    const std::int64_t tokens = options_.batch * options_.sequence;
    ops::Attributes counted{{"load_tokens", tokens * 2 / program_.type(load).shape[0]},
                            {"total_tokens", tokens * options_.accumulation},
                            {"coefficient", model_.router_aux_loss_coef}};
    if (model_.num_experts_per_tok > 1) counted.set("choices", model_.num_experts_per_tok);
    const TensorId aux = emit("aux_loss", {scores, load}, counted, layer + ".moe.aux_loss")[0];
    program_.add_output(ir::output_name(ir::OutputKind::aux, layer), aux);
    program_.add_output(ir::output_name(ir::OutputKind::load, layer), load);
  }

  void finish(TensorId logits) {
    if (gives_logits()) {
      annotate(logits, {whole, whole, whole});  // each rank chooses among all of the vocabulary
      program_.add_output("logits", logits);
      return;
    }
    const TensorId targets = input("targets", program_.type(tokens_).shape);
    program_.add_output("loss", loss(logits, targets));
    std::rotate(program_.outputs.begin(), program_.outputs.end() - 1, program_.outputs.end());  // it comes first
  }

  // The loss starts the backward pass, also that of blocks of columns.
  TensorId loss(TensorId logits, TensorId targets) {
    const std::int64_t total = options_.batch * options_.sequence * options_.accumulation;
    const std::int64_t blocks = options_.vocabulary_shards;
    if (blocks == 1) {
      const char* op = options_.mode == Mode::train ? "cross_entropy_train" : "cross_entropy";
      return emit(op, {logits, targets}, {{"vocabulary", model_.vocab_size}, {"total_tokens", total}},
                  "lm_head.loss")[0];
    }
    const TensorId stats =
        emit("logit_stats", {logits, targets}, {{"vocabulary", model_.vocab_size}, {"blocks", blocks}},
             "lm_head.stats")[0];  // [blocks,B,S,2]
    return emit("loss_of_stats", {stats, targets}, {{"total_tokens", total}}, "lm_head.loss")[0];
  }

  const config::Model& model_;
  const BuildOptions& options_;
  // GPT-2's deviations: of weights, and of those whose product is added to the residual stream.
  const float deviation_ = float(model_.initializer_range);
  const float residual_deviation_ = deviation_ / std::sqrt(2.f * float(model_.n_layer));
  ir::Program program_;
  std::vector<Parameter> parameters_;
  TensorId tokens_{}, cursor_{}, x_{}, delta_{};
};

}  // namespace

ir::Program build_forward(const config::Model& model, const BuildOptions& options) {
  return Builder(model, options).build();
}

std::int64_t capacity(double capacity_factor, std::int64_t tokens, std::int64_t experts, std::int64_t choices) {
  // The small subtraction prevents that 1.25 * 1024 / 4, which is exactly 320, is rounded up to 321.
  const double exact = capacity_factor * double(choices * tokens) / double(experts);
  return static_cast<std::int64_t>(std::clamp(std::ceil(exact - 1e-9 * exact), 1.0, double(tokens)));
}

std::vector<Parameter> parameters(const config::Model& model, std::int64_t vocabulary_shards) {
  return Builder(model, {.vocabulary_shards = vocabulary_shards}).parameters();
}

ParameterCount count_parameters(const config::Model& model) {
  ParameterCount count;
  for (const Parameter& parameter : parameters(model)) {
    const std::int64_t elements = parameter.shape.elements() - parameter.unused;
    count.total += elements;
    count.active += parameter.is_experts ? elements / parameter.shape[0] * model.num_experts_per_tok : elements;
  }
  return count;
}

}  // namespace lancet::model
