// Temporary folders in memory.
#pragma once
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>

namespace lancet::test {

// During its life, temporary folders are in memory if the system has such a file system. For tests that save often and
// do not test disks, which would take minutes to sync.
class InMemory {
 public:
  InMemory() {
    if (const char* set = std::getenv("TMPDIR")) before_ = set;
    if (std::filesystem::is_directory("/dev/shm")) setenv("TMPDIR", "/dev/shm", 1);
  }
  ~InMemory() { before_ ? setenv("TMPDIR", before_->c_str(), 1) : unsetenv("TMPDIR"); }

 private:
  std::optional<std::string> before_;
};

}  // namespace lancet::test
