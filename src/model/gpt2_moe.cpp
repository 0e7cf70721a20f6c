#include "lancet/model/gpt2_moe.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lancet/ops/catalogue.h"

namespace lancet::model {
namespace {

using ir::Role;
using ir::TensorId;
using ir::TensorKind;

class Builder {
 public:
  Builder(const config::Model& model, const BuildOptions& options) : model_(model), options_(options) {
    program_.name = "gpt2-moe";
    program_.attributes = {{"ranks", std::int64_t(options.ranks)}};
  }

  ir::Program build() {
    const std::int64_t d = model_.n_embd, batch = options_.batch, sequence = options_.sequence;
    tokens_ = program_.add_named(TensorKind::input, "tokens", {DType::i32, {batch, sequence}});
    const TensorId wte = weight("wte.weight", {model_.padded_vocab(), d});
    const TensorId wpe = weight("wpe.weight", {model_.n_positions, d});
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
    return ops::append(program_, op, std::move(operands), std::move(attributes), Role::forward, std::move(label));
  }
  // A product's weight, in the activations' type.
  TensorId weight(const std::string& name, Shape shape, bool local = false) {
    return program_.add_named(TensorKind::parameter, name, {options_.dtype, shape}, local);
  }
  TensorId parameter(const std::string& name, Shape shape, bool local = false) {
    return program_.add_named(TensorKind::parameter, name, {DType::f32, shape}, local);
  }

  TensorId linear(const std::string& name, TensorId x, std::int64_t out) {
    const std::int64_t in = program_.type(x).shape.back();
    const TensorId w = weight(name + ".weight", {out, in});
    const TensorId b = parameter(name + ".bias", {out});
    return emit("linear", {x, w, b}, product_of(program_.type(x).shape.rows()), name)[0];
  }

  // Layer norm of the residual x_, after adding the result of the last sublayer, delta_.
  TensorId norm(const std::string& name) {
    const TensorId gamma = parameter(name + ".weight", {model_.n_embd});
    const TensorId beta = parameter(name + ".bias", {model_.n_embd});
    const ops::Attributes attributes{{"eps", model_.layer_norm_epsilon}};
    if (!delta_.valid()) return emit("layer_norm", {x_, gamma, beta}, attributes, name)[0];
    const auto results = emit("add_layer_norm", {x_, delta_, gamma, beta}, attributes, name);
    x_ = results[0];
    return results[1];
  }

  void block(std::int64_t i) {
    const std::string name = fmt::format("h.{}", i);
    const std::int64_t d = model_.n_embd;
    const TensorId qkv = linear(name + ".attn.c_attn", norm(name + ".ln_1"), 3 * d);  // [B,S,3D]
    const TensorId heads = attention(name + ".attn", qkv);
    delta_ = linear(name + ".attn.c_proj", heads, d);
    const TensorId y = norm(name + ".ln_2");
    delta_ = model_.is_moe(i) ? moe(name, y) : mlp(name + ".mlp", y);
  }

  TensorId attention(const std::string& name, TensorId qkv) {
    const ops::Attributes attributes{{"heads", model_.n_head}};
    if (!decodes()) return emit("attention", {qkv}, attributes, name)[0];
    const ir::TensorType cache{options_.dtype,
                               {options_.batch, model_.n_head, model_.n_positions, model_.n_embd / model_.n_head}};
    const TensorId keys = program_.add_named(TensorKind::state, name + ".keys", cache);
    const TensorId values = program_.add_named(TensorKind::state, name + ".values", cache);
    return emit("attention_decode", {qkv, keys, values, cursor_}, attributes, name)[0];
  }

  TensorId mlp(const std::string& name, TensorId y) {
    const TensorId hidden = linear(name + ".c_fc", y, model_.inner());  // [B,S,F]
    const TensorId active = emit("gelu", {hidden}, {}, name + ".gelu")[0];
    return linear(name + ".c_proj", active, model_.n_embd);
  }

