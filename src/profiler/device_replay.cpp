// A replay on an accelerator: all kernels run on one device stream, with an event before and after each.
#include <algorithm>
#include <map>
#include <vector>

#include "lancet/backend/device.h"
#include "lancet/cost/costs.h"
#include "lancet/ir/program.h"
#include "replay.h"
#include "replay_plan.h"

namespace lancet::profiler {
namespace {

using ir::Stream;

// A communicator of `ranks` ranks, each of which is this rank (as Loopback in replay.cpp).
class DeviceLoopback final : public comm::DeviceCommunicator {
 public:
  explicit DeviceLoopback(int ranks) : ranks_(ranks) {}
  int rank() const override { return 0; }
  int size() const override { return ranks_; }
  std::string transport() const override { return "loopback"; }
  Status send_receive(backend::Stream& stream, std::span<const comm::Segment> sends,
                      std::span<const comm::Segment> receives) override {
    std::vector<backend::Copy> copies;
    for (std::size_t i = 0; i < std::min(sends.size(), receives.size()); ++i)
      backend::append_copy(copies, {receives[i].data, sends[i].data, std::min(sends[i].bytes, receives[i].bytes)});
    return stream.copy_all(copies);
  }
  Status all_reduce_sum(backend::Stream&, std::span<float>) override { return {}; }
  Status check() override { return {}; }
  void abort(const std::string&) override {}

 private:
  int ranks_;
};

class DeviceReplay final : public Replay {
 public:
  DeviceReplay(const ir::Plan& plan, runtime::Accelerator& accelerator)
      : plan_(plan),
        accelerator_(accelerator),
        device_(accelerator.device()),
        memory_(make_device_replay_memory(device_)),
        timed_(plan.program.instructions.size()) {}

  Status bind() {
    LANCET_TRY(device_.bind_thread());
    LANCET_ASSIGN(stream_, device_.make_stream(false));
    LANCET_ASSIGN(replay_plan_, ReplayPlan::make(plan_, *memory_));
    std::size_t workspace = 0;
    for (const ir::Instruction& instruction : plan_.program.instructions) {
      LANCET_ASSIGN(ops::KernelArgs args, replay_plan_->arguments(instruction));
      if (ir::is_repeat(instruction)) {  // under even routing its body does not run
        arguments_.push_back(std::move(args));
        continue;
      }
      const ops::DeviceKernel* kernel = accelerator_.find_kernel(instruction.op);
      if (!kernel) return internal_error("op " + instruction.op + " has no kernel on " + device_.name());
      args.device = &device_;
      args.stream = stream_.get();
      args.instruction = &instruction;
      args.notes = &notes_;
      if (instruction.stream == Stream::expert)
        args.group = comm::group_of(loopback(int(cost::all_to_all_ranks(plan_.program, instruction))));
      if (kernel->workspace) workspace = std::max(workspace, kernel->workspace(args));
      arguments_.push_back(std::move(args));
    }
    LANCET_ASSIGN(workspace_, runtime::Block::on_device(device_, workspace));
    for (std::size_t i = 0; i < arguments_.size(); ++i) {
      kernels_.emplace_back();
      const ir::Instruction& at = plan_.program.instructions[i];
      if (at.stream == Stream::reduce || ir::between_stages(at.stream) || ir::is_repeat(at)) continue;
      arguments_[i].workspace = workspace_.start();
      kernels_[i] = accelerator_.find_kernel(arguments_[i].op)->bind(arguments_[i]);
      LANCET_ASSIGN(timed_[i].start, device_.make_event());
      LANCET_ASSIGN(timed_[i].end, device_.make_event());
    }
    return {};
  }

  Status sweep(const std::vector<bool>& chosen, std::vector<std::int64_t>& nanoseconds) override {
    LANCET_TRY(device_.bind_thread());
    nanoseconds.assign(kernels_.size(), 0);
    // The delay puts the host some kernels ahead, so that the kernels follow each other without gaps, as in a step.
    LANCET_TRY(stream_->delay(1));
    for (std::size_t i = 0; i < kernels_.size(); ++i) {
      if (!chosen[i] || !kernels_[i]) continue;
      LANCET_TRY(stream_->record(*timed_[i].start));
      LANCET_TRY(kernels_[i]());
      LANCET_TRY(stream_->record(*timed_[i].end));
    }
    LANCET_TRY(stream_->synchronize());
    for (std::size_t i = 0; i < kernels_.size(); ++i) {
      if (!chosen[i] || !kernels_[i]) continue;
      LANCET_ASSIGN(const double ms, device_.milliseconds(*timed_[i].start, *timed_[i].end));
      nanoseconds[i] = static_cast<std::int64_t>(ms * 1e6);
    }
    return {};
  }

 private:
  struct Timed {
    std::unique_ptr<backend::Event> start, end;
  };
  comm::DeviceCommunicator& loopback(int ranks) { return loopbacks_.try_emplace(ranks, ranks).first->second; }

  const ir::Plan& plan_;
  runtime::Accelerator& accelerator_;
  backend::Device& device_;
  const std::unique_ptr<ReplayMemory> memory_;
  std::unique_ptr<backend::Stream> stream_;
  std::unique_ptr<ReplayPlan> replay_plan_;
  runtime::Block workspace_;
  std::map<int, DeviceLoopback> loopbacks_;
  ops::BindNotes notes_;  // kernels share what they share in a step: roundings of biases, sums of layer norms, counts
  std::vector<ops::KernelArgs> arguments_;
  std::vector<ops::Kernel> kernels_;
  std::vector<Timed> timed_;
};

}  // namespace

Result<std::unique_ptr<Replay>> make_device_replay(const ir::Plan& plan, runtime::Accelerator& accelerator) {
  auto replay = std::make_unique<DeviceReplay>(plan, accelerator);
  LANCET_TRY(replay->bind());
  return std::unique_ptr<Replay>(std::move(replay));
}

}  // namespace lancet::profiler
