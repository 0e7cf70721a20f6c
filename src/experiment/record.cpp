#include "lancet/experiment/record.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "lancet/base/atomic_file.h"
#include "lancet/base/check.h"
#include "lancet/base/json.h"
#include "lancet/base/shown.h"

namespace lancet::experiment {
namespace {

using nlohmann::ordered_json;

// Rounds to three decimals, so that lines stay short.
double rounded(double ms) { return std::round(ms * 1e3) / 1e3; }

ordered_json optional(const std::optional<double>& value) {
  return value ? ordered_json(rounded(*value)) : ordered_json(nullptr);
}

struct Key {
  std::string id, result;  // RecordFile::results
};
// Nothing if the line is no record.
std::optional<Key> key_of(const std::string& line) {
  const auto parsed = parse_json(line, "a record", ExitCode::data);
  if (!parsed.ok() || !parsed->is_object() || !parsed->contains("id") || !(*parsed)["id"].is_string())
    return std::nullopt;
  const auto step = parsed->value("step_ms", nlohmann::json()), status = parsed->value("status", nlohmann::json());
  return Key{(*parsed)["id"].get<std::string>(), step.is_number()     ? fmt::format("{:.1f}", step.get<double>())
                                                 : status.is_string() ? status.get<std::string>()
                                                                      : "unknown"};
}

// Returns points.jsonl.1, or the name with the next free number.
std::filesystem::path free_name(const std::filesystem::path& path) {
  for (int number = 1;; ++number) {
    const std::filesystem::path name = path.string() + "." + std::to_string(number);
    std::error_code unknown;
    if (!std::filesystem::exists(name, unknown)) return name;
  }
}

// Writes the text and syncs it to the disk. Returns 0 or the errno.
int write_through(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return written < 0 ? errno : ENOSPC;
    text.remove_prefix(std::size_t(written));
  }
  return ::fsync(fd) == 0 ? 0 : errno;
}

}  // namespace

std::string to_line(const Experiment& experiment, const Point& point, const Outcome& outcome,
                    const std::string& commit) {
  ordered_json record;
  record["id"] = point.id;
  record["experiment"] = experiment.name;
  record["network"] = name(point.source);
  record["hardware"] = point.on;
  if (!point.variation.empty()) record["variation"] = point.variation;
  record["label"] = point.label;
  record["model"] = point.model;
  record["gate"] = point.gate;
  record["ranks"] = point.ranks;
  record["hosts"] = point.hosts;
  if (point.source == Source::emulated) record["rate"] = experiment.rate;
  record["batch"] = point.config.train.micro_batch_size;
  record["policy"] = point.policy;
  record["status"] = outcome.status;
  if (!outcome.why.empty()) record["why"] = outcome.why;
  record["runs"] = outcome.runs;
  record["k"] = outcome.parts;
  if (outcome.status == "ok") {
    record["step_ms"] = rounded(outcome.times.step);
    if (outcome.least_step_ms) record["least_step_ms"] = rounded(*outcome.least_step_ms);
    if (outcome.most_step_ms) record["most_step_ms"] = rounded(*outcome.most_step_ms);
    record["compute_ms"] = rounded(outcome.times.compute);
    record["all_to_all_ms"] = rounded(outcome.times.all_to_all);
    record["all_reduce_ms"] = rounded(outcome.times.all_reduce);
    record["communication_ms"] = rounded(outcome.times.communication);
    record["exposed_ms"] = rounded(outcome.times.exposed);
    record["predicted_ms"] = optional(outcome.predicted_ms);
    if (outcome.predicted_compute_ms) record["predicted_compute_ms"] = rounded(*outcome.predicted_compute_ms);
    if (outcome.predicted_communication_ms)
      record["predicted_communication_ms"] = rounded(*outcome.predicted_communication_ms);
    record["forward_ms"] = optional(outcome.forward_ms);
    record["experts_ms"] = optional(outcome.experts_ms);
    if (outcome.bound_ms) record["bound_ms"] = rounded(*outcome.bound_ms);
  }
  record["memory_gib"] = rounded(outcome.memory_gib);
  if (outcome.planning_ms) record["planning_ms"] = rounded(*outcome.planning_ms);
  record["steps"] = outcome.steps;
  record["routing"] = point.routing();
  if (point.source == Source::simulated) {
    record["imbalance"] = point.spread.imbalance;
    record["padded"] = point.spread.padded;
  } else if (outcome.imbalance) {
    record["imbalance"] = rounded(*outcome.imbalance);
  }
  if (!outcome.profile.empty()) record["profile"] = outcome.profile;
  if (!outcome.place.empty()) record["place"] = outcome.place;
  record["commit"] = commit;
  return json_text(record);
}

Result<RecordFile> RecordFile::open(const std::filesystem::path& path, const std::vector<Point>& points, bool fresh) {
  RecordFile file(path);
  LANCET_TRY(file.lock());
  LANCET_ASSIGN(const std::string text, read_file(path, "records of a sweep"));
  if (fresh && !text.empty()) {
    LANCET_TRY(write_file(free_name(path), text));
    LANCET_TRY(write_file(path, ""));
  }
  if (!fresh) LANCET_TRY(file.read(text, points));
  return file;
}

// Locks the folder and checks that the file can be written, before the first point runs.
Status RecordFile::lock() {
  const std::filesystem::path folder = path_.has_parent_path() ? path_.parent_path() : ".";
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return data_error(fmt::format("cannot create {}: {}", folder.string(), error.message()));
  lock_ = Descriptor(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (lock_.is_open() && ::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    return data_error(
        fmt::format("{}: expected a folder that no other sweep writes to, found one at work there", folder.string()));
  if (!Descriptor(::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644)).is_open())
    return data_error(fmt::format("cannot write {}: {}", path_.string(), std::strerror(errno)));
  return {};
}

Status RecordFile::read(const std::string& text, const std::vector<Point>& points) {
  std::set<std::string> wanted;
  for (const Point& point : points) wanted.insert(point.id);
  std::string kept, others;
  int number = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    const bool cut = end == text.size();
    at = end + 1;
    ++number;
    if (line.empty()) continue;
    const auto record = key_of(line);
    if (!record && cut) {
      note_ = fmt::format("{}:{}: an interruption cut this record short; it is dropped and its point runs again",
                          path_.string(), number);
      continue;
    }
    if (!record)
      return data_error(
          fmt::format("{}:{}: expected a record of a sweep, found {}; delete the line to run its point "
                      "again, or use --fresh to run all points again",
                      path_.string(), number, shown(line)));
    const bool mine = wanted.contains(record->id);
    if (mine && record->result == "failed") continue;  // its point runs again
    const bool first = mine && results_.emplace(record->id, record->result).second;
    (first ? kept : others) += line + "\n";
  }
  if (!others.empty()) LANCET_TRY(write_file(free_name(path_), others));
  if (kept != text) LANCET_TRY(write_file(path_, kept));
  return {};
}

Status RecordFile::append(const std::string& line) {
  const Descriptor file(::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  const int code = file.is_open() ? write_through(file.get(), line + "\n") : errno;
  if (code != 0) return data_error(fmt::format("cannot write {}: {}", path_.string(), std::strerror(code)));
  const std::optional<Key> key = key_of(line);
  LANCET_CHECK(key, "appended what is no record: {}", line);
  results_[key->id] = key->result;
  return {};
}

}  // namespace lancet::experiment