  TensorId moe(const std::string& layer, TensorId y) {
    const std::string name = layer + ".moe";
    const std::int64_t d = model_.n_embd, f = model_.inner();
    const std::int64_t experts = model_.experts(options_.ranks), here = model_.experts_on_rank(options_.ranks);
    const std::int64_t tokens = options_.batch * options_.sequence;
    const std::int64_t slots =
        gives_logits() || options_.keep_all ? tokens : capacity(model_.capacity_factor, tokens, experts);

    const TensorId gate = parameter(name + ".gate.weight", {experts, d});
    const TensorId logits = emit("router", {y, gate}, {}, name + ".gate")[0];     // f32[B,S,E]
    const ops::Attributes filled{{"tokens", std::min(tokens, experts * slots)}};  // rows of this rank, spread evenly
    ops::Attributes expert_product = filled;
    if (!product_of(tokens * options_.ranks).items().empty()) expert_product.set("streamed", std::int64_t(1));
    const char* gate_op = model_.router == config::Router::switch_top1 ? "switch_gate" : "batch_prioritized_gate";
    const auto gated = emit(gate_op, {logits}, {{"capacity", slots}}, name + ".gate");
    const TensorId route = gated[0];
    if (options_.inspect) program_.outputs.push_back({"route." + layer, route});
    if (options_.mode == Mode::train) balance(layer, gated[1], gated[2]);
    const TensorId rows =
        emit("all_to_all_counts", {route}, {{"ranks", std::int64_t(options_.ranks)}}, name + ".counts")[0];
    const TensorId sent = emit("dispatch", {y, route}, {{"capacity", slots}}, name + ".dispatch")[0];    // [E,C,D]
    const TensorId received = emit("all_to_all", {sent, route, rows}, filled, name + ".all_to_all")[0];  // [E/W,W*C,D]

    const TensorId w1 = weight(name + ".experts.c_fc.weight", {here, f, d}, true);
    const TensorId b1 = parameter(name + ".experts.c_fc.bias", {here, f}, true);
    const TensorId w2 = weight(name + ".experts.c_proj.weight", {here, d, f}, true);
    const TensorId b2 = parameter(name + ".experts.c_proj.bias", {here, d}, true);
    const TensorId hidden = emit("expert_linear", {received, w1, b1, rows}, expert_product, name + ".experts.c_fc")[0];
    const TensorId active = emit("gelu", {hidden, rows}, filled, name + ".experts.gelu")[0];
    const TensorId made = emit("expert_linear", {active, w2, b2, rows}, expert_product, name + ".experts.c_proj")[0];
    const TensorId back =
        emit("all_to_all_back", {made, route, rows}, filled, name + ".all_to_all_back")[0];    // [E,C,D]
    return emit("combine", {back, route}, {{"batch", options_.batch}}, name + ".combine")[0];  // [B,S,D]
  }

  void balance(const std::string& layer, TensorId probabilities, TensorId load) {
    const std::int64_t tokens = options_.batch * options_.sequence, all = tokens * options_.ranks;
    const bool global = model_.router_aux_loss_scope == config::AuxLossScope::global && options_.ranks > 1;
    if (global) load = emit("all_reduce", {load}, {}, layer + ".moe.load")[0];
    const TensorId aux = emit("aux_loss", {probabilities, load},
                              {{"load_tokens", global ? all : tokens},
                               {"total_tokens", all * options_.accumulation},
                               {"coefficient", model_.router_aux_loss_coef}},
                              layer + ".moe.aux_loss")[0];
    program_.outputs.push_back({"aux." + layer, aux});
    program_.outputs.push_back({"load." + layer, load});
  }

  void finish(TensorId logits) {
    if (gives_logits()) {
      program_.outputs.push_back({"logits", logits});
      return;
    }
    const TensorId targets = program_.add_named(TensorKind::input, "targets", program_.type(tokens_));
    const std::int64_t total = options_.batch * options_.sequence * options_.ranks * options_.accumulation;
    const char* op = options_.mode == Mode::train ? "cross_entropy_train" : "cross_entropy";
    const auto loss =
        emit(op, {logits, targets}, {{"vocabulary", model_.vocab_size}, {"total_tokens", total}}, "lm_head.loss");
    program_.outputs.insert(program_.outputs.begin(), {"loss", loss[0]});
  }

  const config::Model& model_;
  const BuildOptions& options_;
  ir::Program program_;
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

bool decays(std::string_view parameter) {
  return parameter.ends_with(".weight") && parameter.find("ln_") == std::string_view::npos;
}

ParameterCount count_parameters(const config::Model& model, int ranks) {
  BuildOptions options;
  options.ranks = ranks;
  const ir::Program program = build_forward(model, options);
  ParameterCount count;
  for (const ir::Tensor& tensor : program.tensors) {
    if (tensor.kind != TensorKind::parameter) continue;
    std::int64_t elements = tensor.type.shape.elements();
    if (tensor.name == "wte.weight") elements = model.vocab_size * model.n_embd;  // without the padding
    count.total += tensor.local ? elements * ranks : elements;
    count.active += tensor.local ? elements / tensor.type.shape[0] * model.num_experts_per_tok : elements;
  }
  return count;
}

}  // namespace lancet::model
