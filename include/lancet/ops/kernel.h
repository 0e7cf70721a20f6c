// Kernels: an op's code for one device. A kernel is bound once, before the first step, to addresses and shapes; the
// step loop only calls it.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lancet/backend/device.h"
#include "lancet/base/result.h"
#include "lancet/comm/communicator.h"
#include "lancet/comm/device_communicator.h"
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

// What kernels of one plan leave each other when they are bound, by the number of a tensor: they are bound in the
// program's order, so who reads a tensor finds what its maker left.
using BindNotes = std::map<std::int32_t, std::shared_ptr<void>>;

struct KernelArgs {
  std::string_view op;
  std::vector<TensorView> operands;
  std::vector<TensorView> results;
  const ir::Attributes& attributes;
  comm::Communicator* comm = nullptr;  // of the instruction's stream; null on the compute stream
  // Scratch of at least workspace() bytes, 64-byte aligned, shared by all kernels of a stream.
  std::byte* workspace = nullptr;
  // Of kernels for a device that works from queues: they put their work on `stream` and return. All pointers above are
  // the device's then, and the ranks of the stream are reached through `device_comm`.
  backend::Device* device = nullptr;
  backend::Stream* stream = nullptr;
  comm::DeviceCommunicator* device_comm = nullptr;
  const ir::Instruction* instruction = nullptr;  // for the tensors' numbers; null where there is no plan
  BindNotes* notes = nullptr;                    // null: nothing is left
  // What a user should know of how kernels were bound, a line each: a slow way that was taken, and why. Null: nobody
  // listens.
  std::set<std::string>* remarks = nullptr;

  bool has(int operand) const { return operand < static_cast<int>(operands.size()); }
};

// Fails only where another rank or the network does.
using Kernel = std::function<Status()>;

struct CpuKernel {
  std::string_view op;
  Kernel (*bind)(const KernelArgs&);
  std::size_t (*workspace)(const KernelArgs&) = nullptr;  // bytes; addresses are not yet known when it is asked
};

// The same for a device that works from queues. Memory that a kernel needs for itself (counts on the host) is made when
// it is bound.
struct DeviceKernel {
  std::string_view op;
  Kernel (*bind)(const KernelArgs&);
  std::size_t (*workspace)(const KernelArgs&) = nullptr;
  // False: its call waits for the stream (counts that the host must know), so it cannot be recorded into a graph.
  bool recordable = true;
};

const CpuKernel* find_cpu_kernel(std::string_view op);  // null if there is none
// Of the CUDA module; null if there is none.
const DeviceKernel* find_cuda_kernel(std::string_view op);

}  // namespace lancet::ops
