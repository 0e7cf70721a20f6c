// What `lancet bench ops` measures: the time of each op of a training step beside its floor.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/comm/communicator.h"
#include "lancet/config/config.h"
#include "lancet/runtime/accelerator.h"

namespace lancet::cli {

// All instructions of one op and role. What is summed up is of one run of the plan.
struct OpRow {
  std::string op, role, stream;
  int calls = 0;
  double flops = 0, bytes = 0;
  double ms = 0;                        // median over the steps
  std::optional<double> floor_ms = {};  // none: the op is on a communication stream
  bool cached = false;                  // its bytes pass faster than those of a large copy
};

// What the device reaches on large tensors.
struct Ceilings {
  double flops = 0;      // of products, per second
  double bandwidth = 0;  // bytes that are read and written, per second
};

// Sets the floors of the ops on the compute stream, max(flops / ceilings.flops, bytes / ceilings.bandwidth), and
// `cached`. Sorts the rows by the time that is lost, ms - floor_ms, largest first, and then those without a floor by
// ms.
void add_floors(std::vector<OpRow>& rows, const Ceilings& ceilings);

struct OpTimes {
  std::string device;  // "NVIDIA H200", or the threads of a CPU
  Ceilings ceilings;
  double step_ms = 0;      // median of the steps in which no op is timed by itself
  double expert_rows = 0;  // train::Trainer::kept_share() of the steps in which ops are timed, their mean
  std::vector<OpRow> rows;
};

struct OpOptions {
  int steps = 10;
  int local_ranks = 1;
  runtime::Accelerator* accelerator = nullptr;        // null: the CPU
  std::int64_t product_size = 8192;                   // on an accelerator: side of the products of the first ceiling
  std::int64_t copied_bytes = std::int64_t{1} << 30;  // and the copy of the second
};

// Collective: measures the ceilings and the ops, each rank its own. On an accelerator half of the steps time each op
// between two events on its stream, since a recorded step has no times of ops (runtime::Executor::spans). Errors: the
// trainer's.
Result<OpTimes> measure_ops(config::Config config, const OpOptions& options, comm::Communicator& world);

}  // namespace lancet::cli
