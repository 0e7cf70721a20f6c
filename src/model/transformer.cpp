#include "lancet/model/transformer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "builder.h"

namespace lancet::model {
namespace {

class Transformer : private Builder {
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
    const TensorId wte = vocabulary_rows("wte.weight", {rows, d});
    const TensorId wpe = family().positions == config::Positions::learned
                             ? weight("wpe.weight", {model().n_positions, d}, {whole, whole}, deviation)
                             : TensorId{};
    if (decodes()) cursor_ = program.add_named(TensorKind::input, "cursor", {DType::i32, {2}});
    x_ = embedded(wte, wpe);  // [B,S,D]
    split_sequence(x_);
    for (std::int64_t i = 0; i < model().n_layer; ++i) block(i);
    TensorId y = norm("ln_f");
    if (decodes()) y = emit("take_row", {y, cursor_}, {}, "lm_head.row")[0];  // [B,1,D]
    const TensorId head = model().tie_word_embeddings ? wte : vocabulary_rows("lm_head.weight", {rows, d});
    const TensorId logits =
        emit("linear", {y, head}, product_of(program.type(y).shape.rows()), "lm_head")[0];  // [B,S,V']
    split_features(logits, over_tensor);
    finish(logits);
    return std::move(program);
  }

 private:
  // A weight with a row for each token, padded.
  TensorId vocabulary_rows(const std::string& name, Shape shape) {
    const TensorId id = weight(name, shape, {over_tensor, whole}, deviation);
    parameters.back().unused = (shape[0] - model().vocab_size) * shape[1];
    parameters.back().extra_rows = shape[0] - model().padded_vocab();
    return id;
  }

  // wpe: invalid without learned positions.
  TensorId embedded(TensorId wte, TensorId wpe) {
    if (!wpe.valid()) return emit("embedding", {tokens_input, wte}, {}, "wte")[0];
    if (decodes()) return emit("embedding_at", {tokens_input, wte, wpe, cursor_}, {}, "wte")[0];
    return emit("embedding", {tokens_input, wte, wpe}, {}, "wte")[0];
  }

  // The norm of the residual x_, after adding the result of the last sublayer, delta_.
  TensorId norm(const std::string& name) {
    std::vector<TensorId> operands{x_};
    if (delta_.valid()) operands.push_back(delta_);
    operands.push_back(constant(name + ".weight", {model().n_embd}, {whole}, 1));
    const bool layer_norm = family().norm == config::Norm::layer;
    if (layer_norm) operands.push_back(constant(name + ".bias", {model().n_embd}, {whole}, 0));
    const std::string op = std::string(delta_.valid() ? "add_" : "") + (layer_norm ? "layer_norm" : "rms_norm");
    const auto results = emit(op, std::move(operands), {{"eps", model().layer_norm_epsilon}}, name);
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
    delta_ = narrow(name + ".attn.c_proj", attention(name + ".attn", norm(name + ".ln_1")), model().attention_bias);
    const TensorId y = norm(name + ".ln_2");
    delta_ = model().is_moe(i) ? moe_layer(*this, i, y) : mlp(name + ".mlp", y, model().inner());
  }

  // Queries, keys and values are one product, of which each is split over tensor for itself.
  TensorId attention(const std::string& name, TensorId x) {
    const std::int64_t heads = model().n_head, key_heads = model().key_heads(), size = model().head_size();
    const Split split{{Axis::tensor}, ir::Blocks::of({heads / key_heads, 1, 1})};
    TensorId qkv = widen(name + ".c_attn", x, (heads + 2 * key_heads) * size, split,
                         model().qkv_bias || model().attention_bias);  // [B,S,(H+2G)hd]
    ops::Attributes attributes{{"heads", key_heads}};
    if (key_heads != heads) attributes.set("group", heads / key_heads);
    if (family().head_norm == config::HeadNorm::whole_row) qkv = normed(name, qkv, attributes);
    if (family().positions == config::Positions::rotary) qkv = rotated(name, qkv, attributes);
    if (!options().deterministic) attributes.set("deterministic", std::int64_t(0));
    if (!decodes()) return emit("attention", {qkv}, attributes, name)[0];
    const std::int64_t positions = options().cache > 0 ? options().cache : model().n_positions;
    const ir::TensorType cache{options().dtype, {options().batch, key_heads, positions, size}};
    const TensorId keys = program.add_state(ir::StateKind::keys, name, cache);
    const TensorId values = program.add_state(ir::StateKind::values, name, cache);
    for (const TensorId id : {keys, values}) annotate(id, {whole, over_tensor, whole, whole});
    return emit("attention_decode", {qkv, keys, values, cursor_}, attributes, name)[0];
  }

