#include "file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <thread>

#include "lancet/base/clock.h"

namespace lancet::cost {

FileLock FileLock::wait(const std::filesystem::path& path, double seconds) {
  // Opened for writing, since NFS requires that for an exclusive lock.
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0) return {-1, false};
  const auto start = std::chrono::steady_clock::now();
  while (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    const bool taken = errno == EWOULDBLOCK;
    if (errno == EINTR || (taken && seconds_since(start) < seconds)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      continue;
    }
    ::close(fd);
    return {-1, taken};
  }
  return {fd, false};
}

FileLock::~FileLock() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace lancet::cost
