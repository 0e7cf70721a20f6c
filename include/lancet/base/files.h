// Files: descriptors that close themselves, files that appear when they are complete, the files of the program.
#pragma once

#include <unistd.h>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lancet/base/result.h"

namespace lancet {

// Owns a file descriptor and closes it at its end.
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

// The path that a write to `path` goes to: symbolic links are followed, also to a file that does not exist yet.
std::filesystem::path behind_links(std::filesystem::path path);

// A name beside `target`, for a file or folder that is renamed to it when it is complete:
// TARGET.HOST-PROCESS-NUMBER.tmp. Removes what processes of this host that no longer run left under such names.
std::filesystem::path temporary_beside(const std::filesystem::path& target);

// A file that appears at its path only when it is complete. Where the file system can, it is written without a name (a
// killed process then leaves nothing behind), else under a temporary name beside the path; commit() renames it.
class AtomicFile {
 public:
  // Data error: `path` is a folder, a device or a pipe, or no file can be created beside it.
  static Result<AtomicFile> create(const std::filesystem::path& path);
  ~AtomicFile();  // removes a file that was not committed
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;

  Status append(const void* bytes, std::size_t size);
  Status overwrite(std::uint64_t at, const void* bytes, std::size_t size);  // at: byte offset in the file
  Status sync();        // to the disk, under the temporary name: only the rename is left for commit()
  Status remove_old();  // from the path, where nothing is then until commit()
  Status commit();      // sync, rename

 private:
  AtomicFile(std::filesystem::path path, std::filesystem::path temporary, Descriptor file, bool named)
      : path_(std::move(path)), temporary_(std::move(temporary)), file_(std::move(file)), named_(named) {}
  Status give_name();
  Error failed(std::string_view what) const;  // "PATH: cannot <what>: <errno's text>"
  std::filesystem::path path_, temporary_;
  Descriptor file_;
  bool named_ = false;  // the file is at temporary_, not unnamed
};

// Creates an AtomicFile with this content and commits it.
Status write_file(const std::filesystem::path& path, std::string_view content);

// The nearest folder (or file) above this path that exists; the path itself need not exist.
std::filesystem::path nearest_above(const std::filesystem::path& path);

// Checks before long work that a new file or folder can be created at `path`, along with missing folders above it. Data
// error: nearest_above(path), or the folder that a link leads to, is not a folder or cannot be written to.
Status check_writable(const std::filesystem::path& path);

// True for a pipe or terminal that this process has open, such as /dev/stdin. Opening it again waits for no writer, as
// opening a named pipe would. It can be read once, and its size is not known.
bool is_open_stream(const std::filesystem::path& path);

// Appends what standard input delivers within `time`. True at its end. Data error: it cannot be read.
Result<bool> read_standard_input(std::string& text, std::chrono::milliseconds time);

// The content of a file. Data error: it is not a regular file, is larger than `most` bytes, or cannot be read.
// what: the noun that errors use, such as "a vocabulary".
Result<std::string> read_file(const std::filesystem::path& path, std::string_view what,
                              std::uint64_t most = 1'000'000'000);

// Finds the files that come with the program (configs/..., scripts/...), whichever folder it is started in.

// The path of this program's executable, links resolved; empty if the system does not give it.
std::filesystem::path program_path();

// The path of a file of the source tree, such as "scripts/mpirun.sh": the first that exists of `name` below the current
// folder, so that a clone's own files come first; in share/lancet beside the program, where a build tree links its
// sources; in share/lancet beside the program's folder (PREFIX/share/lancet for PREFIX/bin/lancet). Empty if none does.
std::filesystem::path find_shipped(const std::filesystem::path& name);

// A JSON file that a user names: by its path, or by its name without extension if it is in `folder` of the source tree.
struct ShippedText {
  std::filesystem::path path;
  std::string text;
};
// Config errors: no such file, with the names and the places that would do; it cannot be read. what: the noun that
// errors use, such as "hardware".
Result<ShippedText> read_shipped_json(std::string_view what, const std::filesystem::path& folder,
                                      const std::string& name_or_path);

// The machine's name, for names of files: '/' is replaced by '_'. "host" if the system gives none.
std::string host_name();

}  // namespace lancet
