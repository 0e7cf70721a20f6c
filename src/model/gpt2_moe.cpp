#include "lancet/model/gpt2_moe.h"

#include <fmt/format.h>

#include <algorithm>

#include "builder.h"

namespace lancet::model {
namespace {

const Split qkv_over_tensor{{Axis::tensor}, 3};  // queries, keys and values, each for itself

class Gpt2 : private Builder {
 public:
  using Builder::Builder;

  std::vector<Parameter> take_parameters() && {
    build();
    return std::move(parameters);
  }

  ir::Program build() {
    const std::int64_t d = model().n_embd, batch = options().batch, sequence = options().sequence;
    tokens_input = input("tokens", {batch, sequence});
    const std::int64_t rows = model().padded_vocab(options().tensor_ranks);
    const TensorId wte = weight("wte.weight", {rows, d}, {over_tensor, whole}, deviation);
    parameters.back().unused = (rows - model().vocab_size) * d;
    parameters.back().extra_rows = rows - model().padded_vocab();
    const TensorId wpe = weight("wpe.weight", {model().n_positions, d}, {whole, whole}, deviation);
    if (decodes()) cursor_ = program.add_named(TensorKind::input, "cursor", {DType::i32, {2}});
    x_ = decodes() ? emit("embedding_at", {tokens_input, wte, wpe, cursor_}, {}, "wte")[0]
                   : emit("embedding", {tokens_input, wte, wpe}, {}, "wte")[0];  // [B,S,D]
    split_sequence(x_);
    for (std::int64_t i = 0; i < model().n_layer; ++i) block(i);
    TensorId y = norm("ln_f");
    if (decodes()) y = emit("take_row", {y, cursor_}, {}, "lm_head.row")[0];  // [B,1,D]
    const TensorId logits =
        emit("linear", {y, wte}, product_of(program.type(y).shape.rows()), "lm_head")[0];  // [B,S,V']
    split_features(logits, over_tensor);
    finish(logits);
    return std::move(program);
  }

 private:
  // Layer norm of the residual x_, after adding the result of the last sublayer, delta_.
  TensorId norm(const std::string& name) {
    const TensorId gamma = constant(name + ".weight", {model().n_embd}, {whole}, 1);
    const TensorId beta = constant(name + ".bias", {model().n_embd}, {whole}, 0);
    const ops::Attributes attributes{{"eps", model().layer_norm_epsilon}};
    const auto results = delta_.valid() ? emit("add_layer_norm", {x_, delta_, gamma, beta}, attributes, name)
                                        : emit("layer_norm", {x_, gamma, beta}, attributes, name);
    if (delta_.valid()) {
      split_sequence(delta_);
      x_ = results[0];
      split_sequence(x_);
    }
    const TensorId y = results[delta_.valid() ? 1 : 0];
    split_sequence(y);
    return y;
  }

  void block(std::int64_t i) {
    const std::string name = fmt::format("h.{}", i);
    const TensorId qkv =
        widen(name + ".attn.c_attn", norm(name + ".ln_1"), 3 * model().n_embd, qkv_over_tensor);  // [B,S,3D]
    delta_ = narrow(name + ".attn.c_proj", attention(name + ".attn", qkv));
    const TensorId y = norm(name + ".ln_2");
    delta_ = model().is_moe(i) ? moe_layer(*this, i, y) : mlp(name + ".mlp", y, model().inner());
  }

  TensorId attention(const std::string& name, TensorId qkv) {
    ops::Attributes attributes{{"heads", model().n_head}};
    if (!options().deterministic) attributes.set("deterministic", std::int64_t(0));
    if (!decodes()) return emit("attention", {qkv}, attributes, name)[0];
    const ir::TensorType cache{options().dtype,
                               {options().batch, model().n_head, model().n_positions, model().n_embd / model().n_head}};
    const TensorId keys = program.add_state(ir::StateKind::keys, name, cache);
    const TensorId values = program.add_state(ir::StateKind::values, name, cache);
    for (const TensorId id : {keys, values}) annotate(id, {whole, over_tensor, whole, whole});
    return emit("attention_decode", {qkv, keys, values, cursor_}, attributes, name)[0];
  }

  void finish(TensorId logits) {
    if (gives_logits()) {
      annotate(logits, {whole, whole, whole});  // each rank chooses among all of the vocabulary
      program.add_output("logits", logits);
      return;
    }
    const TensorId targets = input("targets", program.type(tokens_input).shape);
    program.add_output("loss", loss(logits, targets));
    std::rotate(program.outputs.begin(), program.outputs.end() - 1, program.outputs.end());  // it comes first
  }

  // The loss starts the backward pass, also that of blocks of columns.
  TensorId loss(TensorId logits, TensorId targets) {
    const std::int64_t total = options().batch * options().sequence * options().accumulation;
    const std::int64_t blocks = options().tensor_ranks;
    if (blocks == 1) {
      const char* op = options().mode == Mode::train ? "cross_entropy_train" : "cross_entropy";
      return emit(op, {logits, targets}, {{"vocabulary", model().vocab_size}, {"total_tokens", total}},
                  "lm_head.loss")[0];
    }
    const TensorId stats =
        emit("logit_stats", {logits, targets}, {{"vocabulary", model().vocab_size}, {"blocks", blocks}},
             "lm_head.stats")[0];  // [blocks,B,S,2]
    return emit("loss_of_stats", {stats, targets}, {{"total_tokens", total}}, "lm_head.loss")[0];
  }

  TensorId cursor_{}, x_{}, delta_{};
};

}  // namespace

ir::Program build_forward(const config::Model& model, const BuildOptions& options) {
  return Gpt2(model, options).build();
}

std::vector<Parameter> parameters(const config::Model& model, std::int64_t tensor_ranks) {
  const BuildOptions options{.tensor_ranks = tensor_ranks};
  return Gpt2(model, options).take_parameters();
}

ParameterCount count_parameters(const config::Model& model) {
  ParameterCount count;
  const auto of_token = model.experts_choose() ? model.kept_factor() : double(model.num_experts_per_tok);
  for (const Parameter& parameter : parameters(model)) {
    const std::int64_t elements = parameter.shape.elements() - parameter.unused;
    count.total += elements;
    count.active += parameter.is_experts ? std::int64_t(double(elements / parameter.shape[0]) * of_token) : elements;
  }
  return count;
}

}  // namespace lancet::model
