#include "lancet/experiment/record.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "lancet/base/atomic_file.h"

namespace lancet::experiment {
namespace {

using nlohmann::ordered_json;

// Three digits behind the point, so that lines stay short.
double rounded(double ms) { return std::round(ms * 1e3) / 1e3; }

ordered_json optional(const std::optional<double>& value) {
  return value ? ordered_json(rounded(*value)) : ordered_json(nullptr);
}

struct Known {
  std::string id;
  bool failed;
};
// What a record is of; nothing where the line is none.
std::optional<Known> known_of(const std::string& line) {
  const auto record = nlohmann::json::parse(line, nullptr, false);
  if (!record.is_object() || !record.contains("id") || !record["id"].is_string()) return std::nullopt;
  return Known{record["id"].get<std::string>(), record.contains("status") && record["status"] == "failed"};
}

// points.jsonl.1, or the next number that is not taken.
std::filesystem::path free_name(const std::filesystem::path& path) {
  for (int number = 1;; ++number) {
    const std::filesystem::path name = path.string() + "." + std::to_string(number);
    std::error_code unknown;
    if (!std::filesystem::exists(name, unknown)) return name;
  }
}

}  // namespace

std::string to_line(const Experiment& experiment, const Point& point, const Outcome& outcome,
                    const std::string& commit) {
  ordered_json record;
  record["id"] = point.id;
  record["experiment"] = experiment.name;
  record["network"] = name(point.source);
  record["hardware"] = point.on;
  record["label"] = point.label;
  record["model"] = point.model;
  record["gate"] = point.gate;
  record["ranks"] = point.ranks;
  record["hosts"] = point.hosts;
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
  return record.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Result<RecordFile> RecordFile::open(const std::filesystem::path& path, const std::vector<Point>& points, bool fresh) {
  RecordFile file(path);
  std::error_code error;
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), error);
  if (!std::filesystem::exists(path, error)) return file;
  LANCET_ASSIGN(const std::string text, read_file(path, "records of a sweep"));
  std::set<std::string> wanted;
  if (!fresh)
    for (const Point& point : points) wanted.insert(point.id);
  std::string kept, others;
  int number = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    if (end == std::string::npos) break;  // an interruption cut it off
    const std::string line = text.substr(at, end - at);
    at = end + 1;
    ++number;
    const auto record = known_of(line);
    if (!record)
      return data_error(fmt::format("{}:{}: expected a record of a sweep, found another line", path.string(), number));
    const bool mine = wanted.contains(record->id);
    if (mine && record->failed) continue;  // it is tried again
    (mine ? kept : others) += line + "\n";
    if (mine) file.ids_.insert(record->id);
  }
  if (!others.empty()) LANCET_TRY(write_file(free_name(path), others));
  if (kept != text) LANCET_TRY(write_file(path, kept));
  return file;
}

// One write of the whole line behind what is there.
Status RecordFile::append(const std::string& id, const std::string& line) {
  const std::string text = line + "\n";
  const int fd = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  const bool written = fd >= 0 && ::write(fd, text.data(), text.size()) == ssize_t(text.size()) && ::fsync(fd) == 0;
  const int code = errno;
  if (fd >= 0) ::close(fd);
  if (!written)
    return data_error(fmt::format("{}: expected room for a record, found: {}", path_.string(), std::strerror(code)));
  ids_.insert(id);
  return {};
}

}  // namespace lancet::experiment
