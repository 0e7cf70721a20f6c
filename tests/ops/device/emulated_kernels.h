// The device kernels as the host runs them, and a device with the host's memory, whose streams have finished their work
// when a call returns.
#pragma once
#include <span>
#include <vector>

#include "doubles/device_traits.h"
#include "lancet/ops/kernel.h"

namespace lancet::test {

std::vector<std::span<const ops::DeviceKernel>> emulated_folders();
const ops::DeviceKernel* find_emulated_kernel(std::string_view op);  // null if there is none

class HostStream : public backend::Stream {
 public:
  Status copy(void* to, const void* from, std::size_t bytes) override;
  Status zero(void* memory, std::size_t bytes) override;
  Status signal(backend::Flag* flag) override;
  Status wait(backend::Flag* flag) override;  // an error if it has not been signalled
  Status record(backend::Event& event) override;
  Status scale(float* values, std::size_t count, float factor) override;
  Status delay(double milliseconds) override;
  Status mark() override { return {}; }
  Status delay_from_mark(double milliseconds) override { return delay(milliseconds); }
  Status begin_capture() override;
  Result<std::unique_ptr<backend::Graph>> end_capture() override;
  Status launch(backend::Graph& graph) override;
  Status synchronize() override;
  Result<bool> idle() override { return true; }
  void* native() override { return nullptr; }
  // A kernel that calls it waits on the host within a step.
  int synchronized = 0;
};

class HostDevice : public backend::Device {
 public:
  ~HostDevice() override;
  std::string name() const override { return "host"; }
  std::string architecture() const override { return "host"; }
  const backend::DeviceTraits& traits() const override { return hopper_traits; }
  std::string identity() const override { return "host"; }
  std::int64_t memory_bytes() const override { return std::int64_t{1} << 30; }
  std::int64_t free_bytes() const override { return std::int64_t{1} << 30; }
  Status bind_thread() override { return {}; }
  Result<std::byte*> allocate(std::size_t bytes) override;
  void free(std::byte* memory) override;
  Result<std::byte*> allocate_host(std::size_t bytes) override;
  void free_host(std::byte* memory) override { free(memory); }
  Result<std::unique_ptr<backend::Stream>> make_stream(bool urgent) override;
  Result<std::unique_ptr<backend::Event>> make_event() override;
  Result<double> milliseconds(backend::Event& from, backend::Event& to) override;
  std::int64_t blocks() const { return std::int64_t(memory_.size()); }  // not yet freed

 private:
  std::vector<std::byte*> memory_;
};

}  // namespace lancet::test
