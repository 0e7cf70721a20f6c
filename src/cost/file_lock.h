// A lock between processes, by flock on a file that is never removed.
#pragma once
#include <filesystem>
#include <utility>

namespace lancet::cost {

class FileLock {
 public:
  // Waits for another process that holds the lock, at most `seconds`. If the lock cannot be taken (held for too long,
  // the file cannot be created, a file system without locks), held() is false and the caller continues without it.
  static FileLock wait(const std::filesystem::path& path, double seconds);
  FileLock(FileLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)), late_(other.late_) {}
  FileLock& operator=(FileLock&&) = delete;
  ~FileLock();
  bool held() const { return fd_ >= 0; }
  bool late() const { return late_; }  // another process held it all the time

 private:
  FileLock(int fd, bool late) : fd_(fd), late_(late) {}
  int fd_;
  bool late_;
};

}  // namespace lancet::cost
