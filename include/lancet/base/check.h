// Broken invariants. A failed LANCET_CHECK throws InternalError; the rank's top level prints it with the
// rank (and, in the step loop, step and instruction) and ends the job with exit code 1.
#pragma once
#include <fmt/format.h>

#include <stdexcept>
#include <string>

namespace lancet {

struct InternalError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

[[noreturn]] void fail_check(const char* file, int line, const char* condition, const std::string& message);

}  // namespace lancet

#define LANCET_CHECK(condition, ...)                                                    \
  do {                                                                                  \
    if (!(condition)) [[unlikely]]                                                      \
      ::lancet::fail_check(__FILE__, __LINE__, #condition, ::fmt::format(__VA_ARGS__)); \
  } while (0)
