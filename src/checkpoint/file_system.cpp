#include "lancet/checkpoint/file_system.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "lancet/base/files.h"

namespace lancet::checkpoint {
namespace {

namespace fs = std::filesystem;

Error failed(const fs::path& path, std::string_view what, int error) {
  return data_error(fmt::format("{}: cannot {}: {}", path.string(), what, std::strerror(error)));
}

class DiskFile final : public OutputFile {
 public:
  DiskFile(fs::path path, Descriptor file) : path_(std::move(path)), file_(std::move(file)) {}
  Result<std::size_t> write_some(std::span<const std::byte> bytes) override {
    constexpr std::size_t most = 1 << 30;  // Linux writes at most this much in one call
    for (;;) {
      const ssize_t written = ::write(file_.get(), bytes.data(), std::min(bytes.size(), most));
      if (written >= 0) return static_cast<std::size_t>(written);
      if (errno != EINTR) return failed(path_, "write", errno);
    }
  }
  Status sync() override {
    if (::fsync(file_.get()) != 0) return failed(path_, "write to the disk", errno);
    return {};
  }
  Status close() override {
    if (file_.close() != 0) return failed(path_, "close", errno);
    return {};
  }

 private:
  fs::path path_;
  Descriptor file_;
};

class Disk final : public FileSystem {
 public:
  Result<std::unique_ptr<OutputFile>> create(const fs::path& path) override {
    Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666));
    if (!file.is_open()) return failed(path, "create the file", errno);
    return std::unique_ptr<OutputFile>(std::make_unique<DiskFile>(path, std::move(file)));
  }
  Status make_folder(const fs::path& path) override {
    std::error_code error;
    fs::create_directories(path, error);
    if (error) return failed(path, "create the folder", error.value());
    return {};
  }
  Status sync_folder(const fs::path& path) override {
    const Descriptor folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!folder.is_open()) return failed(path, "open the folder", errno);
    const int error = ::fsync(folder.get()) == 0 ? 0 : errno;
    if (error != 0 && error != EINVAL && error != ENOTSUP) return failed(path, "write the folder to the disk", error);
    return {};
  }
  Status rename(const fs::path& from, const fs::path& to) override {
    if (::rename(from.c_str(), to.c_str()) != 0) return failed(from, "rename to " + to.filename().string(), errno);
    return {};
  }
  Status remove(const fs::path& path) override {
    std::error_code error;
    fs::remove_all(path, error);
    if (error) return failed(path, "remove", error.value());
    return {};
  }
};

}  // namespace

FileSystem& disk() {
  static Disk disk;
  return disk;
}

Status write_all(OutputFile& file, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    LANCET_ASSIGN(const std::size_t written, file.write_some(bytes));
    if (written == 0) return data_error("cannot write: the file system accepted no bytes");
    bytes = bytes.subspan(written);
  }
  return {};
}

Status write_file(FileSystem& files, const fs::path& path, std::string_view content) {
  LANCET_ASSIGN(const auto file, files.create(path));
  LANCET_TRY(write_all(*file, std::as_bytes(std::span(content.data(), content.size()))));
  LANCET_TRY(file->sync());
  return file->close();
}

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
