// A file holds the profile of one machine. Every change replaces it atomically, so that several processes can share it.
#include "lancet/cost/profile.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <initializer_list>

#include "lancet/base/check.h"
#include "lancet/base/files.h"
#include "lancet/base/hash.h"
#include "lancet/base/json.h"
#include "lancet/base/shown.h"
#include "lancet/ir/groups.h"

namespace lancet::cost {
namespace {

std::string counted(std::int64_t n, std::string_view what) {
  return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s");
}

std::vector<std::string> words(const Device& device) {
  return {fmt::format("{} ({})", device.cpu, device.isa), counted(device.threads, "thread"),
          counted(device.local_ranks, "rank") + " a host", "build " + device.build};
}

std::vector<std::string> words(const Cluster& cluster) {
  return {cluster.transport, counted(cluster.ranks, "rank"), counted(cluster.hosts, "host")};
}

std::vector<std::string> words(const Machine& machine) {
  std::vector<std::string> all = words(machine.device);
  for (std::string& word : words(machine.cluster)) all.push_back(std::move(word));
  return all;
}

// Says in what the machine of a file differs from the expected one.
Error other_machine(const std::filesystem::path& path, const Machine& found, const Machine& expected,
                    std::string_view advice) {
  const std::vector<std::string> theirs = words(found), mine = words(expected);
  std::vector<std::string> differing, wanted;
  for (std::size_t i = 0; i < mine.size(); ++i)
    if (theirs[i] != mine[i]) differing.push_back(theirs[i]), wanted.push_back(mine[i]);
  return config_error(fmt::format("{}: expected a profile of {}, found one of {}{}", path.string(),
                                  fmt::join(wanted, ", "), fmt::join(differing, ", "), advice));
}

Result<std::string> text_of(const std::filesystem::path& path) {
  auto text = read_file(path, "a profile, as lancet profile writes it");
  if (!text.ok()) return config_error(text.error().message);
  return text;
}

// Whether a text that is no profile was one: it is cut off, or of another format. Other JSON is a file that was named
// by mistake.
bool was_profile(const std::string& text) {
  const auto json = parse_json(text, "", ExitCode::config);
  return !json.ok() || json->contains("format");
}

Status replace_file(const std::filesystem::path& path, const Profile& profile) {
  std::error_code error;
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), error);
  const Status written = write_file(path, print(profile));
  return written.ok() ? Status() : config_error(written.error().message);
}

// Adds the messages that are held and were not measured now.
void add_messages(CollectiveTimes& times, const CollectiveTimes& held) {
  times.messages.insert(held.messages.begin(), held.messages.end());
}

}  // namespace

std::string to_string(const Device& device) { return fmt::format("{}", fmt::join(words(device), ", ")); }

std::string to_string(const Machine& machine) {
  return fmt::format("{}; {}", to_string(machine.device), fmt::join(words(machine.cluster), ", "));
}

double interpolate(const std::vector<Point>& points, double bytes) {
  LANCET_CHECK(!points.empty(), "expected measured communication times, found none");
  if (bytes <= points.front().bytes || points.size() == 1) return points.front().ms;
  // The segment that holds `bytes`, or the last one.
  auto right =
      std::upper_bound(points.begin(), points.end(), bytes, [](double b, const Point& p) { return b < p.bytes; });
  const bool beyond = right == points.end();
  if (beyond) --right;
  const Point &a = *(right - 1), &b = *right;
  const double slope = (b.ms - a.ms) / (b.bytes - a.bytes);
  return beyond ? b.ms + std::max(slope, 0.0) * (bytes - b.bytes) : a.ms + slope * (bytes - a.bytes);
}

std::optional<double> Profile::compute_ms(std::string_view op_key) const {
  const auto it = ops.find(op_key);
  return it == ops.end() ? std::nullopt : std::optional(it->second.ms);
}

std::string group_key(const ir::Mesh& mesh, ir::Axes axes) {
  std::string key;
  int outer = mesh.ranks();
  for (const ir::Axis axis : ir::all_axes) {
    const int inner = outer / mesh[axis];
    if (axes.has(axis) && mesh[axis] > 1) {
      if (!key.empty()) key += " x ";
      key += std::string(ir::name(axis)) + " " + std::to_string(mesh[axis]);
      if (inner > 1) key += " / " + std::to_string(inner);
    }
    outer = inner;
  }
  return key;
}

ir::Axes measured_group(const ir::Mesh& mesh, ir::Axes axes) {
  return mesh.ranks() > 1 && mesh.size(axes) == mesh.ranks() ? ir::Axes() : axes;
}

bool Profile::knows(ir::Axes group) const {
  return measured_group(mesh, group).empty() || network.groups.contains(group_key(mesh, group));
}

const CollectiveTimes& Profile::times_of(ir::Axes group) const {
  if (measured_group(mesh, group).empty()) return network;
  const auto it = network.groups.find(group_key(mesh, group));
  LANCET_CHECK(it != network.groups.end(), "the profile has no times of {}", group_key(mesh, group));
  return it->second;
}

// local_ranks are those of rank 0's host.
Layout Profile::layout() const {
  const Cluster& cluster = machine.cluster;
  return {.ranks = cluster.ranks,
          .hosts = cluster.hosts,
          .mesh = mesh,
          .even = even_hosts && machine.device.local_ranks * cluster.hosts == cluster.ranks};
}

std::int64_t Profile::ranks_on_host(ir::Axes group) const {
  return layout().ranks_sharing_host(measured_group(mesh, group));
}

