#include "lancet/run/append_file.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>

namespace lancet::run {

Status AppendFile::append(std::string_view record, std::string_view what, std::string_view unit) {
  for (std::size_t at = 0; at < record.size();) {
    const ssize_t written =
        ::pwrite(file_.get(), record.data() + at, record.size() - at, bytes_ + static_cast<std::int64_t>(at));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      const int error = written < 0 ? errno : ENOSPC;
      std::string text = fmt::format("cannot write {} to {}: {}", what, path_.string(), std::strerror(error));
      if (::ftruncate(file_.get(), bytes_) != 0) text += fmt::format(" (its last {} may be cut short)", unit);
      return data_error(std::move(text));
    }
    at += static_cast<std::size_t>(written);
  }
  bytes_ += static_cast<std::int64_t>(record.size());
  return {};
}

}  // namespace lancet::run
