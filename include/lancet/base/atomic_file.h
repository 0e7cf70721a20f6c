// A file that is whole or not there: written without a name where the file system can (so that a killed process leaves
// nothing), else under a name of its own beside the path, then renamed.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "lancet/base/result.h"

namespace lancet {

class AtomicFile {
 public:
  static Result<AtomicFile> create(const std::filesystem::path& path);
  ~AtomicFile();  // removes what was not committed
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;

  Status append(const void* bytes, std::size_t size);
  Status overwrite(std::uint64_t at, const void* bytes, std::size_t size);
  Status sync();    // to the disk
  Status commit();  // sync, rename

 private:
  AtomicFile(std::filesystem::path path, std::filesystem::path temporary, int fd, bool named);
  Status give_name();
  Error failed(std::string_view what) const;  // with errno's text
  std::filesystem::path path_, temporary_;
  int fd_ = -1;
  bool named_ = false;  // as temporary_
};

Status write_file(const std::filesystem::path& path, std::string_view content);

// The nearest thing that is there above this path, which need not be.
std::filesystem::path nearest_above(const std::filesystem::path& path);

// Before long work for a new file or folder: whether it can be made there, with folders above it that are missing. Data
// error: the nearest one that is there is no folder, or cannot be written to.
Status check_writable(const std::filesystem::path& path);

// The whole of a file; a data error where it is not a regular file of at most so many bytes that can be read. what: "a
// vocabulary".
Result<std::string> read_file(const std::filesystem::path& path, std::string_view what,
                              std::uint64_t most = 1'000'000'000);

}  // namespace lancet
