// An event file is a sequence of TFRecords: length (u64), masked CRC of the length (u32), data, masked CRC of the data
// (u32), all little-endian. The data is a protocol buffer `Event`; the few messages are encoded here by hand, each
// beside its definition. The first record names the format's version. After a resume, the second one is a session start
// with the next step, at which TensorBoard drops what earlier files hold for that step and later ones.
#include "lancet/run/metrics.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "lancet/base/host_name.h"

namespace lancet::run {
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
