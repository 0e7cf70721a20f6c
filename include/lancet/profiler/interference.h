// What the profiler measures with, and the measurement of how much communication and computation slow each other down
// on a rank's cores. This depends on the network, its drivers and the number of cores of a rank. The planner's costs
// use it (cost/costs.h).
#pragma once
#include <array>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>

#include "lancet/base/result.h"
#include "lancet/comm/device_communicator.h"
#include "lancet/cost/costs.h"
#include "lancet/ir/program.h"
#include "lancet/runtime/accelerator.h"

namespace lancet::profiler {

struct ProfilerOptions {
  int threads = 1;                              // of a rank's compute stream
  runtime::Accelerator* accelerator = nullptr;  // that runs the ops; null: the CPU
  // By stream: all ranks and the groups that the plans name, with communicators on expert and reduce unless there is
  // one rank. `world` synchronises the ranks' measurements.
  comm::Communicator* world = nullptr;
  std::array<comm::Groups, ir::stream_count> streams{};
  std::chrono::milliseconds timeout = std::chrono::seconds(300);  // of a call between accelerators
  // Time for the sweeps over one plan. At least 5 sweeps run, or 3 if a sweep lasts more than 4 s.
  double seconds = 2;
  // Asked before each measurement, on every rank: true on any rank ends the profiler. Set on all ranks or on none.
  std::function<bool()> interrupted = {};
};

// Collective: an agreed error with ExitCode::saved, on all ranks, if any rank is interrupted.
Status check_interrupted(const ProfilerOptions& options);

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
