#include "replay.h"

#include <fmt/format.h>
#include <algorithm>
#include <cstring>
#include <ctime>
#include <span>

#include "lancet/backend/cpu/parallel.h"
#include "lancet/backend/device.h"
#include "lancet/comm/communicator.h"
#include "lancet/cost/costs.h"
#include "lancet/ir/program.h"

namespace lancet::profiler {
namespace {

using ir::Stream;

// A communicator of `ranks` ranks, each of which is this rank: it copies send segment i to receive segment i. If all
// ranks fill the same slots, each expert receives as many rows as in the real all-to-all.
class Loopback final : public comm::Communicator {
 public:
  explicit Loopback(int ranks) : ranks_(ranks) {}
  int rank() const override { return 0; }
  int size() const override { return ranks_; }
  std::string transport() const override { return "loopback"; }
  Status send_receive(std::span<const comm::Segment> sends, std::span<const comm::Segment> receives) override {
    for (std::size_t i = 0; i < std::min(sends.size(), receives.size()); ++i)
      std::memcpy(receives[i].data, sends[i].data, std::min(sends[i].bytes, receives[i].bytes));
    return {};
  }
  Status all_reduce_sum(std::span<float>) override { return {}; }
  Status broadcast(std::span<std::byte>, int) override { return {}; }
  Status barrier() override { return {}; }
  Result<std::unique_ptr<comm::Communicator>> split(std::span<const int>) override {
    return internal_error("loopback has one stream");
  }
  void abort(const std::string&) override {}
  void set_timeout(std::chrono::milliseconds) override {}

