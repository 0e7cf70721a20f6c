#include "lancet/placement/problem.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "lancet/base/files.h"
#include "lancet/base/json.h"
#include "lancet/base/shown.h"

namespace lancet::placement {
namespace {

using nlohmann::json;

constexpr std::size_t most_devices = 64, most_name = 40;  // bytes
constexpr double least_memory_mb = 1e-3;
constexpr double least_gbit_per_s = 1e-6, most_gbit_per_s = 1e6, most_latency_us = 1e9;

// Between two places: a device, or the network that joins devices, whose index is the number of devices.
struct Edge {
  double gbit_per_s = 0, latency_us = 0;  // no edge: 0
  bool is_better_than(const Edge& other) const {
    return gbit_per_s > other.gbit_per_s || (gbit_per_s == other.gbit_per_s && latency_us < other.latency_us);
  }
};
using Edges = std::vector<std::vector<Edge>>;

class ClusterParser {
 public:
  explicit ClusterParser(std::string_view origin) : origin_(origin) {}

  Result<Cluster> operator()(std::string_view text) {
    LANCET_ASSIGN(const json root, parse_json(text, origin_, ExitCode::config, JsonComments::ignored));
    LANCET_TRY(has_only(root, "the file", {"what", "devices", "links"}));
    cluster_.name = std::filesystem::path(origin_).stem().string();
    LANCET_ASSIGN(cluster_.what, text_of(root, "", "what"));
    if (!root.contains("devices") || !root["devices"].is_array() || root["devices"].empty() ||
        root["devices"].size() > most_devices)
      return fail("devices", fmt::format("a list of 1 to {} devices", most_devices),
                  root.contains("devices") ? shown(root["devices"]) : "none");
    const std::size_t count = root["devices"].size();
    edges_.assign(count + 1, std::vector<Edge>(count + 1));
    for (std::size_t i = 0; i < count; ++i) LANCET_TRY(read_device(root["devices"][i], i));
    if (root.contains("links")) LANCET_TRY(read_links(root["links"]));
    LANCET_TRY(find_paths());
    return std::move(cluster_);
  }

 private:
  Error fail(const std::string& where, const std::string& expected, const std::string& found) const {
    return config_error(fmt::format("{}: {}: expected {}, found {}", origin_, where, expected, found));
  }

  Status has_only(const json& value, const std::string& where, const std::vector<std::string>& names) const {
    if (!value.is_object()) return fail(where, "an object", shown(value));
    for (const auto& [name, _] : value.items())
      if (std::find(names.begin(), names.end(), name) == names.end())
        return fail(where, fmt::format("the fields {}", fmt::join(names, ", ")), shown(name));
    return {};
  }

  Result<std::string> text_of(const json& value, const std::string& where, const char* name) const {
    if (!value.contains(name) || !value[name].is_string() || value[name].get<std::string>().empty())
      return fail(where + name, "a text", value.contains(name) ? shown(value[name]) : "none");
    return value[name].get<std::string>();
  }

  Result<double> number_of(const json& value, const std::string& where, const char* name, double least,
                           double most) const {
    if (!value.contains(name) || !value[name].is_number() || !(value[name].get<double>() >= least) ||
        !(value[name].get<double>() <= most))
      return fail(where + name, fmt::format("a number from {} to {}", least, most),
                  value.contains(name) ? shown(value[name]) : "none");
    return value[name].get<double>();
  }

  Status read_device(const json& value, std::size_t index) {
    const std::string where = fmt::format("devices[{}]", index), field = where + ".";
    LANCET_TRY(has_only(value, where,
                        {"name", "hardware", "memory_mb", "up_gbit_per_s", "down_gbit_per_s", "latency_us", "source"}));
    Cluster::Device device;
    LANCET_ASSIGN(device.name, text_of(value, field, "name"));
    if (cut(device.name, most_name) != device.name)
      return fail(field + "name", fmt::format("at most {} bytes without control characters", most_name),
                  shown(device.name));
    for (const Cluster::Device& other : cluster_.devices)
      if (other.name == device.name) return fail(field + "name", "a name of its own", shown(device.name) + " again");
    LANCET_ASSIGN(const std::string hardware, text_of(value, field, "hardware"));
    auto read = cost::read_hardware(hardware);
    if (!read.ok()) return config_error(fmt::format("{}: {}hardware: {}", origin_, field, read.error().message));
    device.hardware = std::move(*read);
    device.hardware_file = hardware;
    device.memory_mb = double(device.hardware.free_bytes()) * 1e-6;
    if (value.contains("memory_mb")) {
      LANCET_ASSIGN(device.memory_mb, number_of(value, field, "memory_mb", least_memory_mb, 1e12));
    }
    LANCET_ASSIGN([[maybe_unused]] const std::string source, text_of(value, field, "source"));
    cluster_.devices.push_back(std::move(device));
    return read_network_link(value, field, index);
  }

