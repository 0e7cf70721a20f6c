// A ProfileFile is a list of device records (op times) and a list of cluster records (communication times), oldest
// first. A Profile is the pair of records that match a machine exactly. Replacing a record appends it at the end, which
// makes it the newest; of the records that differ only in their build, the newest 8 are kept. Every change reads the
// file, edits it and writes it atomically under a lock, so that several processes can add their measurements.
#include "lancet/cost/profile.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>

#include "file_lock.h"
#include "lancet/base/atomic_file.h"
#include "lancet/base/check.h"
#include "lancet/base/hash.h"
#include "lancet/base/log.h"
#include "lancet/ops/catalogue.h"

namespace lancet::cost {
namespace {

std::string counted(std::int64_t n, std::string_view what) {
  return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s");
}

// Removes the records that `same` selects and appends the new one: the end of the list is the newest.
template <class Record, class Same>
void replace(std::vector<Record>& records, Record record, Same same) {
  std::erase_if(records, same);
  records.push_back(std::move(record));
}

bool same_machine(Device a, const Device& b) {
  a.build = b.build;
  return a == b;
}

// Drops the oldest of the records that `alike` selects, which differ only in their build.
template <class Record, class Alike>
void keep_newest(std::vector<Record>& records, Alike alike) {
  constexpr std::ptrdiff_t builds = 8;
  while (std::count_if(records.begin(), records.end(), alike) > builds)
    records.erase(std::find_if(records.begin(), records.end(), alike));
}

}  // namespace

std::string to_string(const Device& device) {
  return fmt::format("{} ({}), {}, {} a host, build {}", device.cpu, device.isa, counted(device.threads, "thread"),
                     counted(device.local_ranks, "rank"), device.build);
}

std::string to_string(const Machine& machine) {
  const Cluster& cluster = machine.cluster;
  return fmt::format("{}; {}, {}, {}", to_string(machine.device), cluster.transport, counted(cluster.ranks, "rank"),
                     counted(cluster.hosts, "host"));
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

double Profile::all_to_all_ms(double bytes) const {
  return machine.cluster.ranks == 1 ? 0 : interpolate(network.all_to_all, bytes);
}

double Profile::all_reduce_ms(double bytes) const {
  return machine.cluster.ranks == 1 ? 0 : interpolate(network.all_reduce, bytes);
}

// Only the first all-to-all waits for the counts: later ones, back and in the backward pass, find them on the host.
OpCost Profile::counted_all_to_all(const ir::Program& program, const ir::Instruction& instruction,
                                   std::int64_t peers) const {
  OpCost op_cost = Costs::counted_all_to_all(program, instruction, peers);
  if (network.windows && ops::op(instruction.op).to_experts && instruction.role == ir::Role::forward)
    op_cost.ms += network.windows->counts_wait_ms;
  return op_cost;
}

std::optional<OpCost> Profile::window_all_to_all(const ir::Program& program, const ir::Instruction& instruction) const {
  if (!network.windows || network.windows->all_to_all.empty() || ops::kind(instruction) != ops::Kind::all_to_all) return {};
  const double bytes = bytes_sent(program, instruction), ms = interpolate(network.windows->all_to_all, bytes);
  return OpCost{ms, std::min(ms, network.windows->core.ms(bytes))};
}

std::string Profile::identity() const {
  ProfileFile file;
  file.put(*this);
  std::string text = file.print();
  if (asked == AllToAllWays::counted) text += "counted";
  if (asked == AllToAllWays::windows) text += "windows";
  return hex(hash64(text));
}

Profile ProfileFile::find(const Machine& machine) const {
  Profile profile(machine);
  for (const DeviceRecord& record : devices_)
    if (record.device == machine.device) profile.ops = record.ops, profile.products = record.products;
  for (const ClusterRecord& record : clusters_)
    if (record.machine == machine) profile.network = record.network;
  return profile;
}

void ProfileFile::put(const Profile& profile) {
  const Machine& machine = profile.machine;
  if (!profile.ops.empty()) {
    replace(devices_, {machine.device, profile.ops, profile.products},
            [&](const DeviceRecord& r) { return r.device == machine.device; });
    keep_newest(devices_, [&](const DeviceRecord& r) { return same_machine(r.device, machine.device); });
  }
  if (profile.network.measured()) {
    replace(clusters_, {machine, profile.network}, [&](const ClusterRecord& r) { return r.machine == machine; });
    keep_newest(clusters_, [&](const ClusterRecord& r) {
      return r.machine.cluster == machine.cluster && same_machine(r.machine.device, machine.device);
    });
  }
}

std::string ProfileFile::inventory() const {
  std::vector<std::string> machines;
  for (const DeviceRecord& record : devices_)
    machines.push_back(fmt::format("{} of {}", counted(std::int64_t(record.ops.size()), "op"), to_string(record.device)));
  for (const ClusterRecord& record : clusters_)
    machines.push_back(fmt::format("communication of {}", to_string(record.machine)));
  return machines.empty() ? "nothing" : fmt::format("{}", fmt::join(machines, "; "));
}

std::vector<Machine> ProfileFile::machines() const {
  std::vector<Machine> result;
  auto add = [&](const Machine& machine) {
    std::erase_if(result, [&](const Machine& held) {
      return held.cluster == machine.cluster && same_machine(held.device, machine.device);
    });
    result.push_back(machine);
  };
  auto has_ops = [&](const Device& device) {
    return std::any_of(devices_.begin(), devices_.end(), [&](const auto& record) { return record.device == device; });
  };
  for (const DeviceRecord& record : devices_)
    if (record.device.local_ranks == 1) add({record.device, {}});
  for (const ClusterRecord& record : clusters_)
    if (has_ops(record.machine.device)) add(record.machine);
  return result;
}

Result<ProfileFile> ProfileFile::read(const std::filesystem::path& path) {
  auto text = read_file(path, "a profile, as lancet profile writes it");
  if (!text.ok()) return config_error(text.error().message);
  return parse(*text, path.string());
}

Result<Profile> read_profile(const std::filesystem::path& path, const Machine& machine) {
  LANCET_ASSIGN(const ProfileFile file, ProfileFile::read(path));
  Profile profile = file.find(machine);
  if (profile.ops.empty() || (machine.cluster.ranks > 1 && !profile.network.measured()))
    return config_error(
        fmt::format("{}: expected the profile of {}, found {}", path.string(), to_string(machine), file.inventory()));
  return profile;
}

Result<Profile> read_profile_of_any_device(const std::filesystem::path& path, const Machine& here, int threads) {
  LANCET_ASSIGN(const ProfileFile file, ProfileFile::read(path));
  std::vector<Machine> fitting;
  std::vector<std::string> names;
  for (const Machine& machine : file.machines()) {
    if (machine == here) return file.find(here);
    if (machine.cluster.ranks != here.cluster.ranks || machine.cluster.hosts != here.cluster.hosts) continue;
    if (threads > 0 && machine.device.threads != threads) continue;
    fitting.push_back(machine);
    names.push_back(to_string(machine));
  }
  if (fitting.size() == 1) return file.find(fitting.front());
  const std::string wanted =
      fmt::format("{} on {}{}", counted(here.cluster.ranks, "rank"), counted(here.cluster.hosts, "host"),
                  threads > 0 ? fmt::format(" of {} each", counted(threads, "thread")) : "");
  if (fitting.empty())
    return config_error(
        fmt::format("{}: expected ops and communication measured with {}, found {}; times of more ranks cannot be "
                    "derived from those of fewer: measure them there with lancet profile",
                    path.string(), wanted, file.inventory()));
  return config_error(fmt::format("{}: expected one device measured with {}, found {}: {}", path.string(), wanted,
                                  fitting.size(), fmt::join(names, "; ")));
}

Result<Profile> read_profile_or_empty(const std::filesystem::path& path, const Machine& machine) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return Profile(machine);
  LANCET_ASSIGN(const ProfileFile file, ProfileFile::read(path));
  return file.find(machine);
}

namespace {

// Time enough for another process's read and write. A process that is stopped in between, or a dead file server, must
// not block the others.
constexpr double lock_seconds = 10;

Status change_file(const std::filesystem::path& path, const std::function<void(ProfileFile&)>& change) {
  std::error_code error;
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), error);
  const std::filesystem::path lock_path = path.string() + ".lock";
  const FileLock lock = FileLock::wait(lock_path, lock_seconds);
  if (lock.late())
    log::warn("cannot lock {} within {} s: another process holds it; what it writes to {} may be lost",
              lock_path.string(), lock_seconds, path.string());
  ProfileFile file;
  if (std::filesystem::exists(path, error)) {
    LANCET_ASSIGN(file, ProfileFile::read(path));
  }
  change(file);
  const Status written = write_file(path, file.print());
  return written.ok() ? Status() : config_error(written.error().message);
}

}  // namespace

Status write_profile(const std::filesystem::path& path, const Profile& profile) {
  return change_file(path, [&](ProfileFile& file) { file.put(profile); });
}

Status add_to_profile(const std::filesystem::path& path, const Profile& profile) {
  return change_file(path, [&](ProfileFile& file) {
    const Profile held = file.find(profile.machine);
    Profile all = profile;
    all.ops.insert(held.ops.begin(), held.ops.end());
    all.products.insert(held.products.begin(), held.products.end());
    file.put(all);
  });
}

}  // namespace lancet::cost
