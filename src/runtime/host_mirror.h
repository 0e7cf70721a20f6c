// HostMirror: a program's inputs and outputs in page-locked memory, which the host writes and reads.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "bound_plan.h"
#include "lancet/runtime/block.h"

namespace lancet::runtime {

class HostMirror {
 public:
  // Allocates the inputs' memory on the host and the device; call it before the plan's addresses are known.
  Status allocate_inputs(const ir::Program& program, backend::Device& device);
  Memory device_inputs() const { return input_memory_.memory(); }
  Status allocate_outputs(const ir::Program& program, const Addresses& addresses, backend::Device& device);

  // The mirror of an input. device_view: its view on the device.
  ops::TensorView input(ops::TensorView device_view) const;
  // Throws InternalError if the plan has no such output.
  ops::TensorView output(std::string_view name) const;

  Status copy_inputs(backend::Stream& stream) const {
    return stream.copy(input_memory_.start(), inputs_.start(), input_memory_.bytes());
  }
  Status copy_outputs(backend::Stream& stream) const;

 private:
  struct Output {
    std::string name;
    ops::TensorView device, host;
  };

  Block input_memory_, inputs_, output_memory_;
  std::vector<Output> outputs_;
};

}  // namespace lancet::runtime
