// MetricsFile::resume(): removes the records of the steps that will run again. Steps only grow in the file, so the
// lines to keep are a prefix: it ends at the first line that belongs to a later step, or that is no whole record (a
// process that was killed may have cut one short). The file is truncated there, and new records follow.
#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>

#include "lancet/base/log.h"
#include "lancet/run/metrics.h"

namespace lancet::run {
namespace {

// The step of a whole line; empty if the line was cut short.
std::optional<std::int64_t> step_of(std::string_view line) {
  constexpr std::string_view start = "{\"step\": ";
  std::int64_t step = 0;
  if (!line.starts_with(start) || !line.ends_with('}')) return {};
  const auto [end, error] = std::from_chars(line.data() + start.size(), line.data() + line.size(), step);
  return error == std::errc() ? std::optional(step) : std::nullopt;
}

struct Kept {
  std::int64_t bytes = 0;    // of the lines to keep
  std::int64_t dropped = 0;  // lines after them
  bool held_out = false;     // the kept lines hold the step's held-out loss
};

Kept scan(const std::filesystem::path& path, std::int64_t step) {
  Kept kept;
  std::ifstream in(path, std::ios::binary);
  for (std::string line; std::getline(in, line);) {
    const auto found = step_of(line);
    if (kept.dropped > 0 || !found || *found > step || in.eof()) {
      ++kept.dropped;
      continue;
    }
    kept.bytes += std::int64_t(line.size()) + 1;
    kept.held_out |= *found == step && line.find("\"held_out_loss\": ") != line.npos;
  }
  return kept;
}

}  // namespace

Result<MetricsFile> MetricsFile::resume(const std::filesystem::path& path, std::int64_t step) {
  const Kept kept = scan(path, step);
  Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
  if (!file.is_open() || ::ftruncate(file.get(), kept.bytes) != 0)
    return data_error(fmt::format("cannot write {}: {}", path.string(), std::strerror(errno)));
  if (kept.dropped > 0)
    log::info("{}: {} record{} after step {} removed; those steps run again", path.string(), kept.dropped,
              kept.dropped == 1 ? "" : "s", step);
  MetricsFile metrics(AppendFile(path, std::move(file), kept.bytes));
  metrics.has_held_out_ = kept.held_out;
  return metrics;
}

}  // namespace lancet::run
