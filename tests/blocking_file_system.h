// The real file system, whose writes block while it is held.
#pragma once
#include <atomic>
#include <condition_variable>
#include <mutex>

#include "lancet/checkpoint/file_system.h"

namespace lancet::test {

class BlockingFileSystem final : public checkpoint::FileSystem {
 public:
  void hold() { set(true); }
  void release() { set(false); }
  // Waits until a call blocks, or has blocked, on the disk.
  void wait_until_asked() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return asked_; });
  }
  int writes() const { return writes_; }  // calls that the disk has completed

  Result<std::unique_ptr<checkpoint::OutputFile>> create(const std::filesystem::path& path) override {
    LANCET_ASSIGN(auto file, disk_.create(path));
    return std::unique_ptr<checkpoint::OutputFile>(std::make_unique<File>(*this, std::move(file)));
  }
  Status make_folder(const std::filesystem::path& path) override { return disk_.make_folder(path); }
  Status sync_folder(const std::filesystem::path& path) override { return disk_.sync_folder(path); }
  Status rename(const std::filesystem::path& from, const std::filesystem::path& to) override {
    return disk_.rename(from, to);
  }
  Status remove(const std::filesystem::path& path) override { return disk_.remove(path); }

 private:
  class File final : public checkpoint::OutputFile {
   public:
    File(BlockingFileSystem& owner, std::unique_ptr<checkpoint::OutputFile> file)
        : owner_(owner), file_(std::move(file)) {}
    Result<std::size_t> write_some(std::span<const std::byte> bytes) override {
      owner_.wait();
      ++owner_.writes_;
      return file_->write_some(bytes);
    }
    Status sync() override {
      owner_.wait();
      return file_->sync();
    }
    Status close() override { return file_->close(); }

   private:
    BlockingFileSystem& owner_;
    std::unique_ptr<checkpoint::OutputFile> file_;
  };
  void set(bool held) {
    const std::lock_guard lock(mutex_);
    held_ = held;
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    asked_ = true;
    changed_.notify_all();
    changed_.wait(lock, [&] { return !held_; });
  }

  checkpoint::FileSystem& disk_ = checkpoint::disk();
  std::mutex mutex_;
  std::condition_variable changed_;
  bool held_ = false, asked_ = false;
  std::atomic<int> writes_ = 0;
};

}  // namespace lancet::test
