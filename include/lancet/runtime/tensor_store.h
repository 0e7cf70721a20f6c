// The named tensors of a rank: parameters and state, shared by all plans that name them.
#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lancet/backend/cpu/buffer.h"
#include "lancet/base/result.h"
#include "lancet/ir/program.h"

namespace lancet::runtime {

// A tensor's place in one of the store's blocks.
struct Memory {
  std::byte* start = nullptr;
  std::size_t bytes = 0;

  void* data() const { return start; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(start);
  }
  template <class T>
  std::span<T> span() const {
    return {as<T>(), bytes / sizeof(T)};
  }
};

struct NamedTensor {
  ir::TensorKind kind;
  ir::TensorType type;
  bool local = false;
  Memory memory;  // zero when made
};

class TensorStore {
 public:
  // Makes what the program names and is not there yet, but for inputs: those belong to an Executor, since plans of one
  // model differ in their batches. What is made at once lies in one block, in the program's order, each tensor at a
  // multiple of 64 bytes: so the gradients that add up over micro batches lie side by side as their buckets want them.
  // The same name with another type or kind is an InternalError.
  void add(const ir::Program& program);
  NamedTensor& operator[](std::string_view name);
  NamedTensor* find(std::string_view name);
  // Bytes of a tensor from `offset` on, wherever it lies. Not while a step runs.
  Status read(const NamedTensor& tensor, std::size_t offset, std::span<std::byte> to) const;
  Status write(const NamedTensor& tensor, std::size_t offset, std::span<const std::byte> from);
  std::int64_t bytes(ir::TensorKind kind) const;
  const std::map<std::string, NamedTensor, std::less<>>& all() const { return tensors_; }

 private:
  std::map<std::string, NamedTensor, std::less<>> tensors_;
  std::vector<backend::cpu::Buffer> blocks_;
};

}  // namespace lancet::runtime
