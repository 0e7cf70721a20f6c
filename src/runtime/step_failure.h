// StepFailure: notices that a step on an accelerator cannot end, and ends it. The first error of a stream sets all
// flags, which releases the device streams, and aborts the communicators; then every stream's thread drains its device
// stream.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "device_kernels.h"
#include "device_stream.h"
#include "lancet/backend/device.h"
#include "lancet/base/result.h"
#include "lancet/comm/device_communicator.h"
#include "lancet/ir/program.h"
#include "lancet/runtime/watched_stream.h"

namespace lancet::runtime {

// StreamErrors: the errors of a step's streams. The first stream that fails is the cause; the others end because of it.
class StreamErrors {
 public:
  // No stream may run.
  void clear() {
    for (auto& error : errors_) error.reset();
    first_.store(-1, std::memory_order_relaxed);
  }
  // Called by the stream's own thread. Returns true if no other stream has failed before.
  bool add(std::size_t stream, const Error& error) {
    errors_[stream] = error;
    int none = -1;
    return first_.compare_exchange_strong(none, static_cast<int>(stream));
  }
  // The first stream's error, once all streams have ended.
  Status first() const {
    const int stream = first_.load();
    if (stream < 0) return {};
    return *errors_[static_cast<std::size_t>(stream)];
  }

 private:
  std::array<std::optional<Error>, ir::stream_count> errors_;
  std::atomic<int> first_{-1};
};

// StreamWatch: detects that a stream on an accelerator no longer makes progress. Enqueued calls of communication
// streams wait for other ranks, and a rank that has ended never arrives; so the stream's host thread polls how far the
// device stream is.
class StreamWatch {
 public:
  struct Step {
    std::int32_t instruction = -1;
    std::vector<backend::Flag*> waits;         // what comes before it; the step's time counts from when all are set
    backend::Flag* done = nullptr;             // set by the device stream after the instruction
    comm::DeviceCommunicator* comm = nullptr;  // of the ranks that it waits for; null: of none
  };
  struct Stuck {
    std::int32_t instruction;  // -1: none was running
    Error error;
  };

  StreamWatch() = default;
  // steps: those that are watched. calls: the communicators whose calls are on the stream; look() also returns their
  // errors.
  StreamWatch(std::vector<Step> steps, std::vector<comm::DeviceCommunicator*> calls, std::chrono::milliseconds timeout);

  void start();  // starts a run: all flags are 0
  // Starts one instruction on an empty device stream, without flags; it is watched if it is that of a step.
  void start_alone(std::int32_t instruction);
  void end_alone() { alone_.reset(); }
  // Error: of the transport's calls, or a timeout of the running instruction. Later calls return the same error.
  Status look();
  const std::optional<Stuck>& stuck() const { return stuck_; }

 private:
  using Clock = std::chrono::steady_clock;
  bool under_way();  // skips the steps that are done; true if the current step is the same as before and can run
  const Step* current() const;  // null: none is running

  std::vector<Step> steps_;
  std::vector<comm::DeviceCommunicator*> calls_;
  bool waits_ = false;  // a step waits for other ranks
  std::chrono::milliseconds timeout_{};
  std::size_t at_ = 0;
  std::optional<std::size_t> alone_;  // the step that runs alone
  Clock::time_point since_{}, looked_{};
  std::optional<Stuck> stuck_;
};

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
