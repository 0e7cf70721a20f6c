// The entry point of the CUDA plugin (liblancet_cuda.so).
#include <sstream>

#include "lancet/backend/cuda/device.h"
#include "lancet/backend/cuda/matmul.h"
#include "lancet/backend/cuda/matmul_choices.h"
#include "lancet/cost/costs.h"
#include "lancet/runtime/accelerator.h"

namespace lancet::runtime {

std::string_view cuda_build();  // generated

namespace {

class CudaAccelerator final : public Accelerator {
 public:
  explicit CudaAccelerator(std::unique_ptr<backend::Device> device) : device_(std::move(device)) {}
  backend::Device& device() override { return *device_; }
  const ops::DeviceKernel* find_kernel(std::string_view op) const override { return ops::find_cuda_kernel(op); }
  Result<std::unique_ptr<comm::DeviceCommunicator>> make_communicator(const comm::DeviceStream& stream) override {
#ifdef LANCET_HAVE_NCCL
    return comm::make_nccl(stream);
#else
    static_cast<void>(stream);
    return config_error(
        "comm.transport: expected a program built with NCCL for nccl, found one without; mpi goes through "
        "the host's memory");
#endif
  }
  std::string build() const override { return std::string(cuda_build()); }
  std::string libraries() const override { return LANCET_CUDA_LIBRARIES; }
  void allow_tf32(bool allowed) override {
    settings_.tf32 = allowed;
    backend::cuda::set_matmul_settings(settings_);
  }
  void measure_products(bool measured) override {
    settings_.measure = measured;
    backend::cuda::set_matmul_settings(settings_);
  }
  Status add_product_choices(const ProductChoices& choices) override {
    std::string lines;
    for (const auto& [product, algorithm] : choices) lines += product + " = " + algorithm + "\n";
    return backend::cuda::add_matmul_choices(lines);
  }
  ProductChoices product_choices() const override {
    ProductChoices choices;
    std::istringstream lines(backend::cuda::matmul_choices());
    for (std::string line; std::getline(lines, line);)
      if (const auto mark = line.rfind(" = "); mark != std::string::npos)
        choices[line.substr(0, mark)] = line.substr(mark + 3);
    return choices;
  }

 private:
  backend::cuda::MatmulSettings settings_;
  std::unique_ptr<backend::Device> device_;
};

Result<std::unique_ptr<Accelerator>> open(int index) {
  LANCET_ASSIGN(auto device, backend::cuda::open_device(index));
  return std::unique_ptr<Accelerator>(std::make_unique<CudaAccelerator>(std::move(device)));
}

}  // namespace
}  // namespace lancet::runtime

extern "C" __attribute__((visibility("default"))) const lancet::runtime::AcceleratorModule lancet_module;
const lancet::runtime::AcceleratorModule lancet_module = {lancet::cost::kernel_build().data(),
                                                          lancet::backend::cuda::count_devices, lancet::runtime::open};
