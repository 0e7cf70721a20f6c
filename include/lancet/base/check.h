// Broken invariants. A failed LANCET_CHECK throws InternalError; the rank's top level prints it with the
// rank (and, in the step loop, step and instruction) and ends the job with exit code 1.
#pragma once
#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <string_view>

namespace lancet {

struct InternalError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

[[noreturn]] inline void fail_check(std::string_view file, int line, const char* condition,
                                    const std::string& message) {
  const std::string_view name = file.substr(file.rfind('/') + 1);  // all of it where there is no '/'
  throw InternalError(fmt::format("{} ({} at {}:{})", message, condition, name, line));
}

}  // namespace lancet

#define LANCET_CHECK(condition, ...)                                                    \
  do {                                                                                  \
    if (!(condition)) [[unlikely]]                                                      \
      ::lancet::fail_check(__FILE__, __LINE__, #condition, ::fmt::format(__VA_ARGS__)); \
  } while (0)
