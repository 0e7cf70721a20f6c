#include "read_ahead.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace lancet::checkpoint {
namespace {

constexpr std::size_t piece_bytes = 4 << 20;
constexpr std::size_t pieces = 4;

class Ring {
 public:
  explicit Ring(const SafetensorsFile& file) : file_(file), count_((file.size() + piece_bytes - 1) / piece_bytes) {
    for (auto& buffer : buffers_) buffer.resize(std::min<std::uint64_t>(piece_bytes, file.size()));
    reader_ = std::jthread([this] { fill(); });
  }
  ~Ring() {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    changed_.notify_all();
  }

  std::uint64_t count() const { return count_; }
  std::uint64_t at(std::uint64_t piece) const { return piece * piece_bytes; }
  // Waits for the piece, which stays until release().
  Result<std::span<const std::byte>> take(std::uint64_t piece) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return filled_ > piece || !status_.ok(); });
    if (filled_ <= piece) return status_.error();
    return std::span<const std::byte>(buffer(piece));
  }
  void release() {
    const std::lock_guard lock(mutex_);
    ++used_;
    changed_.notify_all();
  }

 private:
  std::span<std::byte> buffer(std::uint64_t piece) {
    return std::span(buffers_[piece % pieces]).first(std::min<std::uint64_t>(piece_bytes, file_.size() - at(piece)));
  }
  void fill() {
    for (std::uint64_t piece = 0; piece < count_; ++piece) {
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return stopped_ || piece < used_ + pieces; });
        if (stopped_) return;
      }
      Status status = file_.read_file(at(piece), buffer(piece));
      const std::lock_guard lock(mutex_);
      changed_.notify_all();
      if (!status.ok()) {
        status_ = std::move(status);
        return;
      }
      filled_ = piece + 1;
    }
  }

  const SafetensorsFile& file_;
  const std::uint64_t count_;
  std::array<std::vector<std::byte>, pieces> buffers_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t filled_ = 0, used_ = 0;
  bool stopped_ = false;
  Status status_;
  std::jthread reader_;  // last: it uses all of the above
};

}  // namespace

Status read_ahead(const SafetensorsFile& file,
                  const std::function<Status(std::uint64_t at, std::span<const std::byte> piece)>& use) {
  Ring ring(file);
  for (std::uint64_t piece = 0; piece < ring.count(); ++piece) {
    LANCET_ASSIGN(const std::span<const std::byte> bytes, ring.take(piece));
    LANCET_TRY(use(ring.at(piece), bytes));
    ring.release();
  }
  return {};
}

}  // namespace lancet::checkpoint