  // The up- and the downlink of a device, which has both or none. Each has the device's latency.
  Status read_network_link(const json& value, const std::string& field, std::size_t device) {
    if (!value.contains("up_gbit_per_s") && !value.contains("down_gbit_per_s") && !value.contains("latency_us"))
      return {};
    LANCET_ASSIGN(const double up, number_of(value, field, "up_gbit_per_s", least_gbit_per_s, most_gbit_per_s));
    LANCET_ASSIGN(const double down, number_of(value, field, "down_gbit_per_s", least_gbit_per_s, most_gbit_per_s));
    LANCET_ASSIGN(const double latency, number_of(value, field, "latency_us", 0, most_latency_us));
    const std::size_t network = edges_.size() - 1;
    edges_[device][network] = {up, latency};
    edges_[network][device] = {down, latency};
    return {};
  }

  Result<std::size_t> end_of_link(const json& link, const std::string& field, const char* name) const {
    LANCET_ASSIGN(const std::string device, text_of(link, field, name));
    std::vector<std::string> names;
    for (const Cluster::Device& known : cluster_.devices) {
      if (known.name == device) return names.size();
      names.push_back(known.name);
    }
    return fail(field + name, fmt::format("one of the devices {}", fmt::join(names, ", ")), shown(device));
  }

  Status read_links(const json& links) {
    if (!links.is_array()) return fail("links", "a list of links", shown(links));
    for (std::size_t i = 0; i < links.size(); ++i) {
      const std::string where = fmt::format("links[{}]", i), field = where + ".";
      LANCET_TRY(has_only(links[i], where, {"from", "to", "gbit_per_s", "latency_us", "source"}));
      LANCET_ASSIGN(const std::size_t from, end_of_link(links[i], field, "from"));
      LANCET_ASSIGN(const std::size_t to, end_of_link(links[i], field, "to"));
      if (from == to) return fail(field + "to", "another device than from", shown(cluster_.devices[to].name));
      if (edges_[from][to].gbit_per_s > 0)
        return fail(where, "one link from a device to another", "a second one of this pair");
      LANCET_ASSIGN(const double gbit, number_of(links[i], field, "gbit_per_s", least_gbit_per_s, most_gbit_per_s));
      LANCET_ASSIGN(const double latency, number_of(links[i], field, "latency_us", 0, most_latency_us));
      LANCET_ASSIGN([[maybe_unused]] const std::string source, text_of(links[i], field, "source"));
      edges_[from][to] = {gbit, latency};
    }
    return {};
  }

  // Floyd and Warshall's algorithm for the widest paths; a pair's own link goes before any path.
  Status find_paths() {
    Edges paths = edges_;
    const std::size_t places = edges_.size(), devices = places - 1;
    for (std::size_t via = 0; via < places; ++via)
      for (std::size_t from = 0; from < places; ++from)
        for (std::size_t to = 0; to < places; ++to) {
          if (from == to || from == via || to == via) continue;
          const Edge &first = paths[from][via], &second = paths[via][to];
          const Edge joined{std::min(first.gbit_per_s, second.gbit_per_s), first.latency_us + second.latency_us};
          if (joined.gbit_per_s > 0 && joined.is_better_than(paths[from][to])) paths[from][to] = joined;
        }
    cluster_.ms_per_mb.assign(devices, std::vector<double>(devices, 0));
    cluster_.latency_ms = cluster_.ms_per_mb;
    for (std::size_t from = 0; from < devices; ++from)
      for (std::size_t to = 0; to < devices; ++to) {
        if (from == to) continue;
        const Edge& path = edges_[from][to].gbit_per_s > 0 ? edges_[from][to] : paths[from][to];
        if (path.gbit_per_s == 0)
          return fail("links", "a path from each device to every other one",
                      fmt::format("none from {} to {}", cluster_.devices[from].name, cluster_.devices[to].name));
        cluster_.ms_per_mb[from][to] = 8 / path.gbit_per_s;  // 10^6 bytes are 8e-3 Gbit
        cluster_.latency_ms[from][to] = path.latency_us * 1e-3;
      }
    return {};
  }

  const std::string origin_;
  Cluster cluster_;
  Edges edges_;
};

}  // namespace

Result<Cluster> parse_cluster(std::string_view text, std::string_view origin) { return ClusterParser(origin)(text); }

Result<Cluster> read_cluster(const std::string& name_or_path) {
  LANCET_ASSIGN(const ShippedText file, read_shipped_json("cluster", "configs/clusters", name_or_path));
  return parse_cluster(file.text, file.path.string());
}

}  // namespace lancet::placement
