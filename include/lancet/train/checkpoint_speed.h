// What saving and loading a model's checkpoint takes on this machine and disk.
#pragma once
#include <filesystem>

#include "lancet/base/result.h"
#include "lancet/comm/communicator.h"
#include "lancet/config/config.h"

namespace lancet::train {

struct CheckpointSpeedOptions {
  int local_ranks = 1;
  std::filesystem::path folder;  // on the disk in question; a folder is made in it, and removed at the end; so is one
                                 // that a process left which was killed
  int steps = 3, rounds = 3;     // that are measured
  bool cached = false;           // reads may find the bytes in memory, where writing has left them
};

// Medians over the rounds; of several ranks the slowest.
struct CheckpointSpeed {
  double gigabytes = 0;  // 10^9 bytes, of the checkpoint
  double step_ms = 0;    // of a training step
  double save_ms = 0;    // that a save holds a step up
  double write_s = 0;    // until it is on the disk
  double read_gb_s = 0;  // its files, front to back, one after the other; ranks share them
  double load_gb_s = 0;  // its tensors, into the model, checked; a tensor that several ranks read counts once
  bool dropped = true;   // what was cached of the files was dropped before each reading
};
// Collective. Errors: as in training; the folder.
Result<CheckpointSpeed> measure_checkpoint(config::Config config, comm::Communicator& world,
                                           const CheckpointSpeedOptions& options);

}  // namespace lancet::train
