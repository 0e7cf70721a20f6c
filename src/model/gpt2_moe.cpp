#include "lancet/model/gpt2_moe.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lancet/base/check.h"
#include "lancet/ir/groups.h"
#include "lancet/ops/catalogue.h"

namespace lancet::model {
namespace {

using ir::TensorId;
using ir::TensorKind;

class Builder {
 public:
  Builder(const config::Model& model, const BuildOptions& options) : model_(model), options_(options) {
    program_.name = "gpt2-moe";
    program_.attributes = {{"ranks", std::int64_t(options.mesh.ranks())}};
  }

  std::vector<Parameter> parameters() && {
    build();
    return std::move(parameters_);
  }

  ir::Program build() {
    const std::int64_t d = model_.n_embd, batch = options_.batch, sequence = options_.sequence;
    tokens_ = program_.add_named(TensorKind::input, "tokens", {DType::i32, {batch, sequence}});
    const std::int64_t rows = model_.padded_vocab(options_.vocabulary_shards);
    const TensorId wte = weight("wte.weight", {rows, d}, deviation_);
    parameters_.back().unused = (rows - model_.vocab_size) * d;
    parameters_.back().extra_rows = rows - model_.padded_vocab();
    const TensorId wpe = weight("wpe.weight", {model_.n_positions, d}, deviation_);
    if (decodes()) cursor_ = program_.add_named(TensorKind::input, "cursor", {DType::i32, {2}});
    x_ = decodes() ? emit("embedding_at", {tokens_, wte, wpe, cursor_}, {}, "wte")[0]
                   : emit("embedding", {tokens_, wte, wpe}, {}, "wte")[0];  // [B,S,D]
    for (std::int64_t i = 0; i < model_.n_layer; ++i) block(i);
    TensorId y = norm("ln_f");
    if (decodes()) y = emit("take_row", {y, cursor_}, {}, "lm_head.row")[0];  // [B,1,D]
    const TensorId logits =
        emit("linear", {y, wte}, product_of(program_.type(y).shape.rows()), "lm_head")[0];  // [B,S,V']
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
  TensorId add(Parameter parameter, DType dtype) {
    parameters_.push_back(parameter);
    std::optional<mesh::Sharding> sharding;
    if (parameter.is_experts && options_.mesh[mesh::Axis::expert] > 1) {
      sharding = mesh::Sharding::whole(std::size_t(parameter.shape.rank()));
      sharding->dimensions[0].axes = {mesh::Axis::expert};
    }
    return program_.add_named(TensorKind::parameter, parameter.name, {dtype, parameter.shape}, std::move(sharding));
  }
  // A product's weight, in the activations' type.
  TensorId weight(const std::string& name, Shape shape, float deviation, bool is_experts = false) {
    return add({.name = name, .shape = shape, .is_experts = is_experts, .deviation = deviation}, options_.dtype);
  }
  // A bias, or the scale of a layer norm: `value` at first.
  TensorId constant(const std::string& name, Shape shape, float value, bool is_experts = false) {
    return add({.name = name, .shape = shape, .is_experts = is_experts, .value = value}, DType::f32);
  }

  TensorId linear(const std::string& name, TensorId x, std::int64_t out, float deviation) {
    const std::int64_t in = program_.type(x).shape.back();
    const TensorId w = weight(name + ".weight", {out, in}, deviation);
    const TensorId b = constant(name + ".bias", {out}, 0);
    return emit("linear", {x, w, b}, product_of(program_.type(x).shape.rows()), name)[0];
  }

  // Layer norm of the residual x_, after adding the result of the last sublayer, delta_.
  TensorId norm(const std::string& name) {
    const TensorId gamma = constant(name + ".weight", {model_.n_embd}, 1);
    const TensorId beta = constant(name + ".bias", {model_.n_embd}, 0);
    const ops::Attributes attributes{{"eps", model_.layer_norm_epsilon}};
    if (!delta_.valid()) return emit("layer_norm", {x_, gamma, beta}, attributes, name)[0];
    const auto results = emit("add_layer_norm", {x_, delta_, gamma, beta}, attributes, name);
    x_ = results[0];
    return results[1];
  }

  void block(std::int64_t i) {
    const std::string name = fmt::format("h.{}", i);
    const std::int64_t d = model_.n_embd;
    const TensorId qkv = linear(name + ".attn.c_attn", norm(name + ".ln_1"), 3 * d, deviation_);  // [B,S,3D]
    const TensorId heads = attention(name + ".attn", qkv);
    delta_ = linear(name + ".attn.c_proj", heads, d, residual_deviation_);
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
    return emit("attention_decode", {qkv, keys, values, cursor_}, attributes, name)[0];
  }

  TensorId mlp(const std::string& name, TensorId y) {
    const TensorId hidden = linear(name + ".c_fc", y, model_.inner(), deviation_);  // [B,S,F]
    const TensorId active = emit("gelu", {hidden}, {}, name + ".gelu")[0];
    return linear(name + ".c_proj", active, model_.n_embd, residual_deviation_);
  }

  TensorId moe(const std::string& layer, TensorId y) {
    const std::string name = layer + ".moe";
    const std::int64_t d = model_.n_embd, f = model_.inner();
    const int among = options_.mesh[mesh::Axis::expert];  // ranks that the experts are split among
    const std::int64_t experts = model_.experts(among), here = model_.experts_on_rank(among);
    const std::int64_t tokens = options_.batch * options_.sequence;
    const bool keeps_all = gives_logits() || options_.keep_all;
    const std::int64_t groups = keeps_all ? 1 : options_.groups;
    const std::int64_t of_group = keeps_all ? tokens : capacity(model_.capacity_factor, tokens / groups, experts);
    const std::int64_t slots = groups * of_group;

    const TensorId gate =
        add({.name = name + ".gate.weight", .shape = {experts, d}, .deviation = deviation_}, DType::f32);
    const TensorId logits = emit("router", {y, gate}, {}, name + ".gate")[0];        // f32[B,S,E]
    const ops::Attributes rows_here{{"tokens", std::min(tokens, experts * slots)}};  // of this rank, spread evenly
    ops::Attributes sent_rows = rows_here, counts{{"ranks", std::int64_t(among)}}, expert_product = rows_here;
    ir::set_group(sent_rows, options_.mesh, {mesh::Axis::expert});
    ir::set_group(counts, options_.mesh, {mesh::Axis::expert});
    if (!product_of(tokens * among).items().empty()) expert_product.set("streamed", std::int64_t(1));
    const char* gate_op = model_.router == config::Router::switch_top1 ? "switch_gate" : "batch_prioritized_gate";
    ops::Attributes gate_attributes{{"capacity", of_group}, {"groups", groups}};
    if (const std::int64_t loads = loads_of(groups); loads > 1) gate_attributes.set("load_groups", groups / loads);
    const auto gated = emit(gate_op, {logits}, gate_attributes, name + ".gate");
    const TensorId expert = gated[0], slot = gated[1], probability = gated[2];  // [B*S,1]
    const TensorId filled = gated[4];                                           // i32[E,2]
    if (options_.inspect) {
      program_.add_output("expert." + layer, expert);
      program_.add_output("slot." + layer, slot);
      program_.add_output("filled." + layer, filled);
    }
    if (options_.mode == Mode::train) balance(layer, gated[5], gated[6]);
    const bool alone = among == 1;  // the slots are the experts' buffers: nothing travels
    const TensorId rows = alone ? filled : emit("all_to_all_counts", {filled}, counts, name + ".counts")[0];
    const TensorId sent =
        emit("dispatch", {y, expert, slot, filled}, {{"slots", slots}}, name + ".dispatch")[0];  // [E,C,D]
    const TensorId received =
        alone ? sent : emit("all_to_all", {sent, filled, rows}, sent_rows, name + ".all_to_all")[0];  // [E/W,W*C,D]

    const TensorId w1 = weight(name + ".experts.c_fc.weight", {here, f, d}, deviation_, true);
    const TensorId b1 = constant(name + ".experts.c_fc.bias", {here, f}, 0, true);
    const TensorId w2 = weight(name + ".experts.c_proj.weight", {here, d, f}, residual_deviation_, true);
    const TensorId b2 = constant(name + ".experts.c_proj.bias", {here, d}, 0, true);
    const TensorId hidden = emit("expert_linear", {received, w1, b1, rows}, expert_product, name + ".experts.c_fc")[0];
    const TensorId active = emit("gelu", {hidden, rows}, rows_here, name + ".experts.gelu")[0];
    const TensorId made = emit("expert_linear", {active, w2, b2, rows}, expert_product, name + ".experts.c_proj")[0];
    const TensorId back =
        alone ? made
              : emit("all_to_all_back", {made, filled, rows}, sent_rows, name + ".all_to_all_back")[0];  // [E,C,D]
    return emit("combine", {back, expert, slot, probability, filled}, {{"batch", options_.batch}},
                name + ".combine")[0];  // [B,S,D]
  }

  // The loads of a layer with that many groups.
  std::int64_t loads_of(std::int64_t groups) const {
    const bool global = model_.router_aux_loss_scope == config::AuxLossScope::global;
    if (options_.mode != Mode::train || global) return 1;
    LANCET_CHECK(groups % options_.loads == 0, "{} groups have {} loads", groups, options_.loads);
    return options_.loads;
  }

  void balance(const std::string& layer, TensorId probabilities, TensorId load) {
    const std::int64_t tokens = options_.batch * options_.sequence, ranks = options_.mesh.ranks();
    const bool global = model_.router_aux_loss_scope == config::AuxLossScope::global && ranks > 1;
    if (global) load = emit("all_reduce", {load}, {}, layer + ".moe.load")[0];
    const TensorId aux = emit("aux_loss", {probabilities, load},
                              {{"load_tokens", (global ? tokens * ranks : tokens) * 2 / program_.type(load).shape[0]},
                               {"total_tokens", tokens * ranks * options_.accumulation},
                               {"coefficient", model_.router_aux_loss_coef}},
                              layer + ".moe.aux_loss")[0];
    program_.add_output(ir::output_name(ir::OutputKind::aux, layer), aux);
    program_.add_output(ir::output_name(ir::OutputKind::load, layer), load);
  }

  void finish(TensorId logits) {
    if (gives_logits()) {
      program_.add_output("logits", logits);
      return;
    }
    const TensorId targets = program_.add_named(TensorKind::input, "targets", program_.type(tokens_));
    program_.add_output("loss", loss(logits, targets));
    std::rotate(program_.outputs.begin(), program_.outputs.end() - 1, program_.outputs.end());  // it comes first
  }

  // The loss starts the backward pass, also that of blocks of columns.
  TensorId loss(TensorId logits, TensorId targets) {
    const std::int64_t total = options_.batch * options_.sequence * options_.mesh.ranks() * options_.accumulation;
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

std::int64_t capacity(double capacity_factor, std::int64_t tokens, std::int64_t experts) {
  // The small subtraction prevents that 1.25 * 1024 / 4, which is exactly 320, is rounded up to 321.
  const double exact = capacity_factor * double(tokens) / double(experts);
  return static_cast<std::int64_t>(std::clamp(std::ceil(exact - 1e-9 * exact), 1.0, double(tokens)));
}

std::vector<Parameter> parameters(const config::Model& model, const mesh::Mesh& mesh) {
  config::Model whole = model;
  if (model.has_moe()) whole.num_local_experts = model.experts(mesh[mesh::Axis::expert]);
  return Builder(whole, {.vocabulary_shards = mesh[mesh::Axis::tensor]}).parameters();
}

ParameterCount count_parameters(const config::Model& model, const mesh::Mesh& mesh) {
  ParameterCount count;
  for (const Parameter& parameter : parameters(model, mesh)) {
    const std::int64_t elements = parameter.shape.elements() - parameter.unused;
    count.total += elements;
    count.active += parameter.is_experts ? elements / parameter.shape[0] * model.num_experts_per_tok : elements;
  }
  return count;
}

}  // namespace lancet::model
