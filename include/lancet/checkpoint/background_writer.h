// Writes shards on a background thread from a bounded buffer that the caller fills; the caller waits only while the
// buffer is full. One thread at a time may call it.
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
#include "lancet/checkpoint/checkpoint.h"

namespace lancet::checkpoint {

struct Shard {
  std::string name;
  std::vector<TensorInfo> tensors;
  Metadata metadata;
  bool finite = false;  // a non-finite number in an F32 tensor is a data error that ends the job
};

class BackgroundWriter {
 public:
  static constexpr std::size_t block_bytes = 8 << 20;

  // Allocates and touches the buffer, so that the first save takes no longer than the others. It has at least one
  // block.
  BackgroundWriter(FileSystem& files, std::uint64_t buffer_bytes);
  ~BackgroundWriter();  // stops an unfinished job, after the write of a block that is in progress

  // Begins a job; there must be no other one. The caller then supplies all bytes of the shards' tensors, in order,
  // through take() and give(), even after an I/O error; collect() returns the error. The job syncs each file and the
  // folder.
  void write(const std::filesystem::path& folder, std::vector<Shard> shards);
  // Runs any function as a job.
  void run(std::function<Status()> work);

  // Returns up to `wanted` free blocks of block_bytes. If there is none, waits for one, at most `most`, and then
  // returns an empty list.
  std::vector<std::span<std::byte>> take(std::size_t wanted, std::chrono::milliseconds most);
  // Returns the blocks of the last take(), in order. filled: the bytes written to each, from its start.
  void give(std::span<const std::size_t> filled);

  // Ends the job early with the data error `why`, after the write in progress; the caller gives no more blocks.
  void abandon(const std::string& why);

  bool finished() const;  // there is a job, and it has ended
  bool wait_finished(std::chrono::milliseconds most) const;
  Status collect();                                   // the finished job's result; the next one may begin
  const std::vector<ShardFile>& shard_files() const;  // of the last job that wrote shards and succeeded

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lancet::checkpoint