  // All queries and all keys of a token, each by their mean square, and limited.
  TensorId normed(const std::string& name, TensorId qkv, ops::Attributes attributes) {
    const std::int64_t key_heads = model().key_heads(), size = model().head_size();
    attributes.set("head_dim", size);
    const TensorId squares = emit("wide_norm_squares", {qkv}, attributes, name + ".norm")[0];  // f32[B,S,2]
    std::vector<TensorId> operands{qkv};
    operands.push_back(constant(name + ".q_norm.weight", {model().n_head * size}, {over_tensor}, 1));
    operands.push_back(constant(name + ".k_norm.weight", {key_heads * size}, {over_tensor}, 1));
    operands.push_back(squares);
    attributes.set("all_heads", key_heads);
    attributes.set("eps", model().layer_norm_epsilon);
    if (model().clip_qkv) attributes.set("clip", *model().clip_qkv);
    return emit("wide_norm", std::move(operands), std::move(attributes), name + ".norm")[0];
  }

  void scale(const config::RopeScaling& scaling, ops::Attributes& attributes) const {
    attributes.set("scaling", std::string(config::name(scaling.rope_type)));
    attributes.set("factor", scaling.factor);
    if (scaling.rope_type == config::RopeType::linear) return;
    attributes.set("original_max_position_embeddings",
                   scaling.original_max_position_embeddings.value_or(model().n_positions));
    if (scaling.rope_type == config::RopeType::llama3) {
      attributes.set("low_freq_factor", scaling.low_freq_factor);
      attributes.set("high_freq_factor", scaling.high_freq_factor);
      return;
    }
    attributes.set("beta_fast", scaling.beta_fast);
    attributes.set("beta_slow", scaling.beta_slow);
    const auto of = [&](double mscale) { return 0.1 * mscale * std::log(scaling.factor) + 1; };
    if (scaling.attention_factor)
      attributes.set("attention_factor", *scaling.attention_factor);
    else if (scaling.mscale && scaling.mscale_all_dim)
      attributes.set("attention_factor", of(*scaling.mscale) / of(*scaling.mscale_all_dim));
  }

  // Queries and keys by their positions; with norms of each head where the family has them.
  TensorId rotated(const std::string& name, TensorId qkv, ops::Attributes attributes) {
    attributes.set("head_dim", model().head_size());
    attributes.set("theta", model().rope_theta);
    if (model().rope_scaling) scale(*model().rope_scaling, attributes);
    std::vector<TensorId> operands{qkv};
    if (decodes()) operands.push_back(cursor_);
    if (family().head_norm == config::HeadNorm::each_head) {
      attributes.set("eps", model().layer_norm_epsilon);
      for (const char* of : {".q_norm.weight", ".k_norm.weight"})
        operands.push_back(constant(name + of, {model().head_size()}, {whole}, 1));
    }
    return emit(decodes() ? "rotate_at" : "rotate", std::move(operands), std::move(attributes), name + ".rotate")[0];
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
  return Transformer(model, options).build();
}

std::vector<Parameter> parameters(const config::Model& model, std::int64_t tensor_ranks) {
  const BuildOptions options{.tensor_ranks = tensor_ranks};
  return Transformer(model, options).take_parameters();
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
