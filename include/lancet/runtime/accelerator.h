// What the program knows of a device that is not the CPU: its queues, its kernels, its own transport. The code lies in
// a module that is loaded when it is asked for, so that a program that trains on the CPU needs none of its libraries.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "lancet/backend/device.h"
#include "lancet/comm/device_transports.h"
#include "lancet/ops/kernel.h"

namespace lancet::runtime {

// Which algorithm each product takes where the device's library offers several, in the device's words: what it is good
// for, and which it is.
using ProductChoices = std::map<std::string, std::string>;

class Accelerator {
 public:
  virtual ~Accelerator() = default;
  virtual backend::Device& device() = 0;
  // Null where the module has no kernel of this op.
  virtual const ops::DeviceKernel* find_kernel(std::string_view op) const = 0;
  // The transport of the device's own, NCCL. Config error: the module was built without.
  virtual Result<std::unique_ptr<comm::DeviceCommunicator>> make_communicator(const comm::DeviceStream& stream) = 0;
  // Times that were measured on it are good for this build alone.
  virtual std::string build() const = 0;
  // f32 products may round their operands to 10 bits. Of kernels that are bound from here on, as are the next two.
  virtual void allow_tf32(bool) {}
  // A product that the table does not hold is timed when its kernel is bound, and put there.
  virtual void measure_products(bool) {}
  // Added to the table; config error: a line that no table has.
  virtual Status add_product_choices(const ProductChoices&) { return {}; }
  virtual ProductChoices product_choices() const { return {}; }
};

// What a module exports as `lancet_module`, with C linkage.
struct AcceleratorModule {
  const char* kernel_build;  // cost::kernel_build() of the program that it belongs to
  Result<int> (*count)();    // devices of this host that the process may use
  Result<std::unique_ptr<Accelerator>> (*open)(int index);
};

// Loads a module for as long as the process runs. Config errors: the file is not there, a library that it needs is not,
// or it belongs to another build of the program.
Result<const AcceleratorModule*> load_module(const std::string& file);

// liblancet_cuda.so beside the program that runs.
std::string cuda_module_path();

}  // namespace lancet::runtime
