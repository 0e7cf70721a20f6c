// The buffer is one allocation, cut into blocks of 8 MiB. A block passes from `free` (take) over `taken` (give) to
// `filled`, where the background thread picks it up, and back to `free` when its bytes are written. One mutex guards
// these lists and the phase; one condition variable signals every change. The thread runs one job at a time: idle ->
// working (write, run) -> finished -> idle (collect). A job of shards reads the blocks as one sequence of bytes, in the
// order of the tensors; a tensor may begin and end inside a block. After an I/O error the job still consumes all
// remaining bytes, so that the caller, who must supply them, never waits for a free block without end.
#include "lancet/checkpoint/background_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "lancet/base/check.h"
#include "lancet/base/exceptions.h"

namespace lancet::checkpoint {
struct BackgroundWriter::State {
  struct Filled {
    std::size_t block, bytes;
  };
  enum class Phase { idle, working, finished };

  explicit State(FileSystem& file_system) : files(file_system) {}

  FileSystem& files;
  std::vector<std::byte> memory;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::size_t> free;
  std::vector<std::size_t> taken;
  std::deque<Filled> filled;
  Phase phase = Phase::idle;
  std::function<Status()> job;
  bool stopping = false;
  std::string abandoned;  // the reason; empty: the job was not abandoned
  Status result;
  std::vector<ShardFile> written;

  std::span<std::byte> block(std::size_t index) { return std::span(memory).subspan(index * block_bytes, block_bytes); }

  // Waits for the next filled block; returns 0 bytes if the job must end.
  Filled next() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return stopping || !abandoned.empty() || !filled.empty(); });
    if (stopping || filled.empty() || !abandoned.empty()) return {0, 0};
    const Filled first = filled.front();
    filled.pop_front();
    return first;
  }
  void release(std::size_t index) {
    const std::lock_guard lock(mutex);
    free.push_back(index);
    changed.notify_all();
  }

  class BlockReader {
   public:
    explicit BlockReader(State& state) : state_(state) {}
    ~BlockReader() {
      if (current_.bytes > 0) state_.release(current_.block);
    }
    // Returns up to `most` bytes; none if the job must end.
    std::span<const std::byte> get(std::uint64_t most) {
      if (at_ == current_.bytes) {
        if (current_.bytes > 0) state_.release(current_.block);
        current_ = state_.next();
        at_ = 0;
      }
      const std::size_t count = std::min<std::uint64_t>(most, current_.bytes - at_);
      const auto bytes = state_.block(current_.block).subspan(at_, count);
      at_ += count;
      return bytes;
    }

   private:
    State& state_;
    Filled current_{0, 0};
    std::size_t at_ = 0;
  };

  Status write_shard(const std::filesystem::path& folder, const Shard& shard, BlockReader& reader,
                     std::uint64_t& left) {
    LANCET_ASSIGN(auto writer, SafetensorsWriter::create(files, folder / shard.name, shard.tensors, shard.metadata));
    for (const TensorInfo& tensor : shard.tensors)
      for (std::uint64_t at = 0; at < tensor.bytes();) {
        const auto piece = reader.get(tensor.bytes() - at);
        if (piece.empty()) return stopped();
        left -= piece.size();
        if (shard.finite && tensor.dtype == "F32") LANCET_TRY(check_finite(tensor, at, piece));
        LANCET_TRY(writer.append(piece));
        at += piece.size();
      }
    LANCET_TRY(writer.finish());
    written.push_back({shard.name, writer.bytes(), writer.header_hash(), writer.tensor_hashes()});
    return {};
  }

  Status stopped() {
    const std::lock_guard lock(mutex);
    return abandoned.empty() ? internal_error("the writer was stopped") : data_error(abandoned);
  }

  Status write_shards(const std::filesystem::path& folder, const std::vector<Shard>& shards) {
    BlockReader reader(*this);
    std::uint64_t left = 0;
    for (const Shard& shard : shards) left += bytes_of(shard);
    written.clear();
    Status status;
    try {
      status = files.make_folder(folder);
      for (const Shard& shard : shards)
        if (status.ok()) status = write_shard(folder, shard, reader, left);
    } catch (const std::exception& error) {
      status = error_of(error);
    }
    while (left > 0) {  // after an error, the caller still supplies the remaining bytes
      const auto piece = reader.get(left);
      if (piece.empty()) break;
      left -= piece.size();
    }
    return status.ok() ? files.sync_folder(folder) : status;
  }

  static std::uint64_t bytes_of(const Shard& shard) {
    std::uint64_t bytes = 0;
    for (const TensorInfo& tensor : shard.tensors) bytes += tensor.bytes();
    return bytes;
  }

  void serve() {
    for (;;) {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return stopping || phase == Phase::working; });
      if (stopping) return;
      lock.unlock();
      Status status;
      try {
        status = job();
      } catch (const std::exception& error) {
        status = error_of(error);
      }
      lock.lock();
      for (const Filled& block : filled) free.push_back(block.block);  // of an abandoned job
      filled.clear();
      abandoned.clear();
      result = std::move(status);
      phase = Phase::finished;
      changed.notify_all();
      changed.wait(lock, [&] { return stopping || phase != Phase::finished; });
      if (stopping) return;
    }
  }

  std::jthread thread;  // last: it uses all of the above
};

