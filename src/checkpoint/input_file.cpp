#include "lancet/checkpoint/input_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace lancet::checkpoint {
namespace {

// True for errors that mean that there is no such file; after others the file may exist.
bool is_missing(int error) {
  return error == ENOENT || error == ENOTDIR || error == ELOOP || error == ENXIO || error == ENAMETOOLONG;
}

}  // namespace

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), size_(other.size_), refused_(other.refused_) {}

InputFile& InputFile::operator=(InputFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(size_, other.size_);
  std::swap(refused_, other.refused_);
  return *this;
}

void InputFile::close() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

Result<InputFile> InputFile::open(const std::filesystem::path& path, std::string_view what, ExitCode refused) {
  // O_NONBLOCK: opening a pipe without a writer would wait.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    const int error = errno;
    if (is_missing(error))
      return data_error(fmt::format("{}: expected {}, found: {}", path.string(), what, std::strerror(error)));
    return Error{refused, fmt::format("{}: cannot be opened: {}", path.string(), std::strerror(error)), false};
  }
  InputFile file(path, fd, refused);
  struct stat status {};
  if (::fstat(fd, &status) != 0)
    return Error{refused, fmt::format("{}: cannot be read: {}", path.string(), std::strerror(errno)), false};
  if (!S_ISREG(status.st_mode))
    return data_error(fmt::format("{}: expected {}, found no regular file", path.string(), what));
  file.size_ = static_cast<std::uint64_t>(status.st_size);
  return file;
}

Status InputFile::read(std::uint64_t at, std::span<std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t got = ::pread(fd_, bytes.data(), bytes.size(), static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      return Error{refused_, fmt::format("{}: cannot be read: {}", path_.string(), std::strerror(errno)), false};
    if (got == 0)
      return data_error(fmt::format("{}: expected {} bytes, found the end at {}", path_.string(), size_, at));
    at += static_cast<std::uint64_t>(got);
    bytes = bytes.subspan(static_cast<std::size_t>(got));
  }
  return {};
}

}  // namespace lancet::checkpoint
