// Whether a communication stream on an accelerator still moves. What is queued on its queue waits for other ranks, and a
// rank that is gone never comes: so the stream's host thread looks at how far the queue has come.
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
    std::vector<backend::Flag*> waits;  // of other streams; until they are set, the step takes no time of its own
    backend::Flag* done = nullptr;      // set by the queue behind the instruction
  };
  struct Stuck {
    std::int32_t instruction;  // -1: none was under way
    Error error;
  };

  StreamWatch() = default;
  // comm: null for a rank alone, which waits for nobody.
  StreamWatch(std::vector<Step> steps, comm::DeviceCommunicator* comm, std::chrono::milliseconds timeout)
      : steps_(std::move(steps)), comm_(comm), timeout_(timeout) {}

  void start();                                // of a run: all flags are 0
  void start_alone(std::int32_t instruction);  // nothing else is on the queue, flags are not used
  // Error: the transport's, or that the instruction under way takes longer than the timeout. It stays.
  Status look();
  const std::optional<Stuck>& stuck() const { return stuck_; }

 private:
  using Clock = std::chrono::steady_clock;
  bool under_way();  // whether a step has all that it waits for; moves on over those that are done
  std::int32_t instruction() const;

  std::vector<Step> steps_;
  comm::DeviceCommunicator* comm_ = nullptr;
  std::chrono::milliseconds timeout_{};
  std::size_t at_ = 0;
  std::optional<std::int32_t> alone_;
  Clock::time_point since_{}, looked_{};
  std::optional<Stuck> stuck_;
};

}  // namespace lancet::runtime
