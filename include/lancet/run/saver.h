// Saves a run while it goes on: each rank copies its share into a bounded buffer, a thread writes it, and the ranks
// agree at the ends of later steps that all of it is there, before rank 0 makes it a checkpoint.
#pragma once
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>

#include "lancet/run/checkpoint_tensors.h"
#include "lancet/checkpoint/background_writer.h"
#include "lancet/checkpoint/checkpoint.h"
#include "lancet/comm/communicator.h"
#include "lancet/config/config.h"

namespace lancet::run {

// Of the buffer that a rank keeps for saving while it trains.
std::int64_t staging_bytes(const config::Config& config, const ir::Program& program, int ranks);

class Saver {
 public:
  // How long a step waits for a disk: for the save before this one to end; for room in a buffer that is smaller than
  // what is saved, while the disk takes nothing at all.
  struct Patience {
    std::chrono::milliseconds busy{10'000}, stuck{60'000};
  };
  // store: whose tensors are saved; it outlives the saver, which is made when all of them are there. The writer's
  // thread uses the saver and `files` alone.
  Saver(const config::Config& config, comm::Communicator& world, runtime::TensorStore& store,
        checkpoint::FileSystem& files = checkpoint::disk());
  void set_patience(const Patience& patience) { patience_ = patience; }

  // Collective: takes the memory that saving needs, where the config saves while it trains. Config error: there is
  // none.
  Status reserve();
  // Collective: begins to save what the store holds, and comes back when it is copied. False where the save before has
  // not reached the disk in time: the ranks wait for it together, and with `wait` until it has. manifest: all but the
  // files. Errors, on all ranks: of communication; a store that cannot be read. What goes wrong with the disk is told
  // by later calls.
  Result<bool> begin(checkpoint::Manifest manifest, bool wait);
  // begin() gave up waiting, and the save before it is still under way.
  bool postponed() const { return postponed_ && phase_ != Phase::idle; }

  // What the ranks sum up at a step's end: 1 where this rank's part of what is under way has ended.
  float progress() const;
  // Collective, with that sum: takes the next turn once all ranks are ready for it. A save that failed is warned of.
  Status proceed(float sum);
  // Collective: until nothing is under way.
  Status finish();

  const std::optional<Error>& last_failure() const { return failure_; }  // of the last save, where it failed

 private:
  enum class Phase { idle, writing, committing };
  // How far the share is copied.
  struct Cursor {
    std::size_t source = 0;
    std::uint64_t at = 0, left = 0;
  };
  std::chrono::milliseconds tick() const;
  Status make_writer();
  Result<bool> wait_until_idle(std::optional<std::chrono::milliseconds> most);
  Status copy();
  Result<bool> copy_some(Cursor& cursor);
  Status fill(Cursor& cursor, std::span<const std::span<std::byte>> blocks);
  Status all_written();
  Status committed();
  Status settle(const Status& agreed);
  std::filesystem::path folder() const;

  const config::Config& config_;
  comm::Communicator& world_;
  runtime::TensorStore& store_;
  checkpoint::FileSystem& files_;
  RankShare share_;
  Patience patience_;
  Phase phase_ = Phase::idle;
  bool postponed_ = false;
  checkpoint::Manifest manifest_;
  std::optional<Error> failure_;
  std::optional<checkpoint::BackgroundWriter> writer_;  // last: its thread uses the above and ends first
};

}  // namespace lancet::run