const std::vector<Point>* points_of(const CollectiveTimes& times, const Reach& reach) {
  if (reach.all()) return times.all_to_all.empty() ? nullptr : &times.all_to_all;
  const auto it = times.messages.find(to_string(reach));
  return it == times.messages.end() ? nullptr : &it->second;
}

std::optional<std::string> Profile::unknown_messages(const ir::Instruction& instruction) const {
  if (auto unknown = Costs::unknown_messages(instruction)) return unknown;
  const ir::Axes group = ir::group_of(instruction);
  const Reach reach = reach_of(instruction);
  if (reach.all() || points_of(times_of(group), reach)) return {};
  return fmt::format("messages '{}' over {}", to_string(reach),
                     group.empty() ? "all ranks" : "the mesh's axes " + ir::to_string(group));
}

double Profile::message_ms(double bytes, const ir::Instruction& instruction) const {
  const ir::Axes group = ir::group_of(instruction);
  if (const Reach reach = reach_of(instruction); !reach.all()) {
    const std::vector<Point>* points = points_of(times_of(group), reach);
    LANCET_CHECK(points, "the profile has no times of messages '{}'", to_string(reach));
    return interpolate(*points, bytes);
  }
  if (reached(instruction) > 0 && instruction.attributes.has("near")) {
    const double ranks = layout().group(measured_group(mesh, group)).ranks;
    bytes *= (ranks - 1) / (ranks - double(ranks_on_host(group)));
  }
  return all_to_all_ms(bytes, group);
}

double Profile::all_to_all_ms(double bytes, ir::Axes group) const {
  return machine.cluster.ranks == 1 ? 0 : interpolate(times_of(group).all_to_all, bytes);
}

double Profile::all_reduce_ms(double bytes, ir::Axes group) const {
  return machine.cluster.ranks == 1 ? 0 : interpolate(times_of(group).all_reduce, bytes);
}

std::string Profile::identity() const {
  Profile costs = *this;
  costs.peak_tflops.clear();
  return hex(hash64(print(costs)));
}

Profile Profile::on(const Machine& other) const {
  Profile part(other);
  part.mesh = mesh;
  part.even_hosts = even_hosts;
  if (machine.device == other.device) part.ops = ops, part.products = products, part.peak_tflops = peak_tflops;
  if (machine == other) part.network = network;
  return part;
}

Result<Profile> read_profile(const std::filesystem::path& path) {
  LANCET_ASSIGN(const std::string text, text_of(path));
  auto profile = parse_profile(text, path.string());
  if (profile.ok() || !was_profile(text)) return profile;
  return config_error(profile.error().message + "; delete the file, or replace it with lancet profile --renew all");
}

Result<Profile> read_profile(const std::filesystem::path& path, const Machine& machine) {
  LANCET_ASSIGN(const Profile held, read_profile(path));
  Profile profile = held.on(machine);
  if (profile.complete()) return profile;
  if (held.machine != machine) return other_machine(path, held.machine, machine, "");
  return config_error(fmt::format(
      "{}: expected measured ops{}, found {}{}", path.string(), machine.cluster.ranks > 1 ? " and communication" : "",
      counted(std::int64_t(held.ops.size()), "op"), held.network.measured() ? " and communication" : ""));
}

Result<Profile> read_profile_or_empty(const std::filesystem::path& path, const Machine& machine) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return Profile(machine);
  LANCET_ASSIGN(const Profile held, read_profile(path));
  Machine of_this_build = held.machine;
  of_this_build.device.build = machine.device.build;
  if (of_this_build != machine)
    return other_machine(path, of_this_build, machine, ", whose times are kept: name another file");
  return held.on(machine);
}

Result<Profile> read_profile_to_replace(const std::filesystem::path& path, const Machine& machine) {
  const auto text = text_of(path);
  if (text.ok() && !parse_profile(*text, path.string()).ok() && was_profile(*text)) return Profile(machine);
  return read_profile_or_empty(path, machine);
}

Status write_profile(const std::filesystem::path& path, const Profile& profile) {
  LANCET_TRY(read_profile_to_replace(path, profile.machine));
  return replace_file(path, profile);
}

Status add_to_profile(const std::filesystem::path& path, Profile profile, bool network_renewed) {
  LANCET_ASSIGN(const Profile held, read_profile_or_empty(path, profile.machine));
  profile.ops.insert(held.ops.begin(), held.ops.end());
  profile.products.insert(held.products.begin(), held.products.end());
  for (const auto& [type, tflops] : held.peak_tflops)
    profile.peak_tflops[type] = std::max(profile.peak_tflops[type], tflops);
  if (network_renewed && profile.network.measured()) return replace_file(path, profile);
  if (!profile.network.measured()) profile.network = held.network;
  add_messages(profile.network, held.network);
  for (const auto& [key, times] : held.network.groups)
    add_messages(profile.network.groups.emplace(key, times).first->second, times);
  return replace_file(path, profile);
}

// The text of a profile:
//   {"format": 2, the machine's fields, "peak_tflops": {type: number}, "ops": {key: {"ms", "samples", "spread"}},
//    "products": {...}, "network": {interference and core costs, "all_to_all": [points], "all_reduce": [points],
//    "messages": {reach: [points]}, "groups": {group_key: {"all_to_all", "all_reduce", "messages"}}}}
// The parser checks every field and its range; Reader keeps the first error and the parser returns it, so that reading
// code need not test each field.
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
