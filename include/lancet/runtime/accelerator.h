// Accelerator: a device that is not the CPU, with its streams, its kernels and its own transport. Its code is in a
// shared library that is loaded on request, so that a program that trains on the CPU needs none of the device's
// libraries.
#pragma once
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "lancet/backend/device.h"
#include "lancet/comm/device_communicator.h"
#include "lancet/ops/kernel.h"

namespace lancet::runtime {

// The algorithm of each matrix product for which the device's library offers several. Key: the product; value: the
// algorithm; both as the device prints them.
using ProductChoices = std::map<std::string, std::string>;

class Accelerator {
 public:
  virtual ~Accelerator() = default;
  virtual backend::Device& device() = 0;
  // Null if the module has no kernel of this op.
  virtual const ops::DeviceKernel* find_kernel(std::string_view op) const = 0;
  // A communicator of the device's own transport, NCCL. Config error: the module was built without it.
  virtual Result<std::unique_ptr<comm::DeviceCommunicator>> make_communicator(const comm::DeviceStream& stream) = 0;
  // Identifies the build of the kernels; measured times are valid for this build only.
  virtual std::string build() const = 0;
  // What the module was built with, and what runs in place of a library that it was built without; empty: nothing to
  // say.
  virtual std::string libraries() const { return {}; }
  // If true, f32 products may round their operands to 10 bits. Like the next two, it applies to kernels bound later.
  virtual void allow_tf32(bool) {}
  // If true, a product that the table of choices lacks is timed when its kernel is bound, and added to the table.
  virtual void measure_products(bool) {}
  // Adds to the table of choices. Config error: an entry that does not parse.
  virtual Status add_product_choices(const ProductChoices&) { return {}; }
  virtual ProductChoices product_choices() const { return {}; }
};

// The symbol `lancet_module`, with C linkage, that a device module exports.
struct AcceleratorModule {
  const char* kernel_build;  // cost::kernel_build() of the program that it belongs to
  Result<int> (*count)();    // devices of this host that the process may use
  Result<std::unique_ptr<Accelerator>> (*open)(int index);
};

// Loads a module for the rest of the process. Config errors: the file or a library that it needs is missing, or the
// module belongs to another build of the program.
Result<const AcceleratorModule*> load_module(const std::string& file);

// A trial of what a step relies on: lets each two of the device's first `streams` shared streams wait for each other,
// with copies in both directions before and after the waits. These streams must be empty. Config error: they have not
// ended within `most`, or what they copied is wrong.
Status cross_streams(backend::Device& device, int streams, std::chrono::milliseconds most = std::chrono::seconds(5));

// Opens device `index` of the module and crosses its streams, those of plans of this number of pipeline stages. Errors:
// the module's; the streams block each other.
Result<std::unique_ptr<Accelerator>> open_device(const AcceleratorModule& module, int index, std::int64_t stages = 1);

// The path of liblancet_cuda.so in the folder of the running program.
std::string cuda_module_path();

}  // namespace lancet::runtime
