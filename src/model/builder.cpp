#include "builder.h"

#include <cmath>

namespace lancet::model {

Builder::Builder(const config::Model& model, const BuildOptions& options)
    : deviation(float(model.initializer_range)),
      residual_deviation(deviation / std::sqrt(2.f * float(model.n_layer))),
      model_(model),
      options_(options) {
  program.name = model.family().program;
}

ops::Attributes Builder::product_of(std::int64_t rows) const {
  return decodes() && rows <= 2 ? ops::Attributes{{"streamed", std::int64_t(1)}} : ops::Attributes{};
}

std::vector<TensorId> Builder::emit(std::string_view op, std::vector<TensorId> operands, ops::Attributes attributes,
                                    std::string label) {
  auto results =
      ops::append(program, op, std::move(operands), std::move(attributes), ir::Role::forward, std::move(label));
  program.instructions.back().repeated = repeated;
  return results;
}

void Builder::annotate(TensorId id, std::vector<Split> dimensions) {
  program[id].sharding = ir::Sharding{std::move(dimensions), {}};
}

TensorId Builder::input(const std::string& name, Shape shape) {
  const TensorId id = program.add_named(TensorKind::input, name, {DType::i32, shape});
  if (!gives_logits()) annotate(id, {over_batch, whole});
  return id;
}

TensorId Builder::sequence_numbers() {
  const TensorId id = program.find("sequence");
  return id.valid() ? id : input("sequence", {options_.batch, 1});
}

void Builder::split_sequence(TensorId id) {
  if (splits_sequence()) annotate(id, {over_batch, over_tensor, whole});
}

void Builder::split_features(TensorId id, const Split& features) {
  if (splits_sequence()) annotate(id, {over_batch, whole, features});
}

TensorId Builder::add(Parameter parameter, DType dtype, std::vector<Split> dimensions) {
  parameter.is_experts = dimensions[0] == over_experts;
  const TensorId id = program.add_named(TensorKind::parameter, parameter.name, {dtype, parameter.shape});
  annotate(id, std::move(dimensions));
  parameters.push_back(std::move(parameter));
  return id;
}

TensorId Builder::weight(const std::string& name, Shape shape, std::vector<Split> dimensions, float deviation) {
  return add({.name = name, .shape = shape, .deviation = deviation}, options_.dtype, std::move(dimensions));
}

TensorId Builder::constant(const std::string& name, Shape shape, std::vector<Split> dimensions, float value) {
  return add({.name = name, .shape = shape, .value = value}, DType::f32, std::move(dimensions));
}

TensorId Builder::widen(const std::string& name, TensorId x, std::int64_t out, const Split& features, bool bias) {
  const TensorId y = linear(name, x, out, deviation, {features, whole}, features, bias);
  split_features(y, features);
  return y;
}

TensorId Builder::narrow(const std::string& name, TensorId x, bool bias) {
  return linear(name, x, model_.n_embd, residual_deviation, {whole, over_tensor}, whole, bias);
}

TensorId Builder::linear(const std::string& name, TensorId x, std::int64_t out, float deviation,
                         std::vector<Split> of_weight, const Split& of_bias, bool bias) {
  const std::int64_t in = program.type(x).shape.back();
  std::vector<TensorId> operands{x, weight(name + ".weight", {out, in}, std::move(of_weight), deviation)};
  if (bias || family().biases) operands.push_back(constant(name + ".bias", {out}, {of_bias}, 0));
  return emit("linear", std::move(operands), product_of(program.type(x).shape.rows()), name)[0];
}

TensorId Builder::mlp(const std::string& name, TensorId x, std::int64_t width) {
  const TensorId hidden = widen(name + ".c_fc", x, widened(width));
  return narrow(name + ".c_proj", emit(activation(), {hidden}, {}, name + "." + activation())[0]);
}

}  // namespace lancet::model
