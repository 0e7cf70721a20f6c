// One process at a time, by flock on a file that stays.
#pragma once
#include <filesystem>
#include <utility>

namespace lancet::cost {

class FileLock {
 public:
  // Waits for whoever holds it, but no longer than so many seconds. Where it cannot be had (held for too long, no
  // file can be made there, a file system without locks) the caller goes on without.
  static FileLock wait(const std::filesystem::path& path, double seconds);
  FileLock(FileLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)), late_(other.late_) {}
  FileLock& operator=(FileLock&&) = delete;
  ~FileLock();
  bool held() const { return fd_ >= 0; }
  bool late() const { return late_; }  // another held it all the time

 private:
  FileLock(int fd, bool late) : fd_(fd), late_(late) {}
  int fd_;
  bool late_;
};

}  // namespace lancet::cost
