// One linear scan over the elements, converted to f32. A tensor is searched only after a loss was not finite, so speed
// does not matter here.
#include "non_finite.h"

#include <fmt/format.h>

#include <cmath>

#include "lancet/base/shown.h"
#include "lancet/runtime/executor.h"

namespace lancet::runtime {
namespace {

template <class T>
std::optional<BadElement> search(const T* data, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i)
    if (const float value = to_f32(data[i]); !std::isfinite(value)) return BadElement{i, value};
  return std::nullopt;
}

}  // namespace

std::optional<BadElement> first_non_finite(const ops::TensorView& tensor) {
  if (tensor.dtype() == DType::f32) return search(tensor.as<float>(), tensor.elements());
  if (tensor.dtype() == DType::bf16) return search(tensor.as<bf16>(), tensor.elements());
  return std::nullopt;
}

std::string to_string(const ir::Program& program, const NonFinite& found) {
  std::string made;
  if (found.instruction.valid()) {
    const ir::Instruction& instruction = program.instructions[found.instruction.index()];
    made = fmt::format(" = {} at {} ({})", instruction.op, instruction.label, ir::name(instruction.role));
  }
  return fmt::format("{} : {}{}, element {} is {}", program.display(found.tensor),
                     ir::to_string(program.type(found.tensor)), made, found.element, unsigned_nan(found.value));
}

}  // namespace lancet::runtime
