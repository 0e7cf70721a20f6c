// Standard output and error, whatever writes to them (print(), fmt, the log), are streams of our own over descriptors 1
// and 2. Any process that shares a pipe or terminal can make it non-blocking, at any time. A write then fails with
// EAGAIN while the pipe is full, and the C library's streams drop the text. Ours wait until there is space.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <system_error>

#include "commands.h"

namespace lancet::cli {
namespace {

// Opens descriptors 0 to 2 that are closed, so that no file gets one of them, into which the log would then be written.
// Reading the first and writing the other two fail as before, since they are open for the opposite (as glibc does it
// for programs with other rights than their user's).
void open_standard_descriptors() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (::fcntl(descriptor, F_GETFD) < 0 && errno == EBADF)
      ::open("/dev/null", descriptor == STDIN_FILENO ? O_WRONLY : O_RDONLY);  // the least one that is closed
}

// The descriptor takes the place of a cookie's address.
ssize_t write_cookie(void* descriptor, const char* bytes, std::size_t size) {
  return static_cast<ssize_t>(
      write_waiting(static_cast<int>(reinterpret_cast<std::intptr_t>(descriptor)), {bytes, size}));
}

// Replaces one of the C library's streams, which it lets a program do. buffering: as setvbuf() takes it.
void replace(std::FILE*& stream, int descriptor, int buffering) {
  std::FILE* const ours = ::fopencookie(reinterpret_cast<void*>(std::intptr_t(descriptor)), "w",
                                        {.read = nullptr, .write = write_cookie, .seek = nullptr, .close = nullptr});
  if (!ours) return;
  std::setvbuf(ours, nullptr, buffering, BUFSIZ);
  stream = ours;
}

}  // namespace

void open_standard_streams() {
  open_standard_descriptors();
  replace(stdout, STDOUT_FILENO, ::isatty(STDOUT_FILENO) != 0 ? _IOLBF : _IOFBF);
  replace(stderr, STDERR_FILENO, _IONBF);
}

std::size_t write_waiting(int descriptor, std::string_view text) {
  const std::size_t size = text.size();
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno == EAGAIN) {
      pollfd full{descriptor, POLLOUT, 0};
      ::poll(&full, 1, -1);
    } else if (errno != EINTR) {
      break;
    }
  }
  return size - text.size();
}

Status print(const std::string& text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (written && std::ferror(stdout) == 0) return {};
  return data_error(fmt::format("cannot write standard output: {}", std::strerror(errno)));
}

Status all_printed(const std::function<Status()>& command) {
  try {
    LANCET_TRY(command());
  } catch (const std::system_error&) {  // thrown by fmt if standard output fails
    if (std::ferror(stdout) == 0) throw;
  }
  return print("");
}

}  // namespace lancet::cli
