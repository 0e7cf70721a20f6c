// Measures how much communication and computation slow each other down on a rank's cores. This depends on the network,
// its drivers and the number of cores of a rank. The planner's costs use it (cost/costs.h).
#pragma once
#include <cstddef>
#include <functional>
#include <memory>

#include "lancet/base/result.h"
#include "lancet/comm/communicator.h"
#include "lancet/cost/costs.h"

namespace lancet::profiler {

// The cost of one collective call, in milliseconds; each number is a median over rounds. alone_ms and beside_ms: of the
// slowest rank; core_ms and cpu_ms: mean over the ranks. Other users of the machine distort core_ms, but not cpu_ms.
struct CallCost {
  double alone_ms = 0;
  double beside_ms = 0;  // while the compute stream is busy
  double core_ms = 0;    // the delay of the compute stream per call; below 0: less than the noise
  double cpu_ms = 0;     // the process's processor time (the kernel's on its behalf too) beyond the compute stream's
};

// A busy compute stream: repeats products of 256^3 in f32. Belongs to the thread that made it.
class ComputeLoop {
 public:
  explicit ComputeLoop(int threads);
  ~ComputeLoop();
  // Collective: measures the same `call` on all ranks, in 4 rounds of calls alone and beside computation; beside it,
  // the calls run on a thread of their own. `budget_s`: about how long all calls may take together.
  Result<CallCost> measure(comm::Communicator& communicator, const std::function<Status()>& call, double budget_s);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The line through a small and a large message of compute-stream time, at least 0 and at most the processor time, since
// other users of the machine cause any further delay.
cost::CoreCost core_cost(const CallCost& small, double fewer_bytes, const CallCost& large, double more_bytes);

struct NetworkCosts {
  cost::Interference interference;
  cost::CoreCost all_to_all;  // by the bytes that one rank sends to all others together
  cost::CoreCost all_reduce;  // by the bytes of the vector
  std::size_t bytes = 0;      // that each rank sent in the measured call
  double seconds = 0;         // of the whole measurement
};

// Collective: all ranks measure at once, each with its two communication streams and the threads of its compute stream.
// The size of a call is what the network moves in 60 ms, within 256 KB to 8 MB per rank. Takes 2 to 3 s. With one rank
// all costs are 0. before_each: called, on all ranks, before each of its four measurements; an error ends them.
Result<NetworkCosts> measure_interference(
    comm::Communicator& expert, comm::Communicator& reduce, int threads,
    const std::function<Status()>& before_each = [] { return Status(); });

}  // namespace lancet::profiler