BackgroundWriter::BackgroundWriter(FileSystem& files, std::uint64_t buffer_bytes)
    : state_(std::make_unique<State>(files)) {
  const std::size_t blocks = std::max<std::uint64_t>(1, (buffer_bytes + block_bytes - 1) / block_bytes);
  state_->memory.resize(blocks * block_bytes);
  for (std::size_t block = 0; block < blocks; ++block) state_->free.push_back(block);
  state_->thread = std::jthread([state = state_.get()] { state->serve(); });
}

BackgroundWriter::~BackgroundWriter() {
  const std::lock_guard lock(state_->mutex);
  state_->stopping = true;
  state_->changed.notify_all();
}

void BackgroundWriter::write(const std::filesystem::path& folder, std::vector<Shard> shards) {
  run([state = state_.get(), folder, shards = std::move(shards)] { return state->write_shards(folder, shards); });
}

void BackgroundWriter::run(std::function<Status()> work) {
  const std::lock_guard lock(state_->mutex);
  LANCET_CHECK(state_->phase == State::Phase::idle, "the writer is at work");
  state_->job = std::move(work);
  state_->phase = State::Phase::working;
  state_->changed.notify_all();
}

std::vector<std::span<std::byte>> BackgroundWriter::take(std::size_t wanted, std::chrono::milliseconds most) {
  State& s = *state_;
  std::unique_lock lock(s.mutex);
  LANCET_CHECK(s.taken.empty() && wanted > 0, "{} blocks are taken already", s.taken.size());
  if (!s.changed.wait_for(lock, most, [&] { return !s.free.empty(); })) return {};
  std::vector<std::span<std::byte>> blocks;
  for (; blocks.size() < wanted && !s.free.empty(); s.free.pop_front()) {
    s.taken.push_back(s.free.front());
    blocks.push_back(s.block(s.free.front()));
  }
  return blocks;
}

void BackgroundWriter::give(std::span<const std::size_t> filled) {
  State& s = *state_;
  const std::lock_guard lock(s.mutex);
  LANCET_CHECK(filled.size() == s.taken.size(), "{} blocks were taken, {} are given", s.taken.size(), filled.size());
  for (std::size_t i = 0; i < filled.size(); ++i) {
    LANCET_CHECK(filled[i] > 0 && filled[i] <= block_bytes, "{} bytes in a block", filled[i]);
    s.filled.push_back({s.taken[i], filled[i]});
  }
  s.taken.clear();
  s.changed.notify_all();
}

void BackgroundWriter::abandon(const std::string& why) {
  const std::lock_guard lock(state_->mutex);
  if (state_->phase == State::Phase::working) state_->abandoned = why;
  state_->changed.notify_all();
}

bool BackgroundWriter::finished() const {
  const std::lock_guard lock(state_->mutex);
  return state_->phase == State::Phase::finished;
}

bool BackgroundWriter::wait_finished(std::chrono::milliseconds most) const {
  std::unique_lock lock(state_->mutex);
  return state_->changed.wait_for(lock, most, [&] { return state_->phase == State::Phase::finished; });
}

Status BackgroundWriter::collect() {
  const std::lock_guard lock(state_->mutex);
  LANCET_CHECK(state_->phase == State::Phase::finished, "the writer has not finished");
  state_->phase = State::Phase::idle;
  state_->job = nullptr;
  state_->changed.notify_all();
  return std::move(state_->result);
}

const std::vector<ShardFile>& BackgroundWriter::shard_files() const { return state_->written; }

}  // namespace lancet::checkpoint
