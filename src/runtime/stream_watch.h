// StreamWatch: detects that a stream on an accelerator no longer makes progress. Enqueued calls of communication
// streams wait for other ranks, and a rank that has ended never arrives; so the stream's host thread polls how far the
// device stream is.
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

}  // namespace lancet::runtime
