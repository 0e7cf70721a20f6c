#include "lancet/base/exceptions.h"

#include <fmt/format.h>

#include <filesystem>
#include <new>
#include <system_error>

#include "lancet/base/check.h"

namespace lancet {

Error error_of(const std::exception& thrown) {
  const std::string what = thrown.what();
  if (dynamic_cast<const InternalError*>(&thrown)) return internal_error(what);
  if (dynamic_cast<const std::bad_alloc*>(&thrown))
    return internal_error(
        "cannot allocate memory: the system has no more for this process; raise its limit (ulimit -v, the container's "
        "memory) or make the work smaller");
  if (const auto* error = dynamic_cast<const std::filesystem::filesystem_error*>(&thrown))
    return internal_error(fmt::format("{}{}{}: {}", error->path1().string(), error->path2().empty() ? "" : " to ",
                                      error->path2().string(), error->code().message()));
  if (const auto* error = dynamic_cast<const std::system_error*>(&thrown)) {
    if (error->code() != std::errc::resource_unavailable_try_again)
      return internal_error(fmt::format("a call of the system failed: {}", what));
    // Thrown where a thread starts. Its text is the system's alone, or names the thread before that.
    return internal_error(
        fmt::format("cannot start {}{}; allow more threads (ulimit -u, a container's pids.max) or compute with fewer "
                    "(threads=1)",
                    what == error->code().message() ? "a thread: " : "", what));
  }
  return internal_error(fmt::format("a fault of this program: {}", what));
}

}  // namespace lancet
