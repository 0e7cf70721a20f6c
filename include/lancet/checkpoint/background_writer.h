// Writes shards in a thread of its own, out of a bounded buffer that the caller fills: the caller waits only where the
// buffer is full. One thread at a time calls it.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/checkpoint/file_system.h"
#include "lancet/checkpoint/manifest.h"
#include "lancet/checkpoint/safetensors.h"

namespace lancet::checkpoint {

struct Shard {
  std::string name;
  std::vector<TensorInfo> tensors;
  Metadata metadata;
  bool finite = false;  // its F32 tensors hold numbers: one that is not finite is an error, and nothing is saved
};

class BackgroundWriter {
 public:
  static constexpr std::size_t block_bytes = 8 << 20;

  // The buffer is made here, and touched, so that the first save costs what the others do. At least one block.
  BackgroundWriter(FileSystem& files, std::uint64_t buffer_bytes);
  ~BackgroundWriter();  // gives up what is not finished, once the disk lets go of the block that it has

  // Begins a job, while none is under way. The shards' tensors have to be given to the end, in order; then each
  // file is synced, and the folder. An error ends the writing, not the giving: it is the job's.
  void write(const std::filesystem::path& folder, std::vector<Shard> shards);
  // Any work, as a job.
  void run(std::function<Status()> work);

  // Blocks of block_bytes that are free, up to `wanted`; waits until there is one, or for so long: then none.
  std::vector<std::span<std::byte>> take(std::size_t wanted, std::chrono::milliseconds most);
  // Hands the blocks of the last take() back in order, filled so far.
  void give(std::span<const std::size_t> filled);

  // Nothing more is given: the job ends with a data error that says why, once the disk lets go of what it has.
  void abandon(const std::string& why);

  bool finished() const;  // there is a job, and it has ended
  bool wait_finished(std::chrono::milliseconds most) const;
  Status collect();                                   // how the finished job ended; the next one may begin
  const std::vector<ShardFile>& shard_files() const;  // of the last job that wrote shards and succeeded

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lancet::checkpoint
