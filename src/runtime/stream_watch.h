// StreamWatch: detects that a stream on an accelerator no longer makes progress. Enqueued calls of communication
// streams wait for other ranks, as do kernels that make signals on any stream, and a rank that has ended never arrives;
// so the stream's host thread polls how far the device stream is.
#pragma once
#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "lancet/backend/device.h"
#include "lancet/comm/device_communicator.h"

namespace lancet::runtime {

class StreamWatch {
 public:
  struct Step {
    std::int32_t instruction = -1;
    std::vector<backend::Flag*> waits;  // what comes before it; the step's time counts from when all are set
    backend::Flag* done = nullptr;      // set by the device stream after the instruction
  };
  struct Stuck {
    std::int32_t instruction;  // -1: none was running
    Error error;
  };

  StreamWatch() = default;
  // steps: those that are watched. comm: null if the stream waits for no other rank. calls: the stream is that of
  // comm's calls, so look() also returns their errors.
  StreamWatch(std::vector<Step> steps, comm::DeviceCommunicator* comm, bool calls, std::chrono::milliseconds timeout)
      : steps_(std::move(steps)), comm_(comm), calls_(calls), timeout_(timeout) {}

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
  std::int32_t instruction() const;

  std::vector<Step> steps_;
  comm::DeviceCommunicator* comm_ = nullptr;
  bool calls_ = false;
  std::chrono::milliseconds timeout_{};
  std::size_t at_ = 0;
  std::optional<std::int32_t> alone_;
  Clock::time_point since_{}, looked_{};
  std::optional<Stuck> stuck_;
};

}  // namespace lancet::runtime
