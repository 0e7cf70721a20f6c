#include "replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <map>
#include <span>

#include "lancet/backend/cpu/buffer.h"
#include "lancet/backend/cpu/parallel.h"
#include "lancet/comm/communicator.h"
#include "lancet/cost/costs.h"
#include "lancet/ir/program.h"
#include "replay_plan.h"

namespace lancet::profiler {
namespace {

using backend::cpu::Buffer;
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

class CpuReplay final : public Replay {
 public:
  CpuReplay(const ir::Plan& plan, int threads)
      : plan_(plan), threads_(threads), kernels_(plan.program.instructions.size()) {}

  Status bind() {
    backend::cpu::set_threads(threads_);
    LANCET_ASSIGN(replay_plan_, ReplayPlan::make(plan_, *memory_));
    std::vector<ops::KernelArgs> arguments;
    std::size_t workspace = 0;
    for (const ir::Instruction& instruction : plan_.program.instructions) {
      LANCET_ASSIGN(ops::KernelArgs args, replay_plan_->arguments(instruction));
      if (ir::is_repeat(instruction)) {  // under even routing its body does not run
        arguments.push_back(std::move(args));
        continue;
      }
      const ops::CpuKernel* kernel = ops::find_cpu_kernel(instruction.op);
      if (!kernel) return internal_error(fmt::format("op {} has no kernel on the CPU", instruction.op));
      if (instruction.stream == Stream::expert)
        args.group = comm::group_of(loopback(int(cost::all_to_all_ranks(plan_.program, instruction))));
      if (kernel->workspace) workspace = std::max(workspace, kernel->workspace(args));
      arguments.push_back(std::move(args));
    }
    workspace_ = Buffer::raw(workspace);
    for (std::size_t i = 0; i < kernels_.size(); ++i) {
      const ir::Instruction& at = plan_.program.instructions[i];
      if (at.stream == Stream::reduce || ir::between_stages(at.stream) || ir::is_repeat(at)) continue;
      arguments[i].workspace = workspace_.as<std::byte>();
      kernels_[i] = ops::find_cpu_kernel(arguments[i].op)->bind(arguments[i]);
    }
    return {};
  }

  Status sweep(const std::vector<bool>& chosen, std::vector<std::int64_t>& nanoseconds) override {
    backend::cpu::set_threads(threads_);
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
  comm::Communicator& loopback(int ranks) { return loopbacks_.try_emplace(ranks, ranks).first->second; }

  const ir::Plan& plan_;
  const int threads_;
  const std::unique_ptr<ReplayMemory> memory_ = make_host_replay_memory();
  std::unique_ptr<ReplayPlan> replay_plan_;
  Buffer workspace_;
  std::map<int, Loopback> loopbacks_;
  std::vector<ops::Kernel> kernels_;  // by instruction; empty for the reduce stream and those between stages
};

}  // namespace

Result<std::unique_ptr<Replay>> Replay::create(const ir::Plan& plan, int threads, runtime::Accelerator* accelerator) {
  if (accelerator) return make_device_replay(plan, *accelerator);
  auto replay = std::make_unique<CpuReplay>(plan, threads);
  LANCET_TRY(replay->bind());
  return std::unique_ptr<Replay>(std::move(replay));
}

}  // namespace lancet::profiler
