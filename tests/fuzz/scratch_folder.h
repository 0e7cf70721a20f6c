// A folder in memory for readers of several files, made once per process.
#pragma once
#include <stdlib.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string_view>

namespace lancet::test {

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
