#include "lancet/runtime/tensor_store.h"

#include <cstring>

namespace lancet::runtime {

namespace {

constexpr std::size_t alignment = 64;
std::size_t aligned(std::size_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

bool is_stored(const ir::Tensor& tensor) {
  return tensor.kind == ir::TensorKind::parameter || tensor.kind == ir::TensorKind::state;
}

void check_same(const NamedTensor& here, const ir::Tensor& there) {
  LANCET_CHECK(here.type == there.type, "@{} is {} here and {} there", there.name, ir::to_string(here.type),
               ir::to_string(there.type));
  LANCET_CHECK(here.kind == there.kind && here.local == there.local, "@{} is {}{} here and {}{} there", there.name,
               ir::name(here.kind), here.local ? " local" : "", ir::name(there.kind), there.local ? " local" : "");
}

void check_range(const NamedTensor& tensor, std::size_t offset, std::size_t bytes) {
  LANCET_CHECK(offset <= tensor.memory.bytes && bytes <= tensor.memory.bytes - offset,
               "a tensor has {} bytes, not {} from {} on", tensor.memory.bytes, bytes, offset);
}

}  // namespace

void TensorStore::add(const ir::Program& program) {
  std::vector<const ir::Tensor*> fresh;
  std::size_t bytes = 0;
  for (const ir::Tensor& tensor : program.tensors) {
    if (!is_stored(tensor)) continue;
    if (const NamedTensor* known = find(tensor.name)) {
      check_same(*known, tensor);
    } else {
      fresh.push_back(&tensor);
      bytes += aligned(static_cast<std::size_t>(ir::bytes(tensor.type)));
    }
  }
  if (fresh.empty()) return;
  std::byte* next = blocks_.emplace_back(backend::cpu::Buffer::zeroed(bytes)).as<std::byte>();
  for (const ir::Tensor* tensor : fresh) {
    const auto size = static_cast<std::size_t>(ir::bytes(tensor->type));
    tensors_.emplace(tensor->name, NamedTensor{tensor->kind, tensor->type, tensor->local, {next, size}});
    next += aligned(size);
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

Status TensorStore::read(const NamedTensor& tensor, std::size_t offset, std::span<std::byte> to) const {
  check_range(tensor, offset, to.size());
  std::memcpy(to.data(), tensor.memory.start + offset, to.size());
  return {};
}

Status TensorStore::write(const NamedTensor& tensor, std::size_t offset, std::span<const std::byte> from) {
  check_range(tensor, offset, from.size());
  std::memcpy(tensor.memory.start + offset, from.data(), from.size());
  return {};
}

std::int64_t TensorStore::bytes(ir::TensorKind kind) const {
  std::int64_t total = 0;
  for (const auto& [name, tensor] : tensors_)
    if (tensor.kind == kind) total += ir::bytes(tensor.type);
  return total;
}

}  // namespace lancet::runtime
