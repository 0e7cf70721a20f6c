// The contract of every reader's error: one line, with the code of its kind.
#pragma once
#include <cstdlib>

#include "lancet/base/result.h"

namespace lancet::test {

inline void check_error(const Error& error, ExitCode code) {
  if (error.code != code || error.message.empty() || error.message.find('\n') != error.message.npos) std::abort();
}

}  // namespace lancet::test
