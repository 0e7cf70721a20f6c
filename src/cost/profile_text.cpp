// Prints and parses the profile file:
//   {"format": 1, "devices": [{device, "ops": {key: {"ms", "samples", "spread"}}, "products": {...}}],
//    "clusters": [{device, cluster, interference and core costs, "all_to_all": [points], "all_reduce": [points]}]}
// Numbers are written in the fewest digits that parse to the same value. The parser checks every field and its range;
// Reader keeps the first error and the parser returns it, so that reading code need not test each field.
#include <fmt/format.h>

#include <cmath>
#include <initializer_list>
#include <set>

#include "lancet/base/json.h"
#include "lancet/base/shown.h"
#include "lancet/cost/profile.h"

namespace lancet::cost {
namespace {

using nlohmann::json;

constexpr int format_version = 1;
constexpr double most = 1e15;  // larger bytes, milliseconds or counts mean a damaged file

std::string quoted(const std::string& text) { return json(text).dump(-1, ' ', false, json::error_handler_t::replace); }

std::string print_device(const Device& device) {
  return fmt::format(R"("cpu": {}, "isa": {}, "threads": {}, "local_ranks": {}, "build": {})", quoted(device.cpu),
                     quoted(device.isa), device.threads, device.local_ranks, quoted(device.build));
}

std::string print_products(const std::map<std::string, std::string>& products) {
  if (products.empty()) return "";
  std::string lines;
  for (const auto& [product, algorithm] : products)
    lines += fmt::format("{}\n        {}: {}", lines.empty() ? "" : ",", quoted(product), quoted(algorithm));
  return fmt::format(",\n      \"products\": {{{}\n      }}", lines);
}

std::string print_points(const std::vector<Point>& points) {
  std::string text;
  for (const Point& point : points)
    text += fmt::format("{}\n        {{\"bytes\": {}, \"ms\": {}}}", text.empty() ? "" : ",", point.bytes, point.ms);
  return text;
}

std::string print_windows(const std::optional<WindowTimes>& windows) {
  if (!windows) return "";
  return fmt::format(
      ",\n      \"windows\": {{\"counts_wait_ms\": {}, \"core_ms\": {}, \"core_ms_per_mb\": {}, \"all_to_all\": "
      "[{}\n      ]}}",
      windows->counts_wait_ms, windows->core.per_message_ms, windows->core.per_mb_ms,
      print_points(windows->all_to_all));
}

// Accessors to JSON values that check them. The first error is kept; later ones are ignored.
class Reader {
 public:
  explicit Reader(std::string_view origin) : origin_(origin) {}

  const std::optional<Error>& error() const { return error_; }
  void fail(const std::string& where, const std::string& expected, const std::string& found) {
    if (!error_) error_ = config_error(fmt::format("{}: {}: expected {}, found {}", origin_, where, expected, found));
  }

  // True if the value is an object with all fields in `names`, perhaps `optional`, and no other.
  bool object(const json& value, const std::string& where, std::initializer_list<const char*> names,
              std::string_view optional = {}) {
    if (!value.is_object()) return fail(where, "an object", value.type_name()), false;
    for (const char* name : names)
      if (!value.contains(name)) return fail(where, fmt::format("the field {}", name), "none"), false;
    for (const auto& [name, _] : value.items())
      if (name != optional && std::find(names.begin(), names.end(), name) == names.end())
        return fail(where + "." + cut(name, 60), "a known field", "an unknown one"), false;
    return true;
  }
  bool list(const json& value, const std::string& where) {
    if (!value.is_array()) fail(where, "a list", value.type_name());
    return value.is_array();
  }
  double number(const json& parent, const char* name, const std::string& where, double least) {
    const json& value = parent.at(name);
    const bool good = value.is_number() && value.get<double>() >= least && value.get<double>() <= most;
    if (!good) fail(where + "." + name, fmt::format("a number of at least {}", least), shown(value));
    return good ? value.get<double>() : least;
  }
  int count(const json& parent, const char* name, const std::string& where) {
    const json& value = parent.at(name);
    const bool good = value.is_number_integer() && value >= 1 && value <= 1'000'000'000;
    if (!good) fail(where + "." + name, "an integer of at least 1", shown(value));
    return good ? value.get<int>() : 1;
  }
  std::string text(const json& parent, const char* name, const std::string& where) {
    const json& value = parent.at(name);
    if (!value.is_string()) fail(where + "." + name, "a text", shown(value));
    return value.is_string() ? value.get<std::string>() : "";
  }

