// StepFailure: notices that a step on an accelerator cannot end, and ends it. The first error of a stream sets all
// flags, which releases the device streams, and aborts the communicators; then every stream's thread drains its device
// stream.
#pragma once
#include <array>
#include <atomic>
#include <chrono>

#include "device_kernels.h"
#include "device_stream.h"
#include "lancet/runtime/watched_stream.h"
#include "stream_errors.h"
#include "stream_watch.h"

namespace lancet::runtime {

class StepFailure {
 public:
  // All arguments outlive this object. queues: may be empty until watch_steps().
  StepFailure(const ir::Plan& plan, const ExecutorOptions& options, const DeviceQueues& queues, const StepFlags& flags)
      : plan_(plan), options_(options), queues_(queues), flags_(flags) {}
  // Called once the flags are allocated: watches the communication streams in the runs to come.
  void watch_steps(const Streams& streams, const FlagPlan& flag_plan);

  void start_step();  // all device streams are idle
  void start_stream(std::size_t stream) { watches_[stream].start(); }
  void start_alone(std::size_t stream, std::int32_t instruction) { watches_[stream].start_alone(instruction); }
  void end_alone(std::size_t stream) { watches_[stream].end_alone(); }

  // Records a stream's error, which ends the step.
  void fail(std::size_t stream, const Error& error);
  bool failed() const { return failed_.load(); }
  Status first() const { return errors_.first(); }

  // The health check of a wait for the stream's device stream: an error if the wait cannot end well.
  Status watch(std::size_t stream);
  // Waits until the stream's device stream is empty; after a failure, for at most 30 s.
  Status drain(std::size_t stream);
  // Waits for the end of the stream, whose work of the step has been enqueued or could not be. Its device stream is
  // empty afterwards, unless the device itself hangs.
  void finish(std::size_t stream, const Status& enqueued);

  // Returns an error of a transport's calls that came up after they were enqueued.
  Status check_transports() const;

  // Adds what failed to the message: the instruction that the stream is stuck at, or else the stream.
  Error of_stream(std::size_t stream, const Error& error) const;
  // Likewise, or else the instruction whose kernel returned the error.
  Error of_instruction(std::size_t stream, std::int32_t instruction, const Error& error) const;

 private:
  using Clock = std::chrono::steady_clock;

  const ir::Plan& plan_;
  const ExecutorOptions& options_;
  const DeviceQueues& queues_;
  const StepFlags& flags_;
  StreamErrors errors_;
  std::atomic<bool> failed_{false};
  std::atomic<Clock::time_point> failed_at_{};
  std::array<UsualWait, ir::stream_count> usual_;      // waits for the streams' ends
  std::array<StreamWatch, ir::stream_count> watches_;  // of the communication streams
};

}  // namespace lancet::runtime
