// Kernels: an op's code for one device. A kernel is bound once, before the first step, to addresses and shapes; the
// step loop only calls it.
#pragma once
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/comm/communicator.h"
#include "lancet/ir/program.h"

namespace lancet::ops {

struct TensorView {
  void* data = nullptr;
  ir::TensorType type;

  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
  DType dtype() const { return type.dtype; }
  const Shape& shape() const { return type.shape; }
  std::int64_t elements() const { return type.shape.elements(); }
};

struct KernelArgs {
  std::string_view op;
  std::vector<TensorView> operands;
  std::vector<TensorView> results;
  const ir::Attributes& attributes;
  comm::Communicator* comm = nullptr;  // of the instruction's lane; null on the compute lane
  // Scratch of at least workspace() bytes, 64-byte aligned, shared by all kernels of a lane.
  std::byte* workspace = nullptr;

  bool has(int operand) const { return operand < static_cast<int>(operands.size()); }
};

// Fails only where another rank or the network does.
using Kernel = std::function<Status()>;

struct CpuKernel {
  std::string_view op;
  Kernel (*bind)(const KernelArgs&);
  std::size_t (*workspace)(const KernelArgs&) = nullptr;  // bytes; addresses are not yet known when it is asked
};

const CpuKernel* find_cpu_kernel(std::string_view op);  // null if there is none

}  // namespace lancet::ops