 private:
  const std::string origin_;
  std::optional<Error> error_;
};

}  // namespace

class ProfileParser {
 public:
  explicit ProfileParser(std::string_view origin) : in_(origin), origin_(origin) {}

  Result<ProfileFile> operator()(std::string_view text) {
    LANCET_ASSIGN(const json root, parse_json(text, origin_, ExitCode::config));
    ProfileFile file;
    if (in_.object(root, "profile", {"format", "devices", "clusters"})) {
      const int format = in_.count(root, "format", "profile");
      if (format != format_version)
        in_.fail("profile.format", std::to_string(format_version), std::to_string(format));
      else
        read_records(root, file);
    }
    if (in_.error()) return *in_.error();
    return file;
  }

 private:
  void read_records(const json& root, ProfileFile& file) {
    if (!in_.list(root["devices"], "devices") || !in_.list(root["clusters"], "clusters")) return;
    for (std::size_t i = 0; i < root["devices"].size(); ++i)
      read_ops(root["devices"][i], fmt::format("devices[{}]", i), file);
    for (std::size_t i = 0; i < root["clusters"].size(); ++i)
      read_cluster(root["clusters"][i], fmt::format("clusters[{}]", i), file);
  }

  Device read_device(const json& value, const std::string& where) {
    Device device;
    device.cpu = in_.text(value, "cpu", where);
    device.isa = in_.text(value, "isa", where);
    device.threads = in_.count(value, "threads", where);
    device.local_ranks = in_.count(value, "local_ranks", where);
    device.build = in_.text(value, "build", where);
    return device;
  }

  void read_ops(const json& value, const std::string& where, ProfileFile& file) {
    if (!in_.object(value, where, {"cpu", "isa", "threads", "local_ranks", "build", "ops"}, "products")) return;
    ProfileFile::DeviceRecord record{read_device(value, where), {}, {}};
    if (!value["ops"].is_object()) return in_.fail(where + ".ops", "an object", value["ops"].type_name());
    for (const auto& [key, time] : value["ops"].items()) {
      const std::string at = fmt::format("{}.ops[\"{}\"]", where, cut(key, 200));
      if (!in_.object(time, at, {"ms", "samples", "spread"})) return;
      record.ops[key] = {in_.number(time, "ms", at, 0), in_.count(time, "samples", at),
                         in_.number(time, "spread", at, 0)};
    }
    if (value.contains("products")) read_products(value["products"], where + ".products", record);
    file.devices_.push_back(std::move(record));
  }

  void read_products(const json& value, const std::string& where, ProfileFile::DeviceRecord& record) {
    if (!value.is_object()) return in_.fail(where, "an object", value.type_name());
    for (const auto& [product, _] : value.items()) record.products[product] = in_.text(value, product.c_str(), where);
  }

  std::vector<Point> read_points(const json& value, const std::string& where, bool may_be_empty = false) {
    std::vector<Point> points;
    if (!in_.list(value, where)) return points;
    if (value.empty() && !may_be_empty) in_.fail(where, "at least one point", "none");
    for (std::size_t i = 0; i < value.size(); ++i) {
      const std::string at = fmt::format("{}[{}]", where, i);
      if (!in_.object(value[i], at, {"bytes", "ms"})) return points;
      const Point point{in_.number(value[i], "bytes", at, 0), in_.number(value[i], "ms", at, 0)};
      if (!points.empty() && point.bytes <= points.back().bytes)
        in_.fail(at + ".bytes", fmt::format("more than {}", points.back().bytes), fmt::format("{}", point.bytes));
      points.push_back(point);
    }
    return points;
  }

