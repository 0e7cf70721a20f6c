// Prints and parses the profile file:
//   {"format": 2, the machine's fields, "peak_tflops": {type: number}, "ops": {key: {"ms", "samples", "spread"}},
//    "products": {...}, "network": {interference and core costs, "all_to_all": [points], "all_reduce": [points],
//    "messages": {reach: [points]}, "groups": {group_key: {"all_to_all", "all_reduce", "messages"}}}}
// The parser checks every field and its range; Reader keeps the first error and the parser returns it, so that reading
// code need not test each field.
#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>

#include "lancet/base/json.h"
#include "lancet/base/shown.h"
#include "lancet/cost/profile.h"

namespace lancet::cost {
namespace {

using nlohmann::json;
using Ordered = nlohmann::ordered_json;

constexpr int format_version = 2;
constexpr double most = 1e15;  // larger bytes, milliseconds or counts mean a damaged file

Ordered json_of(const std::vector<Point>& points) {
  Ordered list = Ordered::array();
  for (const Point& point : points) list.push_back(Ordered{{"bytes", point.bytes}, {"ms", point.ms}});
  return list;
}

void add_times(Ordered& object, const CollectiveTimes& times) {
  object["all_to_all"] = json_of(times.all_to_all);
  object["all_reduce"] = json_of(times.all_reduce);
  for (const auto& [reach, points] : times.messages) object["messages"][reach] = json_of(points);
}

Ordered json_of(const NetworkTimes& network) {
  Ordered object = {{"launch_ms", network.launch_ms},
                    {"all_to_all_core_ms", network.all_to_all_core.per_message_ms},
                    {"all_to_all_core_ms_per_mb", network.all_to_all_core.per_mb_ms},
                    {"all_reduce_core_ms", network.all_reduce_core.per_message_ms},
                    {"all_reduce_core_ms_per_mb", network.all_reduce_core.per_mb_ms},
                    {"network_beside_compute", network.interference.network_beside_compute},
                    {"network_beside_network", network.interference.network_beside_network}};
  add_times(object, network);
  for (const auto& [key, times] : network.groups) add_times(object["groups"][key], times);
  return object;
}

class Reader {
 public:
  explicit Reader(std::string_view origin) : origin_(origin) {}

  const std::optional<Error>& error() const { return error_; }
  void fail(const std::string& where, const std::string& expected, const std::string& found) {
    if (!error_) error_ = config_error(fmt::format("{}: {}: expected {}, found {}", origin_, where, expected, found));
  }

