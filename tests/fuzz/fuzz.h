// What the fuzz targets share. The contract of every reader: an input is read, or its error is one line with the code
// of its kind; it takes a number of bytes of memory per byte of its input, and a constant besides.
#pragma once
#include <sanitizer/allocator_interface.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "lancet/base/result.h"

namespace lancet::test {

// Exceeding it ends the run like a crash.
class AllocationLimit {
 public:
  // a_byte: bytes for each of the input's `size` bytes; besides: bytes that do not depend on the input.
  AllocationLimit(std::size_t size, std::size_t a_byte, std::size_t besides = 1 << 20) {
    static const int installed = __sanitizer_install_malloc_and_free_hooks(allocated, freed);
    if (!installed) std::abort();
    in_use = 0;
    most = size * a_byte + besides;
  }
  ~AllocationLimit() { most = none; }
  AllocationLimit(const AllocationLimit&) = delete;
  AllocationLimit& operator=(const AllocationLimit&) = delete;

 private:
  static constexpr std::size_t none = ~std::size_t{0};
  static inline std::atomic<std::size_t> most = none;
  static inline std::atomic<std::ptrdiff_t> in_use = 0;  // since the limit began; below 0 after older memory is freed

  static void allocated(const volatile void*, std::size_t bytes) {
    const std::size_t limit = most;
    if (limit == none) return;
    const std::ptrdiff_t now = in_use += static_cast<std::ptrdiff_t>(bytes);
    if (bytes <= limit && (now < 0 || static_cast<std::size_t>(now) <= limit)) return;
    most = none;  // the report allocates, too
    std::fprintf(stderr, "ERROR: %zu bytes, %td in all, for an input that allows %zu\n", bytes, now, limit);
    std::abort();
  }
  static void freed(const volatile void* memory) {
    if (most != none) in_use -= static_cast<std::ptrdiff_t>(__sanitizer_get_allocated_size(const_cast<void*>(memory)));
  }
};

inline void check_error(const Error& error, ExitCode code) {
  if (error.code != code || error.message.empty() || error.message.find('\n') != error.message.npos) std::abort();
}

// Whether an input was read.
template <class T>
bool is_read(const Result<T>& result, ExitCode code) {
  if (!result.ok()) check_error(result.error(), code);
  return result.ok();
}

// A file of given bytes in memory.
class MemoryFile {
 public:
  MemoryFile(const std::uint8_t* bytes, std::size_t size) : fd_(memfd_create("fuzz", MFD_CLOEXEC)) {
    if (fd_ < 0 || ::write(fd_, bytes, size) != static_cast<ssize_t>(size)) std::abort();
  }
  ~MemoryFile() { ::close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

// A folder in memory for readers of several files, made once per process.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string name = std::filesystem::exists("/dev/shm") ? "/dev/shm/lancet-fuzz-XXXXXX" : "/tmp/lancet-fuzz-XXXXXX";
    if (!::mkdtemp(name.data())) std::abort();
    path_ = name;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }
  void write(const char* name, std::string_view content) const {
    std::ofstream(path_ / name, std::ios::binary).write(content.data(), static_cast<std::streamsize>(content.size()));
  }

 private:
  std::filesystem::path path_;
};

// Splits an input into two files at the first zero byte.
inline std::pair<std::string_view, std::string_view> halves(const std::uint8_t* data, std::size_t size) {
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const std::size_t cut = std::min(all.find('\0'), size);
  return {all.substr(0, cut), all.substr(std::min(cut + 1, size))};
}

}  // namespace lancet::test
