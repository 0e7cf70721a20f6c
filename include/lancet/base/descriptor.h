// Descriptor: owns a file descriptor and closes it at its end.
#pragma once
#include <unistd.h>

#include <utility>

namespace lancet {

class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  ~Descriptor() { close(); }
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int get() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }
  int close() { return is_open() ? ::close(std::exchange(fd_, -1)) : 0; }  // 0, or -1 with errno

 private:
  int fd_;
};

}  // namespace lancet
