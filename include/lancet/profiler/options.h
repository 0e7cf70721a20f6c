// What the profiler measures with.
#pragma once
#include <array>
#include <chrono>
#include <functional>

#include "lancet/base/result.h"
#include "lancet/comm/device_communicator.h"
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

}  // namespace lancet::profiler
