// An accelerator without a device: the CPU's kernels on the streams of a host queue. Runs behave as on a GPU, except
// that the arithmetic equals the CPU's to the bit.
#pragma once
#include <map>
#include <string>

#include "doubles/host_queue.h"
#include "lancet/backend/cpu/parallel.h"
#include "lancet/ops/catalogue.h"
#include "lancet/runtime/accelerator.h"

namespace lancet::test {

// Runs the stream's host communicator on the stream's thread.
class HostQueueCommunicator final : public comm::DeviceCommunicator {
 public:
  explicit HostQueueCommunicator(comm::Communicator& host) : host_(host) {}
  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }
  std::string transport() const override { return "host queue"; }
  Status send_receive(backend::Stream&, std::span<const comm::Segment>, std::span<const comm::Segment>) override {
    return internal_error("the kernels of this accelerator use host()");
  }
  Status all_reduce_sum(backend::Stream&, std::span<float>) override {
    return internal_error("the kernels of this accelerator use host()");
  }
  Status check() override { return {}; }
  void abort(const std::string& why) override { host_.abort(why); }
  comm::Communicator& host() { return host_; }

 private:
  comm::Communicator& host_;
};

// Presents any other device communicator in the form that the CPU's kernels call.
class DeviceAsHost final : public comm::Communicator {
 public:
  DeviceAsHost(comm::DeviceCommunicator& device, backend::Stream& stream) : device_(device), stream_(stream) {}
  int rank() const override { return device_.rank(); }
  int size() const override { return device_.size(); }
  std::string transport() const override { return device_.transport(); }
  Status send_receive(std::span<const comm::Segment> sends, std::span<const comm::Segment> receives) override {
    return device_.send_receive(stream_, sends, receives);
  }
  Status all_reduce_sum(std::span<float> values) override { return device_.all_reduce_sum(stream_, values); }
  Status broadcast(std::span<std::byte>, int) override { return internal_error("no kernel broadcasts"); }
  Status barrier() override { return internal_error("no kernel meets others"); }
  Result<std::unique_ptr<comm::Communicator>> split(std::span<const int>) override {
    return internal_error("no kernel splits");
  }
  void abort(const std::string& why) override { device_.abort(why); }
  void set_timeout(std::chrono::milliseconds) override {}

 private:
  comm::DeviceCommunicator& device_;
  backend::Stream& stream_;
};

class HostAccelerator final : public runtime::Accelerator {
 public:
  explicit HostAccelerator(const HostQueueOptions& options = {}) : device_(make_host_queue(options)) {
    for (const ops::OpDef* op : ops::all_ops())
      if (ops::find_cpu_kernel(op->name))
        kernels_[std::string(op->name)] = {
            .op = op->name, .bind = bind, .workspace = workspace, .recordable = op->stream == ir::Stream::compute};
  }
  backend::Device& device() override { return *device_; }
  const ops::DeviceKernel* find_kernel(std::string_view op) const override {
    const auto it = kernels_.find(op);
    return it == kernels_.end() ? nullptr : &it->second;
  }
  Result<std::unique_ptr<comm::DeviceCommunicator>> make_communicator(const comm::DeviceStream& stream) override {
    return std::unique_ptr<comm::DeviceCommunicator>(std::make_unique<HostQueueCommunicator>(*stream.host));
  }
  std::string build() const override { return "host"; }
  // One product, for which measuring returns `choice`.
  std::string choice;
  runtime::ProductChoices choices;
  int measured = 0;
  void measure_products(bool on) override {
    measured += on;
    if (on && !choice.empty()) choices.try_emplace("a product", choice);
  }
  Status add_product_choices(const runtime::ProductChoices& added) override {
    for (const auto& [product, algorithm] : added) {
      if (algorithm == "none") return config_error("expected an algorithm, found none");
      choices.insert_or_assign(product, algorithm);
    }
    return {};
  }
  runtime::ProductChoices product_choices() const override { return choices; }
  // Its calls wait for the stream, like kernels whose host code must know counts.
  void wait_in(const std::string& op) {
    kernels_.at(op).recordable = false;
    kernels_.at(op).bind = bind_waiting;
  }

 private:
  // The arguments as the stream's thread sees them.
  static ops::KernelArgs host_arguments(const ops::KernelArgs& args) {
    ops::KernelArgs host{
        .op = args.op, .operands = args.operands, .results = args.results, .attributes = args.attributes};
    for (auto* views : {&host.operands, &host.results})
      for (ops::TensorView& view : *views) view.data = host_address(view.data);
    host.workspace = static_cast<std::byte*>(host_address(args.workspace));
    host.group = args.group;
    if (auto* comm = dynamic_cast<HostQueueCommunicator*>(args.group.device_comm)) host.group.comm = &comm->host();
    return host;
  }
  static std::size_t workspace(const ops::KernelArgs& args) {
    const ops::CpuKernel* kernel = ops::find_cpu_kernel(args.op);
    backend::cpu::set_threads(1);  // scratch depends on the threads; the stream's thread uses 1
    return kernel->workspace ? kernel->workspace(host_arguments(args)) : 0;
  }
  static ops::Kernel bind(const ops::KernelArgs& args) {
    auto* queue = static_cast<HostQueueStream*>(args.stream->native());
    ops::KernelArgs host = host_arguments(args);
    std::shared_ptr<DeviceAsHost> adapter;
    if (args.group.device_comm && !host.group.comm)
      adapter = std::make_shared<DeviceAsHost>(*args.group.device_comm, *queue);
    if (adapter) host.group.comm = adapter.get();
    return [stream = args.stream, adapter, kernel = ops::find_cpu_kernel(args.op)->bind(host)] {
      return static_cast<HostQueueStream*>(stream->native())->enqueue([kernel]() -> Status {
        backend::cpu::set_threads(1);
        return kernel();
      });
    };
  }
  static ops::Kernel bind_waiting(const ops::KernelArgs& args) {
    return [stream = args.stream, put = bind(args)]() -> Status {
      LANCET_TRY(stream->synchronize());
      return put();
    };
  }

  std::unique_ptr<backend::Device> device_;
  std::map<std::string, ops::DeviceKernel, std::less<>> kernels_;
};

}  // namespace lancet::test
