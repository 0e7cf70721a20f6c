// A file holds the profile of one machine. Every change replaces it atomically, so that several processes can share it.
#include "lancet/cost/profile.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "lancet/base/check.h"
#include "lancet/base/files.h"
#include "lancet/base/hash.h"
#include "lancet/base/json.h"
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

}  // namespace lancet::cost
