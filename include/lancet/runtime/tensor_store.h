// The named tensors of a rank: parameters and state, shared by all plans that name them.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lancet/backend/cpu/buffer.h"
#include "lancet/ir/program.h"

namespace lancet::runtime {

struct NamedTensor {
  ir::TensorKind kind;
  ir::TensorType type;
  bool local = false;
  backend::cpu::Buffer memory;  // zeroed when made
};

class TensorStore {
 public:
  // Makes what the program names and is not there yet, but for inputs: those belong to an Executor, since plans of one
  // model differ in their batches. The same name with another type or kind is an InternalError.
  void add(const ir::Program& program);
  NamedTensor& operator[](std::string_view name);
  NamedTensor* find(std::string_view name);
  std::int64_t bytes(ir::TensorKind kind) const;
  const std::map<std::string, NamedTensor, std::less<>>& all() const { return tensors_; }

 private:
  std::map<std::string, NamedTensor, std::less<>> tensors_;
};

}  // namespace lancet::runtime
