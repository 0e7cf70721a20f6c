// Saves a run while it goes on: each rank copies its share into a bounded buffer, a thread writes it, and the ranks
// agree at the ends of later steps that all of it is there, before rank 0 makes it a checkpoint.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>

#include "checkpoint_tensors.h"
#include "lancet/checkpoint/background_writer.h"
#include "lancet/checkpoint/checkpoint.h"
#include "lancet/comm/communicator.h"
#include "lancet/config/config.h"

namespace lancet::train {

// Of the buffer that a rank keeps for saving while it trains.
std::int64_t staging_bytes(const config::Config& config, const ir::Program& program, int ranks);

class Saver {
 public:
  // store: whose tensors are saved; it outlives the saver, which is made when all of them are there.
  Saver(const config::Config& config, comm::Communicator& world, runtime::TensorStore& store,
        checkpoint::FileSystem& files = checkpoint::disk());

  // Collective: begins to save what the store holds, and comes back when it is copied. Waits for a save under way.
  // manifest: all but the files. Errors: of communication; what goes wrong with the disk is told by later calls.
  Status begin(checkpoint::Manifest manifest);

  // What the ranks sum up at a step's end: 1 where this rank's part of what is under way has ended.
  float progress() const;
  // Collective, with that sum: takes the next turn once all ranks are ready for it. A save that failed is warned of.
  Status proceed(float sum);
  // Collective: until nothing is under way.
  Status finish();

  const std::optional<Error>& last_failure() const { return failure_; }  // of the last save, where it failed

 private:
  enum class Phase { idle, writing, committing };
  Status copy();
  Status all_written();
  Status committed();
  Status settle(const Status& agreed);
  std::filesystem::path folder() const;

  const config::Config& config_;
  comm::Communicator& world_;
  runtime::TensorStore& store_;
  checkpoint::FileSystem& files_;
  RankShare share_;
  Phase phase_ = Phase::idle;
  checkpoint::Manifest manifest_;
  std::optional<Error> failure_;
  std::optional<checkpoint::BackgroundWriter> writer_;  // last: its thread uses the above and ends first
};

}  // namespace lancet::train
