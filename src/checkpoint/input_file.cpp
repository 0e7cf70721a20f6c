#include "lancet/checkpoint/input_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

namespace lancet::checkpoint {
namespace {

// True for errors that mean that there is no such file; after others the file may exist.
bool is_missing(int error) {
  return error == ENOENT || error == ENOTDIR || error == ELOOP || error == ENXIO || error == ENAMETOOLONG;
}

}  // namespace

Result<InputFile> InputFile::open(const std::filesystem::path& path, std::string_view what, ExitCode refused) {
  // O_NONBLOCK: opening a pipe without a writer would wait.
  Descriptor opened(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!opened.is_open() && is_missing(errno))
    return data_error(fmt::format("{}: expected {}, found: {}", path.string(), what, std::strerror(errno)));
  if (!opened.is_open())
    return Error{refused, fmt::format("{}: cannot be opened: {}", path.string(), std::strerror(errno)), false};
  InputFile file(path, std::move(opened), refused);
  struct stat status {};
  if (::fstat(file.file_.get(), &status) != 0)
    return Error{refused, fmt::format("{}: cannot be read: {}", path.string(), std::strerror(errno)), false};
  if (!S_ISREG(status.st_mode))
    return data_error(fmt::format("{}: expected {}, found no regular file", path.string(), what));
  file.size_ = static_cast<std::uint64_t>(status.st_size);
  return file;
}

Status InputFile::read(std::uint64_t at, std::span<std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t got = ::pread(file_.get(), bytes.data(), bytes.size(), static_cast<off_t>(at));
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
