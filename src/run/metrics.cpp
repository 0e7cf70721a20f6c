#include "lancet/run/metrics.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>
#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <system_error>

#include "lancet/base/files.h"
#include "lancet/base/log.h"
#include "lancet/base/shown.h"

namespace lancet::run {
namespace {

std::string number(double value) { return std::isfinite(value) ? fmt::format("{:.9g}", value) : "null"; }
template <class T>
std::string number(const std::optional<T>& value) {
  return value ? number(double(*value)) : "null";
}

template <class T>
std::string numbers(std::span<const LayerLoad> layers, T LayerLoad::*member) {
  std::string text;
  for (const LayerLoad& layer : layers) text += (text.empty() ? "" : ", ") + number(double(layer.*member));
  return text;
}
// Nothing if the layers have no such number.
std::string numbers(std::span<const LayerLoad> layers, std::optional<double> LayerLoad::*member) {
  std::string text;
  for (const LayerLoad& layer : layers)
    if (layer.*member) text += (text.empty() ? "" : ", ") + number(layer.*member);
  return text;
}

// [[tokens of expert 0, ...] of layer 0, ...]
std::string counts(std::span<const LayerLoad> layers) {
  std::string text;
  for (const LayerLoad& layer : layers)
    text += fmt::format("{}[{}]", text.empty() ? "" : ", ", fmt::join(layer.expert_tokens, ", "));
  return text;
}

std::string replan_json(const std::optional<StepRecord::Replan>& replan) {
  if (!replan) return "null";
  return fmt::format(R"({{"from_ms": {}, "to_ms": {}, "planning_ms": {}}})", number(replan->from_ms),
                     number(replan->to_ms), number(replan->planning_ms));
}

// Opening a pipe would wait for its reader, and a device keeps no records.
Status check_regular(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error) || std::filesystem::is_regular_file(path, error)) return {};
  return data_error(fmt::format("{}: expected a file for records, found no regular file", path.string()));
}

// Renames the records of an earlier run, which must not be overwritten.
Status keep_earlier(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error) || std::filesystem::file_size(path, error) == 0) return {};
  std::filesystem::path kept;
  for (int n = 1; kept.empty() || std::filesystem::exists(kept, error); ++n) {
    kept = path;
    kept += fmt::format(".{}", n);
  }
  std::filesystem::rename(path, kept, error);
  if (error)
    return data_error(fmt::format("cannot rename {}, an earlier run's records, to {}: {}", path.string(),
                                  kept.filename().string(), error.message()));
  log::info("{}: an earlier run's records, kept as {}", path.string(), kept.filename().string());
  return {};
}

}  // namespace

std::string to_json(const StepRecord& r, std::span<const LayerLoad> layers, bool expert_tokens) {
  const std::string norm = r.is_norm_known ? fmt::format(R"("grad_norm": {}, )", number(r.grad_norm)) : "";
  return fmt::format(
      R"({{"step": {}, "loss": {}, "aux_loss": {}, {}"lr": {}, "step_ms": {}, "tokens_per_s": {}, "mfu": {}, )"
      R"("compute_ms": {}, "a2a_ms": {}, "allreduce_ms": {}, "communication_ms": {}, "exposed_ms": {}, "hidden_pct": {}, "predicted_ms": {}, )"
      R"("load_max_over_mean": {}, "drop_pct": {}, "dead_experts": {}, "router_entropy": {}, )"
      R"("experts_per_token": {}, "z_loss": {}, "bias_spread": {}, )"
      R"("layer_load_max_over_mean": [{}], "layer_drop_pct": [{}], "layer_dead_experts": [{}], "layer_router_entropy": [{}], )"
      R"("layer_experts_per_token": [{}], "layer_z_loss": [{}], "layer_bias_spread": [{}], )"
      R"("layer_expert_tokens": [{}], "save_ms": {}, "skipped_steps": {}, "late_pct": {}, "replan": {}, "rounds": {}}})",
      r.step, number(r.loss), number(r.aux_loss), norm, number(r.lr), number(r.step_ms), number(r.tokens_per_s),
      number(r.mfu), number(r.compute_ms), number(r.a2a_ms), number(r.allreduce_ms), number(r.communication_ms),
      number(r.exposed_ms), number(r.hidden_pct), number(r.predicted_ms), number(r.load_max_over_mean),
      number(r.drop_pct), number(r.dead_experts), number(r.router_entropy), number(r.experts_per_token),
      number(r.z_loss), number(r.bias_spread), numbers(layers, &LayerLoad::max_over_mean),
      numbers(layers, &LayerLoad::drop_pct), numbers(layers, &LayerLoad::dead_experts),
      numbers(layers, &LayerLoad::router_entropy), numbers(layers, &LayerLoad::experts_per_token),
      numbers(layers, &LayerLoad::z_loss), numbers(layers, &LayerLoad::bias_spread),
      expert_tokens ? counts(layers) : "", number(r.save_ms), r.skipped_steps, number(r.late_pct),
      replan_json(r.replan), number(r.rounds));
}

