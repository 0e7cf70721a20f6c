// The kernels of a plan on an emulated device.
#pragma once
#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "lancet/ops/kernel.h"
#include "lancet/runtime/emulated_device.h"

namespace lancet::runtime {

// The times of a step on an emulated device. Each instruction has an ideal end, by which it would have ended on
// the device that the hardware file declares; the host sleeps until then. Ideal ends are counted from ideal ends, so a
// sleep that takes too long delays nothing after it, unless a message had to begin there.
//
// All times are nanoseconds of the emulated device since the start of the step. A nanosecond of the device lasts
// `dilation` nanoseconds of the host.
class Pace {
 public:
  // signal_ns: from the end of an instruction to the start of one on another stream that waits for it.
  Pace(const ir::Plan& plan, double signal_ns, double dilation);

  void begin_step();
  // Called by the instruction's stream once what it waits for has ended. Sleeps until an instruction of the compute
  // stream that takes `ns` when nothing else uses the device has ended; messages that are under way meanwhile take
  // their share of the device.
  void compute(std::int32_t instruction, double ns);
  // An instruction of another stream: sleeps until it would start. Then follow its messages and, of a repeat, what
  // computes between them.
  void begin(std::int32_t instruction);
  // From now on a message takes `share` of the compute stream's time, for at most `ns`, the time that it takes alone:
  // one that waits for others takes no more.
  void begin_message(std::int32_t instruction, double ns, double share);
  // Sleeps for latency_ns: the message has arrived before this call, and would have taken so much longer. Negative: it
  // took so much longer here than on the device.
  void end_message(std::int32_t instruction, double latency_ns);
  // Sleeps until what takes `ns` of the compute stream's time has ended.
  void compute_beside(std::int32_t instruction, double ns);
  // The instruction is left out of this run: it has ended where it would have started.
  void leave_out(std::int32_t instruction) { end_[std::size_t(instruction)] = ready(instruction); }
  // By how much this machine has delayed the messages of this step, in all: starts after the ideal start, latencies
  // above the declared ones, sleeps that took too long. After the step.
  double late_ns() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Message {
    double start, end, share;  // end: when it takes no more of the device
  };
  double now() const;
  void sleep_until(double time) const;
  double ready(std::int32_t instruction) const;  // its ideal start
  // Time that messages take from the compute stream between two times, the later of which has passed.
  double taken(double from, double to) const;
  std::size_t stream_of(std::int32_t instruction) const;
  std::vector<Message>& messages_of(std::int32_t instruction) { return messages_[stream_of(instruction)]; }
  double& late_of(std::int32_t instruction) { return late_[stream_of(instruction)]; }

  const ir::Plan& plan_;
  const double signal_ns_, dilation_;
  std::vector<std::int32_t> before_;  // the instruction before it on its stream, or -1
  Clock::time_point start_{};
  std::vector<double> end_;  // ideal ends of computation, real ends of messages; written before the stream advances
  mutable std::mutex mutex_;
  std::array<std::vector<Message>, ir::stream_count> messages_;  // by stream, in order
  std::array<double, ir::stream_count> late_{};
};

class EmulatedKernels {
 public:
  // Both outlive this object.
  EmulatedKernels(const ir::Plan& plan, EmulatedDevice& device);
  // The kernel of an instruction without a body, which this object outlives. args: as for the CPU's kernel.
  ops::Kernel bind(std::int32_t instruction, const ops::KernelArgs& args);
  // That of an instruction of a repeat's body, and of the repeat. count: its operand; rounds: runs them.
  ops::Kernel bind_part(std::int32_t repeat, const ir::Instruction& part, const ops::KernelArgs& args);
  ops::Kernel bind_repeat(std::int32_t repeat, const std::int32_t* count, ops::Kernel rounds);
  void begin_run(bool has_body);                                              // without a body it has no micro batches
  void leave_out(std::int32_t instruction) { pace_.leave_out(instruction); }  // in place of calling its kernel
  double late_ns() const { return pace_.late_ns(); }                          // Pace::late_ns

 private:
  // instruction: at, or the repeat in whose body it is.
  ops::Kernel message(std::int32_t instruction, const ir::Instruction& at, ops::KernelArgs args);
  ops::Kernel scores(const ir::Instruction& at, const ops::KernelArgs& args) const;
  std::function<double()> declared(const ir::Instruction& at, const ops::KernelArgs& args) const;
  cost::OpCost cost_of(const ir::Instruction& at) const;

  const ir::Plan& plan_;
  EmulatedDevice& device_;
  Pace pace_;
  std::int64_t pass_ = 0;                                    // micro batches before the current run
  const std::set<const ir::Instruction*> computed_;          // of the plan, and of bodies
  const std::int64_t micro_batches_;                         // of the plan
  std::vector<std::unique_ptr<comm::Communicator>> scaled_;  // one for each kernel that sends
};

}  // namespace lancet::runtime
