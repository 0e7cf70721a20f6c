#include "emulated_kernels.h"

#include <algorithm>
#include <cstring>
#include <new>

namespace lancet::test {

const ops::DeviceKernel* find_emulated_kernel(std::string_view op) {
  static const auto folders = emulated_folders();
  for (std::span<const ops::DeviceKernel> folder : folders)
    for (const ops::DeviceKernel& kernel : folder)
      if (kernel.op == op) return &kernel;
  return nullptr;
}

namespace {
Error missing(std::string_view what) { return internal_error("the host's stream has no " + std::string(what)); }
}  // namespace

Status HostStream::copy(void* to, const void* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
  return {};
}
Status HostStream::zero(void* memory, std::size_t bytes) {
  std::memset(memory, 0, bytes);
  return {};
}
Status HostStream::signal(backend::Flag* flag) {
  *flag = 1;
  return {};
}
Status HostStream::wait(backend::Flag* flag) {
  return *flag ? Status() : Status(internal_error("a wait for a flag that was not signalled"));
}
Status HostStream::record(backend::Event&) { return {}; }
Status HostStream::scale(float* values, std::size_t count, float factor) {
  for (std::size_t i = 0; i < count; ++i) values[i] *= factor;
  return {};
}
Status HostStream::delay(double) { return {}; }
Status HostStream::begin_capture() { return missing("capture"); }
Result<std::unique_ptr<backend::Graph>> HostStream::end_capture() { return missing("capture"); }
Status HostStream::launch(backend::Graph&) { return missing("graphs"); }
Status HostStream::synchronize() {
  ++synchronized;
  return {};
}

HostDevice::~HostDevice() {
  while (!memory_.empty()) free(memory_.back());
}
Result<std::byte*> HostDevice::allocate(std::size_t bytes) {
  memory_.push_back(static_cast<std::byte*>(::operator new(bytes, std::align_val_t(256))));
  std::memset(static_cast<void*>(memory_.back()), 0xff, bytes);
  return memory_.back();
}
void HostDevice::free(std::byte* memory) {
  memory_.erase(std::find(memory_.begin(), memory_.end(), memory));
  ::operator delete(memory, std::align_val_t(256));
}
Result<std::byte*> HostDevice::allocate_host(std::size_t bytes) {
  auto memory = allocate(bytes);
  if (memory.ok()) std::memset(static_cast<void*>(*memory), 0, bytes);
  return memory;
}
Result<std::unique_ptr<backend::Stream>> HostDevice::make_stream(bool) {
  return std::unique_ptr<backend::Stream>(std::make_unique<HostStream>());
}
Result<std::unique_ptr<backend::Event>> HostDevice::make_event() {
  return std::unique_ptr<backend::Event>(std::make_unique<backend::Event>());
}
Result<double> HostDevice::milliseconds(backend::Event&, backend::Event&) { return 0.0; }

}  // namespace lancet::test
