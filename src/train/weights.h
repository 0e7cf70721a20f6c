// Initial weights of a rank.
#pragma once
#include "lancet/config/config.h"
#include "lancet/runtime/tensor_store.h"

namespace lancet::train {

// Every parameter, and the f32 master of those that are bf16; a function of config.train.seed.
Status initialize_weights(const config::Config& config, int rank, int ranks, runtime::TensorStore& store);

// Sets one parameter from f32 values, and its master where it has one.
Status set_parameter(runtime::TensorStore& store, std::string_view name, std::span<const float> values);

}  // namespace lancet::train