std::string held_out_json(std::int64_t step, double loss) {
  return fmt::format(R"({{"step": {}, "held_out_loss": {}}})", step, number(loss));
}

std::string step_line(const StepRecord& r, std::int64_t steps, std::optional<double> seconds_left) {
  std::string line = fmt::format("step {:>{}}/{} | ", r.step, std::to_string(steps).size(), steps);
  line += r.late_pct ? fmt::format("late {:.1f}%", *r.late_pct)
                     : fmt::format("loss {:.4f} | norm {:.2f}", r.loss, r.grad_norm);
  line += fmt::format(" | {:.0f} ms", r.step_ms);
  if (r.hidden_pct) line += fmt::format(" ({:.0f} exposed)", r.exposed_ms);
  if (r.skipped)
    line += fmt::format(" | SKIPPED ({} so far)", r.skipped_steps);
  else
    line += fmt::format(" | {:.0f} tok/s | MFU {}", r.tokens_per_s, r.mfu ? fmt::format("{:.0f}%", *r.mfu) : "n/a");
  if (r.drop_pct) line += fmt::format(" | drop {:.1f}%", *r.drop_pct);
  if (r.rounds.value_or(1) > 1) line += fmt::format(" | rounds {}", *r.rounds);
  return line + " | ETA " + (seconds_left ? duration(*seconds_left) : "n/a");
}

Result<MetricsFile> MetricsFile::create(const std::filesystem::path& path) {
  LANCET_TRY(check_regular(path));
  LANCET_TRY(keep_earlier(path));
  Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!file.is_open()) return data_error(fmt::format("cannot create {}: {}", path.string(), std::strerror(errno)));
  return MetricsFile(AppendFile(path, std::move(file)));
}

Status MetricsFile::write(const StepRecord& record, std::span<const LayerLoad> layers, bool expert_tokens) {
  return append(to_json(record, layers, expert_tokens), record.step);
}

Status MetricsFile::write_held_out(std::int64_t step, double loss) { return append(held_out_json(step, loss), step); }

Status MetricsFile::append(const std::string& line, std::int64_t step) {
  return file_.append(line + '\n', fmt::format("the record of step {}", step), "line");
}

// MetricsFile::resume(): removes the records of the steps that will run again. Steps only grow in the file, so the
// lines to keep are a prefix: it ends at the first line that belongs to a later step, or that is no whole record (a
// process that was killed may have cut one short). The file is truncated there, and new records follow.
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
  bool held_out = false;     // the kept lines hold the step's held-out loss, which is finite
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
    if (*found == step && line.find("\"held_out_loss\": null") != line.npos) break;  // the evaluation runs again
    kept.bytes += std::int64_t(line.size()) + 1;
    kept.held_out |= *found == step && line.find("\"held_out_loss\": ") != line.npos;
  }
  return kept;
}

}  // namespace

Result<MetricsFile> MetricsFile::resume(const std::filesystem::path& path, std::int64_t step) {
  LANCET_TRY(check_regular(path));
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

// An event file is a sequence of TFRecords: length (u64), masked CRC of the length (u32), data, masked CRC of the data
// (u32), all little-endian. The data is a protocol buffer `Event`; the few messages are encoded here by hand, each
// beside its definition. The first record names the format's version. After a resume, the second one is a session start
// with the next step, at which TensorBoard drops what earlier files hold for that step and later ones.
namespace {

constexpr std::array<std::uint32_t, 256> make_crc_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    table[byte] = crc;
  }
  return table;
}

// TFRecord masks the CRCs that it stores, since a CRC over data that contains its own CRC checks nothing.
std::uint32_t masked(std::uint32_t crc) { return std::rotr(crc, 15) + 0xa282ead8u; }

template <class T>
void put(std::string& out, T value) {  // little-endian
  for (std::size_t i = 0; i < sizeof value; ++i) out += static_cast<char>(value >> (8 * i) & 0xff);
}

// ---- protocol buffers: a field is its number and wire type, then its value

enum WireType : std::uint32_t { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

void put_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}
void put_key(std::string& out, std::uint32_t field, WireType type) { put_varint(out, field << 3 | type); }
void put_bytes(std::string& out, std::uint32_t field, std::string_view value) {
  put_key(out, field, WireType::bytes);
  put_varint(out, value.size());
  out += value;
}

// message Event { double wall_time = 1; int64 step = 2; string file_version = 3; Summary summary = 5; }
std::string event_at(std::int64_t step) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  std::string event;
  put_key(event, 1, WireType::fixed64);
  put(event, std::bit_cast<std::uint64_t>(std::chrono::duration<double>(now).count()));
  put_key(event, 2, WireType::varint);
  put_varint(event, static_cast<std::uint64_t>(step));
  return event;
}

