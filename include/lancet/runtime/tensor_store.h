// The named tensors of a rank: parameters and state, shared by all plans that name them.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/ir/program.h"
#include "lancet/runtime/block.h"

namespace lancet::runtime {

struct NamedTensor {
  ir::TensorKind kind;
  ir::TensorType type;
  bool local = false;
  Memory memory;  // a place in one of the store's blocks; zero when made. On a device: not for the host to follow
};

class TensorStore {
 public:
  // What is added from here on lies on the device, which outlives the store.
  void place_on(backend::Device& device);
  bool on_device() const { return staging_ != nullptr; }
  // Makes what the program names and is not there yet, but for inputs: those belong to an Executor, since plans of one
  // model differ in their batches. What is made at once lies in one block, in the program's order, each tensor at a
  // multiple of 64 bytes: so the gradients that add up over micro batches lie side by side as their buckets want them.
  // The same name with another type or kind is an InternalError; std::bad_alloc where there is no memory.
  void add(const ir::Program& program);
  // Bytes of a tensor from `offset` on, wherever it lies. One thread at a time; not while a step runs.
  Status read(const NamedTensor& tensor, std::size_t offset, std::span<std::byte> to) const;
  Status write(const NamedTensor& tensor, std::size_t offset, std::span<const std::byte> from);
  // The whole of a tensor, as f32 or in whatever elements it has.
  template <class T>
  Result<std::vector<T>> read(std::string_view name) {
    const NamedTensor& tensor = (*this)[name];
    std::vector<T> values(tensor.memory.bytes / sizeof(T));
    LANCET_TRY(read(tensor, 0, std::as_writable_bytes(std::span(values))));
    return values;
  }
  NamedTensor& operator[](std::string_view name);
  NamedTensor* find(std::string_view name);
  std::int64_t bytes(ir::TensorKind kind) const;
  const std::map<std::string, NamedTensor, std::less<>>& all() const { return tensors_; }

 private:
  std::map<std::string, NamedTensor, std::less<>> tensors_;
  // Of a store on a device: the queue and the page-locked memory that reads and writes go through.
  struct Staging {
    backend::Device* device;
    std::unique_ptr<backend::Stream> stream;
    Block memory;
  };
  Status zero(const Block& block);
  // copy(offset in the tensor, bytes): through the staging memory, piece by piece.
  template <class Copy>
  Status stage(const NamedTensor& tensor, std::size_t offset, std::size_t bytes, const Copy& copy) const;

  std::unique_ptr<Staging> staging_;
  std::vector<Block> blocks_;
};

}  // namespace lancet::runtime
