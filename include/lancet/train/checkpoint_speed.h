// Measures the time to save and load a model's checkpoint on this machine and disk.
#pragma once
#include <filesystem>

#include "lancet/base/result.h"
#include "lancet/comm/communicator.h"
#include "lancet/config/config.h"

namespace lancet::train {

struct CheckpointSpeedOptions {
  int local_ranks = 1;
  std::filesystem::path folder;  // on the disk to measure; a temporary folder in it is removed at the end, as are those
                                 // of processes that were killed
  int steps = 3, rounds = 3;     // measured training steps; saves and loads
  bool cached = false;           // true: reads may find the written bytes in memory
};

// Medians over the rounds of the slowest rank's times.
struct CheckpointSpeed {
  double gigabytes = 0;  // size of the checkpoint in 10^9 bytes
  double step_ms = 0;    // of a training step
  double save_ms = 0;    // time that a save holds a step up
  double write_s = 0;    // time until the checkpoint is on the disk
  double read_gb_s = 0;  // plain reading of its files, one after the other; the ranks share the files
  double load_gb_s = 0;  // checked loading into the model; a tensor that several ranks read counts once
  bool dropped = true;   // the files' cached bytes were dropped before each reading
};
// Collective. Errors: those of training; of the folder.
Result<CheckpointSpeed> measure_checkpoint(config::Config config, comm::Communicator& world,
                                           const CheckpointSpeedOptions& options);

}  // namespace lancet::train
