// The type that an op without operands gives its result, as attributes.
#pragma once
#include <optional>

#include "lancet/ops/op.h"

namespace lancet::ops {

// The type that the attributes dtype="f32" and shape="8,128" say; none if they do not say one.
std::optional<TensorType> type_of_stage_value(const Attributes& attributes);

}  // namespace lancet::ops
