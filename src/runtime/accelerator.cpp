#include "lancet/runtime/accelerator.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <filesystem>

#include "lancet/base/files.h"
#include "lancet/cost/costs.h"
#include "stream_crossing.h"

namespace lancet::runtime {

Result<const AcceleratorModule*> load_module(const std::string& file) {
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored))
    return config_error(
        fmt::format("device: expected the module {} of a build with CUDA (LANCET_CUDA=ON), found no such file", file));
  // Never unloaded: its kernels, threads and handles end with the process.
  void* library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (!library) {
    const char* why = ::dlerror();
    return config_error(fmt::format("device: cannot load the module {}: {}", file, why ? why : "unknown reason"));
  }
  const auto* module = static_cast<const AcceleratorModule*>(::dlsym(library, "lancet_module"));
  if (!module) return config_error(fmt::format("device: expected a module of this program at {}, found none", file));
  if (module->kernel_build != cost::kernel_build())
    return config_error(fmt::format("device: expected the module of build {} at {}, found that of {}: build both again",
                                    cost::kernel_build(), file, module->kernel_build));
  return module;
}

Result<std::unique_ptr<Accelerator>> open_device(const AcceleratorModule& module, int index) {
  LANCET_ASSIGN(auto accelerator, module.open(index));
  LANCET_TRY(cross_streams(accelerator->device()));
  return accelerator;
}

std::string cuda_module_path() {
  const auto program = program_path();
  return ((program.empty() ? std::filesystem::path(".") : program.parent_path()) / "liblancet_cuda.so").string();
}

}  // namespace lancet::runtime
