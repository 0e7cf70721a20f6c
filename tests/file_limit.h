// A limit on file sizes that stands in for a full disk.
#pragma once
#include <sys/resource.h>

#include <csignal>

#include "lancet/base/check.h"

namespace lancet::test {

// Limits files to this many bytes, as if the disk were full then.
class FileLimit {
 public:
  explicit FileLimit(rlim_t bytes) {
    getrlimit(RLIMIT_FSIZE, &before_);
    handler_ = std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{bytes, before_.rlim_max};
    LANCET_CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0, "expected a limit of {} bytes to be taken", bytes);
  }
  ~FileLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int);
};

}  // namespace lancet::test
