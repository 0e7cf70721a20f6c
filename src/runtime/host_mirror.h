// A program's inputs and outputs in page-locked memory, where the host writes and finds them.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "bound_plan.h"
#include "lancet/base/check.h"
#include "lancet/runtime/block.h"

namespace lancet::runtime {

class HostMirror {
 public:
  // The inputs' memory on the device, before the plan's addresses are known.
  Status take_inputs(const ir::Program& program, backend::Device& device);
  Memory device_inputs() const { return input_memory_.memory(); }
  Status take_outputs(const ir::Program& program, const Addresses& addresses, backend::Device& device);

  // device_view: of an input.
  ops::TensorView input(ops::TensorView device_view) const;
  // Throws where the plan has no such output.
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
