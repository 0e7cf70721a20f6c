// Kernels: the code of an op for one kind of device. A kernel is bound to addresses and shapes once, before the first
// step; the step loop only calls it.
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
#include "lancet/comm/device_communicator.h"
#include "lancet/ir/groups.h"
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

// Which share of an instruction a rank computes, by placed rows (op.h): 0 of 1 if it is not split by such rows.
struct Share {
  std::int64_t place = 0, shares = 1;
};

// State that the kernels of one plan share, by tensor number. Kernels are bound in program order, so the kernel that
// reads a tensor finds the note of the kernel that makes it.
using BindNotes = std::map<std::int32_t, std::shared_ptr<void>>;

struct KernelArgs {
  std::string_view op;
  std::vector<TensorView> operands;
  std::vector<TensorView> results;
  const ir::Attributes& attributes;
  // The ranks that the instruction goes over; alone by default. Its communicators are those of the instruction's
  // stream, and null on the compute stream.
  comm::Group group = {};
  // Scratch of at least workspace() bytes, aligned to 64 bytes, on a device to 256, shared by all kernels of the
  // instruction's stream.
  std::byte* workspace = nullptr;
  // Set for kernels of a device that works from queues. They put their work on the device stream `stream` and return.
  // All pointers above are then device memory, and group.device_comm reaches the group's ranks.
  // workspace() gets `device` as well, since launches depend on its traits.
  backend::Device* device = nullptr;
  backend::Stream* stream = nullptr;
  // On an emulated device, of tensors without values: the kernel of a collective only sends its messages.
  bool messages_only = false;
  const ir::Instruction* instruction = nullptr;  // for tensor numbers; null outside of a plan
  BindNotes* notes = nullptr;                    // null: kernels share nothing
  // Warnings about slow fallbacks and their causes, one per line; null discards them.
  std::set<std::string>* remarks = nullptr;

  bool has(int operand) const { return operand < static_cast<int>(operands.size()); }
  // An instruction of the compute stream has the attribute axes only if its group has its shares.
  Share share() const { return attributes.has(ir::axes_attribute) ? Share{group.place, group.size} : Share(); }
};

using Kernel = std::function<Status()>;  // fails only if another rank or the network fails

struct CpuKernel {
  std::string_view op;
  Kernel (*bind)(const KernelArgs&);
  std::size_t (*workspace)(const KernelArgs&) = nullptr;  // bytes; called before addresses are known
};

// A kernel of a device that works from queues. Memory of its own is allocated by bind.
struct DeviceKernel {
  std::string_view op;
  Kernel (*bind)(const KernelArgs&);
  std::size_t (*workspace)(const KernelArgs&) = nullptr;
  // False: the call waits for the device stream (for counts that the host must know), so no graph can record it.
  bool recordable = true;
  // If not null: binds several calls of the op as one kernel, which needs fewer launches. They are on one stream, have
  // no results, and none updates what another one reads or updates.
  Kernel (*bind_all)(std::span<const KernelArgs>) = nullptr;
  // Device memory of its own that bind may allocate: bytes, at most; called like workspace(). Null: little or none.
  std::size_t (*own_memory)(const KernelArgs&) = nullptr;
};

const CpuKernel* find_cpu_kernel(std::string_view op);      // null if there is none
const DeviceKernel* find_cuda_kernel(std::string_view op);  // the kernel in the CUDA plugin; null if there is none

}  // namespace lancet::ops
