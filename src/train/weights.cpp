#include "weights.h"

#include <algorithm>
#include <vector>

#include "lancet/model/initialize.h"

namespace lancet::train {

void set_parameter(runtime::TensorStore& store, std::string_view name, std::span<const float> values) {
  runtime::NamedTensor& parameter = store[name];
  LANCET_CHECK(std::int64_t(values.size()) == parameter.type.shape.elements(), "@{} has {} elements, not {}", name,
               parameter.type.shape.elements(), values.size());
  if (parameter.type.dtype == DType::bf16) {
    std::transform(values.begin(), values.end(), parameter.memory.as<bf16>(),
                   [](float x) { return from_f32<bf16>(x); });
    if (runtime::NamedTensor* master = store.find(std::string(name) + ".master"))
      std::copy(values.begin(), values.end(), master->memory.as<float>());
  } else {
    std::copy(values.begin(), values.end(), parameter.memory.as<float>());
  }
}

void initialize_weights(const config::Config& config, int rank, int ranks, runtime::TensorStore& store) {
  std::vector<float> values;
  for (const auto& [name, tensor] : store.all()) {
    if (tensor.kind != ir::TensorKind::parameter) continue;
    values.resize(static_cast<std::size_t>(tensor.type.shape.elements()));
    model::initialize(config.model, name, tensor.type, rank, ranks, static_cast<std::uint64_t>(config.train.seed),
                      values);
    set_parameter(store, name, values);
  }
}

}  // namespace lancet::train
