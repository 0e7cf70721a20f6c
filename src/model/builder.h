// What all layers of a model are built with: instructions of the forward Program, annotations, and parameters.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lancet/config/config.h"
#include "lancet/ir/program.h"
#include "lancet/model/build_options.h"
#include "lancet/ops/catalogue.h"

namespace lancet::model {

using ir::Axis;
using ir::Split;
using ir::TensorId;
using ir::TensorKind;

// Annotations: how a dimension is split, on any mesh.
inline const Split whole{}, over_tensor{{Axis::tensor}}, over_experts{{Axis::expert}},
    over_batch{{Axis::data, Axis::expert}};

class Builder {
 public:
  Builder(const config::Model& model, const BuildOptions& options);

  const config::Model& model() const { return model_; }
  const BuildOptions& options() const { return options_; }
  const config::Family& family() const { return model_.family(); }
  std::int64_t tokens() const { return options_.batch * options_.sequence; }
  bool trains() const { return options_.mode == Mode::train; }
  bool decodes() const { return options_.mode == Mode::decode; }
  bool gives_logits() const { return decodes() || options_.mode == Mode::generate; }
  // Attributes of a product with this many rows. When decoding a token, a product does little but read its weights.
  ops::Attributes product_of(std::int64_t rows) const;

  std::vector<TensorId> emit(std::string_view op, std::vector<TensorId> operands, ops::Attributes attributes,
                             std::string label);
  void annotate(TensorId id, std::vector<Split> dimensions);
  // An input i32 about the sequences of the batch, its first dimension. All ranks read those that are generated.
  TensorId input(const std::string& name, Shape shape);
  // The input with the number of each sequence i32[B,1], which ops draw random numbers by. The Program has it from the
  // first call on.
  TensorId sequence_numbers();
  // Under sequence parallelism the tensors between the pairs of products [B,S,D] are split along the sequence, and the
  // tensor inside a pair along the features (Korthikanti et al., Reducing Activation Recomputation, section 4.2.2).
  void split_sequence(TensorId id);
  void split_features(TensorId id, const Split& features);

  // Every parameter is annotated, so that all Programs of a model spread it alike.
  TensorId add(Parameter parameter, DType dtype, std::vector<Split> dimensions);
  // A product's weight, in the activations' type.
  TensorId weight(const std::string& name, Shape shape, std::vector<Split> dimensions, float deviation);
  // A bias, or the scale of a layer norm: `value` at first.
  TensorId constant(const std::string& name, Shape shape, std::vector<Split> dimensions, float value);
  // The first product of a pair, whose results tensor splits, and the second, which adds up over it (Megatron-LM,
  // section 3). They have biases if the family's products have, or else if `bias`.
  TensorId widen(const std::string& name, TensorId x, std::int64_t out, const Split& features = over_tensor,
                 bool bias = false);
  TensorId narrow(const std::string& name, TensorId x, bool bias = false);
  // An FFN of a width F: [B,S,D] -> [B,S,D].
  TensorId mlp(const std::string& name, TensorId x, std::int64_t width);
  // The op between its products, and its operand's features: F, or gate and up of each side by side, 2F.
  std::string activation() const { return family().ffn == config::Ffn::gelu ? "gelu" : "swiglu"; }
  std::int64_t widened(std::int64_t width) const { return family().ffn == config::Ffn::gelu ? width : 2 * width; }

  // GPT-2's deviations: of weights, and of those whose product is added to the residual stream.
  const float deviation, residual_deviation;
  std::int32_t repeated = 0;  // of the instructions that are emitted: ir::Instruction::repeated
  ir::Program program;
  TensorId tokens_input{};  // @tokens
  std::vector<Parameter> parameters;

 private:
  TensorId linear(const std::string& name, TensorId x, std::int64_t out, float deviation, std::vector<Split> of_weight,
                  const Split& of_bias, bool bias);
  bool splits_sequence() const { return options_.sequence_parallel && !gives_logits(); }

  const config::Model& model_;
  const BuildOptions& options_;
};

// The mixture-of-experts layer: a gate routes each token to experts, which are FFNs.

// Appends the layer of a block to the Program, of which "h.0" is the first one's name: [B,S,D] -> [B,S,D].
TensorId moe_layer(Builder& builder, std::int64_t block, TensorId x);

// The route of an MoE layer's tokens to experts: router, choice and gate, and the losses that keep the loads even.

// What a gate decides about T tokens with K choices each.
struct Route {
  TensorId expert, weight, slot;  // [T,K]
  TensorId filled;                // i32[E,2]
};

// Appends the router of a block to the Program. x: [B,S,D]. groups: of neighbouring sequences, in each of which an
// expert keeps at most `capacity` choices.
Route route(Builder& builder, std::int64_t block, TensorId x, std::int64_t groups, std::int64_t capacity);

}  // namespace lancet::model
