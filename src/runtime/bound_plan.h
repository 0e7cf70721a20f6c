// Shared by the executors: addresses of a plan's tensors, its streams as lists of steps, errors that name an
// instruction.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lancet/ir/plan.h"
#include "lancet/ir/program.h"
#include "lancet/ops/kernel.h"
#include "lancet/runtime/executor.h"
#include "lancet/runtime/tensor_store.h"

namespace lancet::runtime {

struct StreamWait {
  std::uint8_t stream;
  std::int32_t target;  // number of instructions of that stream that must have ended
};

struct StreamStep {
  std::int32_t instruction;
  std::vector<StreamWait> waits;  // on other streams
};

using Streams = std::array<std::vector<StreamStep>, ir::stream_count>;
Streams streams_of(const ir::Plan& plan);

// The addresses of a plan's tensors: in the store, in the arena, or, for inputs, in a block of their own.
class Addresses {
 public:
  // inputs: a block of input_bytes(plan.program). All arguments outlive this object.
  Addresses(const ir::Plan& plan, TensorStore& store, const Memory& arena, const Memory& inputs);
  static std::size_t input_bytes(const ir::Program& program);

  // data: null for a tensor without memory.
  ops::TensorView view(ir::TensorId id) const;
  ops::TensorView input(std::string_view name) const;   // InternalError if the plan has none of that name
  ops::TensorView output(std::string_view name) const;  // likewise
  // A kernel's arguments, with the operands' and results' addresses set.
  ops::KernelArgs arguments(const ir::Instruction& instruction) const;
  const Memory& inputs() const { return inputs_; }

 private:
  const ir::Plan& plan_;
  TensorStore& store_;
  Memory arena_, inputs_;
  std::vector<std::int64_t> input_offsets_;  // by tensor; -1: not an input
};

// The group of ranks that the instruction goes over. Error: the options have no group of its axes.
Result<comm::Group> find_group(const ExecutorOptions& options, const ir::Instruction& instruction);

// Calls the kernel; an exception becomes an InternalError.
Status call(const ops::Kernel& kernel);

// Adds the instruction, as plan.ir numbers it, to the message: "stream reduce: [12] all_reduce at h.0.ln_1.weight:
// ...".
Error error_at(const ir::Plan& plan, std::int32_t instruction, const Error& error);

// A kernel's arguments without addresses: types and attributes.
ops::KernelArgs types_of(const ir::Program& program, const ir::Instruction& instruction);

// Scratch bytes of each stream: the largest that a kernel of the stream needs. find(op) returns a kernel or null.
// device: null for the CPU.
template <class Find>
Result<std::array<std::size_t, ir::stream_count>> workspace_bytes(const ir::Plan& plan, const Find& find,
                                                                  backend::Device* device) {
  std::array<std::size_t, ir::stream_count> bytes{};
  LANCET_TRY(ir::for_each_kernel(plan.program, [&](const ir::Instruction& instruction, ir::Stream stream) -> Status {
    const auto* kernel = find(instruction.op);
    if (!kernel)
      return internal_error("op " + instruction.op + " has no kernel on " + (device ? device->name() : "the CPU"));
    ops::KernelArgs args = types_of(plan.program, instruction);
    args.device = device;
    auto& most = bytes[static_cast<std::size_t>(stream)];
    if (kernel->workspace) most = std::max(most, kernel->workspace(args));
    return {};
  }));
  return bytes;
}

// Runs instructions one at a time, for the search below; each executor implements it.
class SingleSteps {
 public:
  virtual ~SingleSteps() = default;
  virtual Status zero(const ops::TensorView& view) = 0;
  virtual Status run(std::int32_t instruction) = 0;  // waits until it has ended
  // The tensor in memory that the host can read, valid until the next call.
  virtual Result<ops::TensorView> host_view(const ops::TensorView& view) = 0;
};
// Implements Executor::find_non_finite. left_out(instruction): it does not run.
Result<std::optional<NonFinite>> search_non_finite(const ir::Plan& plan, const Addresses& addresses,
                                                   const ExecutorOptions& options, SingleSteps& steps,
                                                   const std::function<bool(std::int32_t)>& left_out);

// Kernels of repeats (ir/program.h), made of the kernels of their bodies.

// On the host: the body's kernels run with as many threads as those of the compute stream.
ops::Kernel repeat_on_host(const ir::Instruction& repeat, const Addresses& addresses, std::vector<ops::Kernel> body,
                           int threads);

// On a device: the host thread of the stream waits until the device has the count, once in a step for all repeats of
// the same count, of which notes tell the later ones, and then puts the rounds on the stream. args: of the repeat.
ops::Kernel repeat_on_device(const ops::KernelArgs& args, std::vector<ops::Kernel> body);

}  // namespace lancet::runtime
