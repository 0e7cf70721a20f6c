// Saves a run while it trains: each rank copies its share into a bounded buffer and a thread writes it; at the ends of
// later steps the ranks agree that all shares are on the disk, and rank 0 commits the checkpoint.
#pragma once
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "lancet/checkpoint/background_writer.h"
#include "lancet/checkpoint/checkpoint.h"
#include "lancet/comm/communicator.h"
#include "lancet/config/config.h"
#include "lancet/run/checkpoint_tensors.h"

namespace lancet::run {

// Bytes of the buffer that a rank keeps for saving while it trains, and of the tensors that it gathers for a moment. Of
// tensors that are split otherwise than among the holders of whole experts also those of the pieces that arrive.
std::int64_t staging_bytes(const config::Config& config, const ir::Program& program, const ir::Mesh& mesh);

class Saver {
 public:
  // How long a step waits for a disk. busy: for the save before this one to end. stuck: for space in a full buffer
  // while the disk makes no progress.
  struct Patience {
    std::chrono::milliseconds busy{10'000}, stuck{60'000};
  };
  // store: holds all tensors to save already; it outlives the saver. The writer's thread uses the saver and `files`
  // alone.
  Saver(const config::Config& config, comm::Communicator& world, runtime::TensorStore& store,
        checkpoint::FileSystem& files = checkpoint::disk());
  void set_patience(const Patience& patience) { patience_ = patience; }

  // Collective: allocates the buffer if the config saves while it trains. Config error: there is not enough memory.
  Status reserve();
  // Collective: begins to save the store's tensors and returns when they are copied. False if the save before has not
  // reached the disk within Patience::busy; with `wait` it waits until it has. manifest: everything but the files.
  // Errors, on all ranks: communication; a store that cannot be read. Errors of the disk are reported by later calls.
  Result<bool> begin(checkpoint::Manifest manifest, bool wait);
  // True if the last begin() returned false and the save before it is still under way.
  bool postponed() const { return postponed_ && phase_ != Phase::idle; }

  // This rank's term of the sum that proceed() needs: 1 if its work of the current phase has ended, else 0.
  float progress() const;
  // Collective; sum: progress() over all ranks. Starts the next phase once all ranks have ended this one. A failed save
  // is logged as a warning.
  Status proceed(float sum);
  bool is_under_way() const { return phase_ != Phase::idle; }
  // Collective: waits until no save is under way.
  Status finish();
  // Not collective, for a rank that cannot reach the others any more: waits until rank 0 has made the files that all
  // ranks have written a checkpoint, if it had begun to.
  void finish_commit() const;

  const std::optional<Error>& last_failure() const { return failure_; }  // of the last save; empty if it succeeded

 private:
  enum class Phase { idle, writing, committing };
  // The progress of copying the share: the source, the offset in it, and the bytes left in all.
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
  const RankShare& share() const { return shares_[std::size_t(world_.rank())]; }

  const config::Config& config_;
  comm::Communicator& world_;
  runtime::TensorStore& store_;
  checkpoint::FileSystem& files_;
  std::vector<RankShare> shares_;    // by rank
  std::vector<std::byte> gathered_;  // while begin() copies: the tensors of the share of which ranks have parts
  Patience patience_;
  Phase phase_ = Phase::idle;
  bool postponed_ = false;
  checkpoint::Manifest manifest_;
  std::optional<Error> failure_;
  std::optional<checkpoint::BackgroundWriter> writer_;  // last member: its thread uses the others and ends first
};

}  // namespace lancet::run
