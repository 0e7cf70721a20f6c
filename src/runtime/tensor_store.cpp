#include "lancet/runtime/tensor_store.h"

namespace lancet::runtime {

void TensorStore::add(const ir::Program& program) {
  for (const ir::Tensor& tensor : program.tensors) {
    if (tensor.kind != ir::TensorKind::parameter && tensor.kind != ir::TensorKind::state) continue;
    const auto it = tensors_.find(tensor.name);
    if (it == tensors_.end()) {
      const auto bytes = static_cast<std::size_t>(ir::bytes(tensor.type));
      tensors_.emplace(tensor.name, NamedTensor{tensor.kind, tensor.type, tensor.local, backend::cpu::Buffer::zeroed(bytes)});
    } else {
      LANCET_CHECK(it->second.type == tensor.type, "@{} is {} here and {} there", tensor.name, ir::to_string(it->second.type),
                   ir::to_string(tensor.type));
      LANCET_CHECK(it->second.kind == tensor.kind && it->second.local == tensor.local, "@{} is {}{} here and {}{} there", tensor.name,
                   ir::name(it->second.kind), it->second.local ? " local" : "", ir::name(tensor.kind), tensor.local ? " local" : "");
    }
  }
}

NamedTensor& TensorStore::operator[](std::string_view name) {
  NamedTensor* tensor = find(name);
  LANCET_CHECK(tensor, "no tensor is called @{}", name);
  return *tensor;
}

NamedTensor* TensorStore::find(std::string_view name) {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

std::int64_t TensorStore::bytes(ir::TensorKind kind) const {
  std::int64_t total = 0;
  for (const auto& [name, tensor] : tensors_)
    if (tensor.kind == kind) total += ir::bytes(tensor.type);
  return total;
}

}  // namespace lancet::runtime