 private:
  int ranks_;
};

std::int64_t read(clockid_t clock) {
  timespec t{};
  clock_gettime(clock, &t);
  return std::int64_t(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

class KernelReplay : public Replay {
 public:
  KernelReplay(const ir::Plan& plan, std::unique_ptr<ReplayMemory> memory)
      : plan_(plan), memory_(std::move(memory)), kernels_(plan.program.instructions.size()) {}

  Status bind() {
    LANCET_TRY(start());
    LANCET_ASSIGN(replay_plan_, ReplayPlan::make(plan_, *memory_));
    std::vector<Found> found(kernels_.size());
    std::size_t workspace = 0;
    for (std::size_t i = 0; i < kernels_.size(); ++i) {
      const ir::Instruction& at = plan_.program.instructions[i];
      LANCET_ASSIGN(ops::KernelArgs args, replay_plan_->arguments(at));
      LANCET_ASSIGN(found[i], find(at, args));
      if (found[i].workspace) workspace = std::max(workspace, found[i].workspace(args));
      arguments_.push_back(std::move(args));
    }
    LANCET_ASSIGN(std::byte* const scratch, memory_->allocate(workspace));
    for (std::size_t i = 0; i < kernels_.size(); ++i) {
      const ir::Instruction& at = plan_.program.instructions[i];
      if (at.stream == Stream::reduce || ir::between_stages(at.stream)) continue;
      arguments_[i].workspace = scratch;
      kernels_[i] = found[i].bind(arguments_[i]);
    }
    return {};
  }

 protected:
  struct Found {
    ops::Kernel (*bind)(const ops::KernelArgs&) = nullptr;
    std::size_t (*workspace)(const ops::KernelArgs&) = nullptr;
  };
  virtual Status start() = 0;
  // The instruction's kernel; completes its arguments.
  virtual Result<Found> find(const ir::Instruction& at, ops::KernelArgs& args) = 0;
  int ranks_of(const ir::Instruction& at) const { return int(cost::all_to_all_ranks(plan_.program, at)); }

  const ir::Plan& plan_;
  const std::unique_ptr<ReplayMemory> memory_;
  std::unique_ptr<ReplayPlan> replay_plan_;
  std::vector<ops::KernelArgs> arguments_;
  std::vector<ops::Kernel> kernels_;  // by instruction; empty for the reduce stream and those between stages
};

class CpuReplay final : public KernelReplay {
 public:
  CpuReplay(const ir::Plan& plan, int threads) : KernelReplay(plan, make_host_replay_memory()), threads_(threads) {}

  Status sweep(const std::vector<bool>& chosen, std::vector<std::int64_t>& nanoseconds) override {
    LANCET_TRY(start());
    nanoseconds.assign(kernels_.size(), 0);
    for (std::size_t i = 0; i < kernels_.size(); ++i) {
      if (!chosen[i] || !kernels_[i]) continue;
      // The processor clock is read before and after the wall clock, so its time is the smaller one only if the thread
      // had to wait.
      const std::int64_t cpu = read(CLOCK_THREAD_CPUTIME_ID), wall = read(CLOCK_MONOTONIC);
      LANCET_TRY(kernels_[i]());
      nanoseconds[i] = read(CLOCK_MONOTONIC) - wall;
      if (threads_ == 1) nanoseconds[i] = std::min(nanoseconds[i], read(CLOCK_THREAD_CPUTIME_ID) - cpu);
    }
    return {};
  }

 private:
  Status start() override {
    backend::cpu::set_threads(threads_);
    return {};
  }
  Result<Found> find(const ir::Instruction& at, ops::KernelArgs& args) override {
    const ops::CpuKernel* kernel = ops::find_cpu_kernel(at.op);
    if (!kernel) return internal_error(fmt::format("op {} has no kernel on the CPU", at.op));
    if (at.stream == Stream::expert)
      args.group = comm::group_of(loopbacks_.try_emplace(ranks_of(at), ranks_of(at)).first->second);
    return Found{kernel->bind, kernel->workspace};
  }

  const int threads_;
  std::map<int, Loopback> loopbacks_;
};

// A communicator of `ranks` ranks, each of which is this rank (as Loopback).
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

// All kernels run on one device stream, with an event before and after each.
class DeviceReplay final : public KernelReplay {
 public:
  DeviceReplay(const ir::Plan& plan, runtime::Accelerator& accelerator)
      : KernelReplay(plan, make_device_replay_memory(accelerator.device())),
        accelerator_(accelerator),
        device_(accelerator.device()),
        timed_(kernels_.size()) {}
  ~DeviceReplay() override { kernels_.clear(); }  // before what they use

  Status sweep(const std::vector<bool>& chosen, std::vector<std::int64_t>& nanoseconds) override {
    LANCET_TRY(device_.bind_thread());
    nanoseconds.assign(kernels_.size(), 0);
    // The delay puts the host some kernels ahead, so that the kernels follow each other without gaps, as in a step.
    LANCET_TRY(stream_->delay(1));
    for (std::size_t i = 0; i < kernels_.size(); ++i) {
      if (!chosen[i] || !kernels_[i]) continue;
      if (!timed_[i].start) {
        LANCET_ASSIGN(timed_[i].start, device_.make_event());
        LANCET_ASSIGN(timed_[i].end, device_.make_event());
      }
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
  Status start() override {
    LANCET_TRY(device_.bind_thread());
    LANCET_ASSIGN(stream_, device_.make_stream(false));
    return {};
  }
  Result<Found> find(const ir::Instruction& at, ops::KernelArgs& args) override {
    const ops::DeviceKernel* kernel = accelerator_.find_kernel(at.op);
    if (!kernel) return internal_error("op " + at.op + " has no kernel on " + device_.name());
    args.device = &device_;
    args.stream = stream_.get();
    args.instruction = &at;
    args.notes = &notes_;
    if (at.stream == Stream::expert)
      args.group = comm::group_of(loopbacks_.try_emplace(ranks_of(at), ranks_of(at)).first->second);
    return Found{kernel->bind, kernel->workspace};
  }

  runtime::Accelerator& accelerator_;
  backend::Device& device_;
  std::unique_ptr<backend::Stream> stream_;
  std::map<int, DeviceLoopback> loopbacks_;
  ops::BindNotes notes_;  // kernels share what they share in a step: roundings of biases, sums of layer norms, counts
  std::vector<Timed> timed_;
};

}  // namespace

Result<std::unique_ptr<Replay>> Replay::create(const ir::Plan& plan, int threads, runtime::Accelerator* accelerator) {
  std::unique_ptr<KernelReplay> replay;
  if (accelerator)
    replay = std::make_unique<DeviceReplay>(plan, *accelerator);
  else
    replay = std::make_unique<CpuReplay>(plan, threads);
  LANCET_TRY(replay->bind());
  return std::unique_ptr<Replay>(std::move(replay));
}

}  // namespace lancet::profiler