  void read_cluster(const json& value, const std::string& where, ProfileFile& file) {
    if (!in_.object(
            value, where,
            {"cpu", "isa", "threads", "local_ranks", "build", "transport", "ranks", "hosts", "launch_ms",
             "all_to_all_core_ms", "all_to_all_core_ms_per_mb", "all_reduce_core_ms", "all_reduce_core_ms_per_mb",
             "wire_beside_compute", "wire_beside_wire", "all_to_all", "all_reduce"},
            "windows"))
      return;
    ProfileFile::ClusterRecord record;
    record.machine = {
        read_device(value, where),
        {in_.text(value, "transport", where), in_.count(value, "ranks", where), in_.count(value, "hosts", where)}};
    record.network.launch_ms = in_.number(value, "launch_ms", where, 0);
    record.network.all_to_all_core = {in_.number(value, "all_to_all_core_ms", where, 0),
                                   in_.number(value, "all_to_all_core_ms_per_mb", where, 0)};
    record.network.all_reduce_core = {in_.number(value, "all_reduce_core_ms", where, 0),
                                   in_.number(value, "all_reduce_core_ms_per_mb", where, 0)};
    constexpr double slowest = 1e-3;  // not 0, since times are divided by speeds
    record.network.interference = {in_.number(value, "wire_beside_compute", where, slowest),
                                in_.number(value, "wire_beside_wire", where, slowest)};
    record.network.all_to_all = read_points(value["all_to_all"], where + ".all_to_all");
    record.network.all_reduce = read_points(value["all_reduce"], where + ".all_reduce");
    if (value.contains("windows")) record.network.windows = read_windows(value["windows"], where + ".windows");
    file.clusters_.push_back(std::move(record));
  }

  WindowTimes read_windows(const json& value, const std::string& where) {
    WindowTimes windows;
    if (!in_.object(value, where, {"counts_wait_ms", "core_ms", "core_ms_per_mb", "all_to_all"})) return windows;
    windows.counts_wait_ms = in_.number(value, "counts_wait_ms", where, 0);
    windows.core = {in_.number(value, "core_ms", where, 0), in_.number(value, "core_ms_per_mb", where, 0)};
    windows.all_to_all = read_points(value["all_to_all"], where + ".all_to_all", true);
    return windows;
  }

  Reader in_;
  const std::string origin_;
};

Result<ProfileFile> ProfileFile::parse(std::string_view text, std::string_view origin) {
  return ProfileParser(origin)(text);
}

std::string ProfileFile::print() const {
  std::string devices, clusters;
  for (const DeviceRecord& record : devices_) {
    std::string lines;
    for (const auto& [key, time] : record.ops)
      lines += fmt::format("{}\n        {}: {{\"ms\": {}, \"samples\": {}, \"spread\": {}}}", lines.empty() ? "" : ",",
                           quoted(key), time.ms, time.samples, time.spread);
    devices += fmt::format("{}\n    {{\n      {},\n      \"ops\": {{{}\n      }}{}\n    }}", devices.empty() ? "" : ",",
                           print_device(record.device), lines, print_products(record.products));
  }
  for (const ClusterRecord& record : clusters_) {
    const auto& [device, cluster] = record.machine;
    const NetworkTimes& network = record.network;
    clusters += fmt::format(
        "{}\n    {{\n      {},\n      \"transport\": {}, \"ranks\": {}, \"hosts\": {},\n"
        "      \"launch_ms\": {}, \"all_to_all_core_ms\": {}, \"all_to_all_core_ms_per_mb\": {},\n"
        "      \"all_reduce_core_ms\": {}, \"all_reduce_core_ms_per_mb\": {}, \"wire_beside_compute\": {}, "
        "\"wire_beside_wire\": {},\n"
        "      \"all_to_all\": [{}\n      ],\n      \"all_reduce\": [{}\n      ]{}\n    }}",
        clusters.empty() ? "" : ",", print_device(device), quoted(cluster.transport), cluster.ranks, cluster.hosts,
        network.launch_ms, network.all_to_all_core.per_message_ms, network.all_to_all_core.per_mb_ms,
        network.all_reduce_core.per_message_ms, network.all_reduce_core.per_mb_ms,
        network.interference.network_beside_compute, network.interference.network_beside_network,
        print_points(network.all_to_all), print_points(network.all_reduce), print_windows(network.windows));
  }
  return fmt::format("{{\n  \"format\": {},\n  \"devices\": [{}\n  ],\n  \"clusters\": [{}\n  ]\n}}\n", format_version,
                     devices, clusters);
}

}  // namespace lancet::cost