  using Names = std::initializer_list<std::string_view>;
  // True if the value is an object with all fields in `names`, perhaps some of `optional`, and no other.
  bool object(const json& value, const std::string& where, Names names, Names optional = {}) {
    if (!value.is_object()) return fail(where, "an object", value.type_name()), false;
    for (const std::string_view name : names)
      if (!value.contains(name)) return fail(where, fmt::format("the field {}", name), "none"), false;
    for (const auto& [name, _] : value.items())
      if (std::ranges::find(names, name) == names.end() && std::ranges::find(optional, name) == optional.end())
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

class ProfileParser {
 public:
  explicit ProfileParser(std::string_view origin) : in_(origin) {}

  Result<Profile> operator()(const json& root) {
    Profile profile;
    if (root.is_object() && root.contains("format") && root["format"] != format_version)
      in_.fail("profile.format", std::to_string(format_version), shown(root["format"]));
    else if (in_.object(
                 root, "profile",
                 {"format", "cpu", "isa", "threads", "local_ranks", "build", "transport", "ranks", "hosts", "ops"},
                 {"peak_tflops", "products", "network"}))
      read(root, profile);
    if (in_.error()) return *in_.error();
    return profile;
  }

 private:
  void read(const json& root, Profile& profile) {
    auto text = [&](const char* name) { return in_.text(root, name, "profile"); };
    auto count = [&](const char* name) { return in_.count(root, name, "profile"); };
    profile.machine = {{text("cpu"), text("isa"), count("threads"), count("local_ranks"), text("build")},
                       {text("transport"), count("ranks"), count("hosts")}};
    for (const auto& [key, time] : fields(root, "ops")) {
      const std::string at = fmt::format("ops[\"{}\"]", cut(key, 200));
      if (!in_.object(time, at, {"ms", "samples", "spread"})) return;
      profile.ops[key] = {in_.number(time, "ms", at, 0), in_.count(time, "samples", at),
                          in_.number(time, "spread", at, 0)};
    }
    for (const auto& [product, _] : fields(root, "products"))
      profile.products[product] = in_.text(root["products"], product.c_str(), "products");
    for (const auto& [type, _] : fields(root, "peak_tflops"))
      profile.peak_tflops[type] = in_.number(root["peak_tflops"], type.c_str(), "peak_tflops", 0);
    if (root.contains("network")) read_network(root["network"], profile.network);
  }

  // The fields of an object; none if it is missing or another type, which is an error.
  json::object_t fields(const json& root, const char* name, const std::string& where = "") {
    if (!root.contains(name)) return {};
    if (root[name].is_object()) return root[name].get<json::object_t>();
    in_.fail(where + name, "an object", root[name].type_name());
    return {};
  }

  void read_network(const json& value, NetworkTimes& network) {
    const std::string where = "network";
    if (!in_.object(value, where,
                    {"launch_ms", "all_to_all_core_ms", "all_to_all_core_ms_per_mb", "all_reduce_core_ms",
                     "all_reduce_core_ms_per_mb", "network_beside_compute", "network_beside_network", "all_to_all",
                     "all_reduce"},
                    {"messages", "groups"}))
      return;
    auto number = [&](const char* name, double least = 0) { return in_.number(value, name, where, least); };
    network.launch_ms = number("launch_ms");
    network.all_to_all_core = {number("all_to_all_core_ms"), number("all_to_all_core_ms_per_mb")};
    network.all_reduce_core = {number("all_reduce_core_ms"), number("all_reduce_core_ms_per_mb")};
    constexpr double slowest = 1e-3;  // not 0, since times are divided by speeds
    network.interference = {number("network_beside_compute", slowest), number("network_beside_network", slowest)};
    read_times(value, where, network);
    for (const auto& [key, times] : fields(value, "groups", "network.")) {
      const std::string at = fmt::format("network.groups[\"{}\"]", cut(key, 60));
      if (!in_.object(times, at, {"all_to_all", "all_reduce"}, {"messages"})) return;
      read_times(times, at, network.groups[key]);
    }
  }

  void read_times(const json& value, const std::string& where, CollectiveTimes& times) {
    times.all_to_all = read_points(value["all_to_all"], where + ".all_to_all");
    times.all_reduce = read_points(value["all_reduce"], where + ".all_reduce");
    for (const auto& [reach, points] : fields(value, "messages", where + "."))
      times.messages[reach] = read_points(points, fmt::format("{}.messages[\"{}\"]", where, cut(reach, 60)));
  }

  std::vector<Point> read_points(const json& value, const std::string& where) {
    std::vector<Point> points;
    if (!in_.list(value, where)) return points;
    if (value.empty()) in_.fail(where, "at least one point", "none");
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

  Reader in_;
};

}  // namespace

Result<Profile> parse_profile(std::string_view text, std::string_view origin) {
  LANCET_ASSIGN(const json root, parse_json(text, origin, ExitCode::config));
  return ProfileParser(origin)(root);
}

std::string print(const Profile& profile) {
  const auto& [device, cluster] = profile.machine;
  Ordered root{{"format", format_version},
               {"cpu", device.cpu},
               {"isa", device.isa},
               {"threads", device.threads},
               {"local_ranks", device.local_ranks},
               {"build", device.build},
               {"transport", cluster.transport},
               {"ranks", cluster.ranks},
               {"hosts", cluster.hosts}};
  if (!profile.peak_tflops.empty()) root["peak_tflops"] = profile.peak_tflops;
  root["ops"] = Ordered::object();
  for (const auto& [key, time] : profile.ops)
    root["ops"][key] = {{"ms", time.ms}, {"samples", time.samples}, {"spread", time.spread}};
  if (!profile.products.empty()) root["products"] = profile.products;
  if (profile.network.measured()) root["network"] = json_of(profile.network);
  return json_text(root, {.indent = 1}) + "\n";
}

}  // namespace lancet::cost
