#include "weights.h"

#include <algorithm>
#include <vector>

#include "lancet/model/initialize.h"

namespace lancet::train {

Status set_parameter(runtime::TensorStore& store, std::string_view name, std::span<const float> values) {
  const runtime::NamedTensor& parameter = store[name];
  LANCET_CHECK(std::int64_t(values.size()) == parameter.type.shape.elements(), "@{} has {} elements, not {}", name,
               parameter.type.shape.elements(), values.size());
  if (parameter.type.dtype != DType::bf16) return store.write(parameter, 0, std::as_bytes(values));
  std::vector<bf16> rounded(values.size());
  std::transform(values.begin(), values.end(), rounded.begin(), [](float x) { return from_f32<bf16>(x); });
  LANCET_TRY(store.write(parameter, 0, std::as_bytes(std::span(rounded))));
  const std::string master = ir::state_name(name, ir::StateKind::master);
  if (!store.find(master)) return {};
  const FlatRange held = store.range_of(master);
  return store.write(store[master], 0,
                     std::as_bytes(values.subspan(std::size_t(held.begin), std::size_t(held.size()))));
}

Status initialize_weights(const config::Config& config, runtime::TensorStore& store) {
  std::vector<float> values;
  const int tensor_ranks = store.mesh()[ir::Axis::tensor];
  for (const model::Parameter& parameter : model::parameters(config.model.on(store.mesh()), tensor_ranks)) {
    LANCET_CHECK(store.whole_shape(parameter.name) == parameter.shape, "@{} is [{}] in the model and [{}] in the plan",
                 parameter.name, to_string(parameter.shape), to_string(store.whole_shape(parameter.name)));
    store.set_padding(parameter.name, parameter.extra_rows);
    if (store[parameter.name].elsewhere) continue;
    values.resize(static_cast<std::size_t>(store[parameter.name].type.shape.elements()));
    model::initialize(parameter, static_cast<std::uint64_t>(config.train.seed), store.held(parameter.name), values);
    LANCET_TRY(set_parameter(store, parameter.name, values));
  }
  return {};
}

}  // namespace lancet::train
