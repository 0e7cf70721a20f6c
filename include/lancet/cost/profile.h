// The measured costs: op times of a device and communication times of a cluster, kept in a file that holds several of
// each. Who measures is `lancet profile` (runtime/profiler.h); this room keeps, finds and interpolates.
#pragma once
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lancet/cost/costs.h"

namespace lancet::cost {

// What op times hold for. local_ranks: the ranks that compute at once on a host, since they share its memory.
struct Device {
  std::string cpu;  // its model's name
  std::string isa;  // the vector extensions that kernels choose by
  int threads = 1;  // of a rank
  int local_ranks = 1;
  std::string build = std::string(kernel_build());
  friend bool operator==(const Device&, const Device&) = default;
};

// What communication times hold for, on such devices.
struct Cluster {
  std::string transport = "self";
  int ranks = 1, hosts = 1;
  friend bool operator==(const Cluster&, const Cluster&) = default;
};

struct Place {
  Device device;
  Cluster cluster;
  friend bool operator==(const Place&, const Place&) = default;
};
std::string to_string(const Device& device);  // "AMD EPYC 9R14 (avx512bf16), 1 thread, 2 ranks a host, build 0123..."
std::string to_string(const Place& place);

struct OpTime {
  double ms = 0;      // of one call: the median
  int samples = 0;    // calls that it is the median of
  double spread = 0;  // half the distance between the quartiles, over the median
  friend bool operator==(const OpTime&, const OpTime&) = default;
};

struct Point {
  double bytes = 0, ms = 0;
  friend bool operator==(const Point&, const Point&) = default;
};
// Linear between the points (bytes ascending, at least one); the first one's value before them, the last slope, where
// it rises, beyond them.
double interpolate(const std::vector<Point>& points, double bytes);

// The other way of tokens between GPUs (AllToAllWays::windows).
struct WindowTimes {
  std::vector<Point> all_to_all;  // by bytes_sent; empty: the ranks were asked, and have no windows
  CoreCost core;
  // What the first counted exchange of a layer, or of a part of it, takes longer since the host waits for its counts
  // before it queues the messages.
  double counts_wait_ms = 0;
  friend bool operator==(const WindowTimes&, const WindowTimes&) = default;
};

struct NetworkTimes {
  std::vector<Point> all_to_all, all_reduce;  // by bytes_sent; empty: not measured
  CoreCost all_to_all_core, all_reduce_core;
  double launch_ms = 0;
  Interference interference;
  std::optional<WindowTimes> windows = {};  // nothing: not measured, as on CPUs
  bool measured() const { return !all_to_all.empty() && !all_reduce.empty(); }
};

// The costs at one place. Communication that was not measured is an InternalError; with one rank it is free.
class Profile final : public Costs {
 public:
  Place place;
  std::map<std::string, OpTime, std::less<>> ops;  // by op_key
  // Of a GPU: the algorithm that each product took when its times were measured, in the device's words.
  std::map<std::string, std::string> products;
  NetworkTimes wire;
  AllToAllWays asked = AllToAllWays::faster;  // of the run, not of the file

  Profile() = default;
  explicit Profile(Place where) : place(std::move(where)) {}

  std::optional<double> compute_ms(std::string_view op_key) const override;
  double all_to_all_ms(double bytes) const override;
  double all_reduce_ms(double bytes) const override;
  OpCost counted_all_to_all(const ir::Program& program, const ir::Instruction& instruction,
                        std::int64_t peers) const override;
  std::optional<OpCost> window_all_to_all(const ir::Program& program, const ir::Instruction& instruction) const override;
  AllToAllWays exchanges() const override { return asked; }
  CoreCost all_to_all_core() const override { return wire.all_to_all_core; }
  CoreCost all_reduce_core() const override { return wire.all_reduce_core; }
  double launch_ms() const override { return wire.launch_ms; }
  Interference interference() const override { return wire.interference; }
  std::string identity() const override;  // 16 digits
};

// The file: JSON, an op a line. All errors are ExitCode::config and name the file and the field.
class ProfileFile {
 public:
  // Errors: no such file, damaged, a field that is unknown, missing or out of range.
  static Result<ProfileFile> read(const std::filesystem::path& path);
  static Result<ProfileFile> parse(std::string_view text, std::string_view origin);

  // What the file holds for this place: ops, communication, both or nothing.
  Profile find(const Place& place) const;
  // Replaces what it holds for the profile's place. Of one device the newest 8 builds are kept.
  void put(const Profile& profile);
  std::string print() const;      // parse(print()) is the same
  std::string inventory() const;  // the devices and clusters that it holds, in words
  // Places of which it holds all that planning asks: a device's ops and, of several ranks, their communication. Of
  // builds that differ in nothing else the newest.
  std::vector<Place> places() const;

 private:
  struct DeviceRecord {
    Device device;
    std::map<std::string, OpTime, std::less<>> ops;
    std::map<std::string, std::string> products;
  };
  struct ClusterRecord {
    Place place;
    NetworkTimes wire;
  };
  friend class ProfileParser;
  std::vector<DeviceRecord> devices_;    // oldest first
  std::vector<ClusterRecord> clusters_;  // likewise
};

// The profile of a place that must be there. Config error: the file cannot be read, or holds other places only; the
// message says which, and what was looked for.
Result<Profile> read_profile(const std::filesystem::path& path, const Place& place);
// The profile of so many ranks and hosts on whatever device (threads: of a rank; 0: any): the one of `here` where the
// file holds it, else the only one that fits. Config error: none fits, or several do; the message says what the file
// holds.
Result<Profile> read_profile_of_any_device(const std::filesystem::path& path, const Place& here, int threads);
// The same as read_profile where a file that is not there, or does not know the place, gives an empty profile.
Result<Profile> read_profile_or_empty(const std::filesystem::path& path, const Place& place);
// Puts the profile into the file, which may hold others, and is made, with its folder, where it is not there. The file
// is replaced as a whole, by one process at a time: the lock is FILE.lock, which stays. Config error: it is damaged or
// cannot be written.
Status write_profile(const std::filesystem::path& path, const Profile& profile);
// The same, but ops of the place that the profile lacks are kept, such as another job has measured meanwhile.
Status add_to_profile(const std::filesystem::path& path, const Profile& profile);

}  // namespace lancet::cost