// message Event { SessionLog session_log = 7; }  message SessionLog { SessionStatus status = 1; }; START is 1
std::string started_at(std::int64_t step) {
  std::string status;
  put_key(status, 1, WireType::varint);
  put_varint(status, 1);
  std::string event = event_at(step);
  put_bytes(event, 7, status);
  return event;
}

// message Summary { repeated Value value = 1; }  message Value { string tag = 1; float simple_value = 2; }
std::string summary_of(std::span<const Scalar> scalars) {
  std::string summary;
  for (const Scalar& scalar : scalars) {
    std::string value;
    put_bytes(value, 1, scalar.tag);
    put_key(value, 2, WireType::fixed32);
    put(value, std::bit_cast<std::uint32_t>(static_cast<float>(scalar.value)));
    put_bytes(summary, 1, value);
  }
  return summary;
}

std::string framed(std::string_view data) {
  std::string record;
  put(record, static_cast<std::uint64_t>(data.size()));
  put(record, masked(crc32c(record)));
  record += data;
  put(record, masked(crc32c(data)));
  return record;
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  static constexpr auto table = make_crc_table();
  std::uint32_t crc = ~0u;
  for (const char c : bytes) crc = table[(crc ^ static_cast<unsigned char>(c)) & 0xff] ^ crc >> 8;
  return ~crc;
}

std::vector<Scalar> scalars(const StepRecord& r, std::span<const LayerLoad> layers) {
  std::vector<Scalar> all{{"train/loss", r.loss},
                          {"train/aux_loss", r.aux_loss},
                          {"train/grad_norm", r.grad_norm},
                          {"train/lr", r.lr},
                          {"speed/step_ms", r.step_ms},
                          {"speed/tokens_per_s", r.tokens_per_s},
                          {"speed/compute_ms", r.compute_ms},
                          {"speed/a2a_ms", r.a2a_ms},
                          {"speed/allreduce_ms", r.allreduce_ms},
                          {"speed/exposed_ms", r.exposed_ms}};
  const auto add = [&](std::string tag, const auto& value) {
    if (value) all.push_back({std::move(tag), double(*value)});
  };
  add("speed/mfu", r.mfu);
  add("speed/hidden_pct", r.hidden_pct);
  add("speed/predicted_ms", r.predicted_ms);
  add("experts/load_max_over_mean", r.load_max_over_mean);
  add("experts/drop_pct", r.drop_pct);
  add("experts/dead_experts", r.dead_experts);
  add("experts/router_entropy", r.router_entropy);
  add("experts/experts_per_token", r.experts_per_token);
  add("experts/z_loss", r.z_loss);
  add("experts/bias_spread", r.bias_spread);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    all.push_back({fmt::format("layers/load_max_over_mean/{}", i), layers[i].max_over_mean});
    all.push_back({fmt::format("layers/drop_pct/{}", i), layers[i].drop_pct});
    all.push_back({fmt::format("layers/dead_experts/{}", i), double(layers[i].dead_experts)});
    all.push_back({fmt::format("layers/router_entropy/{}", i), layers[i].router_entropy});
    all.push_back({fmt::format("layers/experts_per_token/{}", i), layers[i].experts_per_token});
    add(fmt::format("layers/z_loss/{}", i), layers[i].z_loss);
    add(fmt::format("layers/bias_spread/{}", i), layers[i].bias_spread);
  }
  return all;
}

Result<EventFile> EventFile::create(const std::filesystem::path& folder, std::optional<std::int64_t> resumed) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto second = std::chrono::duration_cast<std::chrono::seconds>(now).count();
  const std::string name = fmt::format("events.out.tfevents.{:010}.{}.{}", second, host_name(), ::getpid());
  // TensorBoard reads all event files of a folder as one run.
  for (int n = 0;; ++n) {
    const std::filesystem::path path = folder / (n == 0 ? name : fmt::format("{}.{}", name, n));
    Descriptor opened(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (!opened.is_open() && errno == EEXIST && n < 1000) continue;
    if (!opened.is_open()) return data_error(fmt::format("cannot create {}: {}", path.string(), std::strerror(errno)));
    EventFile file(AppendFile(path, std::move(opened)));
    std::string version = event_at(0);
    put_bytes(version, 3, "brain.Event:2");
    LANCET_TRY(file.append(version));
    if (resumed) LANCET_TRY(file.append(started_at(*resumed + 1)));
    return file;
  }
}

Status EventFile::write(std::int64_t step, std::span<const Scalar> scalars) {
  std::string event = event_at(step);
  put_bytes(event, 5, summary_of(scalars));
  return append(event);
}

Status EventFile::append(std::string_view event) { return file_.append(framed(event), "an event", "event"); }

}  // namespace lancet::run
