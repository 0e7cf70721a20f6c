// What communication and computation take from each other on a rank's cores: measured, not assumed, since it depends on
// the wire, on its drivers and on how many cores a rank has. The planner's costs rest on it (cost/costs.h).
#pragma once
#include <cstddef>
#include <functional>
#include <memory>

#include "lancet/base/result.h"
#include "lancet/comm/communicator.h"
#include "lancet/cost/costs.h"

namespace lancet::profiler {

// One collective call. Milliseconds: of the slowest rank, medians over rounds; core and processor time: mean of the
// ranks, medians over rounds. Processor time stays true on a machine that others use too; core time does not.
struct CallCost {
  double alone_ms = 0;
  double beside_ms = 0;  // while the compute stream is busy
  double core_ms = 0;    // by how much the compute stream is late for it; below 0: less than the noise
  double cpu_ms = 0;     // the process's processor time (the kernel's on its behalf too) beyond the compute stream's
};

// A busy compute stream: products of 256^3 in f32, again and again. Belongs to the thread that made it.
class ComputeLoop {
 public:
  explicit ComputeLoop(int threads);
  ~ComputeLoop();
  // Collective: all ranks with the same `call`, which runs on a thread of its own. `budget_s`: of the calls, about;
  // 4 rounds of calls alone and beside computing.
  Result<CallCost> measure(comm::Communicator& communicator, const std::function<Status()>& call, double budget_s);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The line through a small and a large message: compute-stream time, but no more than the processor time, since what the
// stream is late beyond that, other users of the machine took; never below 0.
cost::CoreCost core_cost(const CallCost& small, double fewer_bytes, const CallCost& large, double more_bytes);

struct NetworkCosts {
  cost::Interference interference;
  // Compute-stream time: how late it is, at most the processor time (CallCost).
  cost::CoreCost all_to_all;  // bytes that one rank sends to the others together
  cost::CoreCost all_reduce;  // bytes of the vector
  std::size_t bytes = 0;      // of the call it was measured on: what each rank sends
  double seconds = 0;         // the whole measurement
};

// Collective: all ranks at once, each with its two communication streams and the threads of its compute stream. The calls'
// size follows the wire: 60 ms of it, from 256 KB to 8 MB a rank. Takes 2 to 3 s. With one rank: nothing costs.
Result<NetworkCosts> measure_interference(comm::Communicator& expert, comm::Communicator& reduce, int threads);

}  // namespace lancet::profiler
