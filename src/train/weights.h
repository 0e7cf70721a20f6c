// Sets the initial weights of a rank.
#pragma once
#include "lancet/config/config.h"
#include "lancet/runtime/tensor_store.h"

namespace lancet::train {

// Initialises what the store's rank holds of every parameter, and the f32 master of each bf16 one. The values of the
// whole parameter depend on config.train.seed alone, not on the mesh. Also tells the store which rows of them are
// padding of this mesh alone (TensorStore::set_padding), without which checkpoints of other meshes cannot be read.
Status initialize_weights(const config::Config& config, runtime::TensorStore& store);

// Sets one parameter from f32 values of the elements that the store's rank holds, and its master if it has one.
Status set_parameter(runtime::TensorStore& store, std::string_view name, std::span<const float> values);

}  // namespace lancet::train
