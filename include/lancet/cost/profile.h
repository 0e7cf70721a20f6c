// The measured costs: op times of a device and communication times of a cluster, kept in a file that holds several of
// each. `lancet profile` (profiler/profiler.h) measures them; this header stores, finds and interpolates them.
#pragma once
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lancet/cost/costs.h"

namespace lancet::cost {

// The device that op times were measured on. local_ranks: the ranks that compute at once on a host and share its
// memory.
struct Device {
  std::string cpu;  // model name
  std::string isa;  // vector extensions, by which kernels are chosen
  int threads = 1;  // per rank
  int local_ranks = 1;
  std::string build = std::string(kernel_build());
  friend bool operator==(const Device&, const Device&) = default;
};

// The cluster of such devices that communication times were measured on.
struct Cluster {
  std::string transport = "self";
  int ranks = 1, hosts = 1;
  friend bool operator==(const Cluster&, const Cluster&) = default;
};

struct Machine {
  Device device;
  Cluster cluster;
  friend bool operator==(const Machine&, const Machine&) = default;
};
std::string to_string(const Device& device);  // "AMD EPYC 9R14 (avx512bf16), 1 thread, 2 ranks a host, build 0123..."
std::string to_string(const Machine& machine);

struct OpTime {
  double ms = 0;      // median time of one call
  int samples = 0;    // calls measured
  double spread = 0;  // half the distance between the quartiles, relative to the median
  friend bool operator==(const OpTime&, const OpTime&) = default;
};

struct Point {
  double bytes = 0, ms = 0;
  friend bool operator==(const Point&, const Point&) = default;
};
// Milliseconds for `bytes`: linear between the points (bytes ascending, at least one), constant before the first point,
// and beyond the last point continued with the last slope if that is positive.
double interpolate(const std::vector<Point>& points, double bytes);

// All-to-all times through windows between GPUs (AllToAllWays::windows).
struct WindowTimes {
  std::vector<Point> all_to_all;  // by bytes_sent; empty: the measurement found that the ranks have no windows
  CoreCost core;
  // Extra time of the first counted all-to-all of a layer or of a part of one: the host waits for its counts before it
  // queues the messages.
  double counts_wait_ms = 0;
  friend bool operator==(const WindowTimes&, const WindowTimes&) = default;
};

struct NetworkTimes {
  std::vector<Point> all_to_all, all_reduce;  // by bytes_sent; empty: not measured
  CoreCost all_to_all_core, all_reduce_core;
  double launch_ms = 0;
  Interference interference;
  std::optional<WindowTimes> windows = {};  // nullopt: not measured, as on CPUs
  bool measured() const { return !all_to_all.empty() && !all_reduce.empty(); }
};

// The costs measured at one machine. A question about communication that was not measured is an InternalError; with one
// rank communication is free.
class Profile final : public Costs {
 public:
  Machine machine;
  std::map<std::string, OpTime, std::less<>> ops;  // by op_key
  // On a GPU: the algorithm that each product used when it was measured, as the device describes it.
  std::map<std::string, std::string> products;
  NetworkTimes network;
  AllToAllWays asked = AllToAllWays::faster;  // requested by the run; not kept in the file

  Profile() = default;
  explicit Profile(Machine where) : machine(std::move(where)) {}

  std::optional<double> compute_ms(std::string_view op_key) const override;
  double all_to_all_ms(double bytes) const override;
  double all_reduce_ms(double bytes) const override;
  OpCost counted_all_to_all(const ir::Program& program, const ir::Instruction& instruction,
                            std::int64_t peers) const override;
  std::optional<OpCost> window_all_to_all(const ir::Program& program,
                                          const ir::Instruction& instruction) const override;
  AllToAllWays all_to_all_ways() const override { return asked; }
  CoreCost all_to_all_core() const override { return network.all_to_all_core; }
  CoreCost all_reduce_core() const override { return network.all_reduce_core; }
  double launch_ms() const override { return network.launch_ms; }
  Interference interference() const override { return network.interference; }
  std::string identity() const override;  // 16 digits
};

// The profile file: JSON, one op per line. All errors are ExitCode::config and name the file and the field.
class ProfileFile {
 public:
  // Errors: no such file, damaged, a field that is unknown, missing or out of range.
  static Result<ProfileFile> read(const std::filesystem::path& path);
  static Result<ProfileFile> parse(std::string_view text, std::string_view origin);

  // The ops and communication times that the file holds for this machine; both may be empty.
  Profile find(const Machine& machine) const;
  // Replaces the records of the profile's machine. Records of the newest 8 builds are kept for each device.
  void put(const Profile& profile);
  std::string print() const;      // parse(print()) gives an equal file
  std::string inventory() const;  // the devices and clusters that it holds, in words
  // Places for which the file holds all that planning needs: op times and, for several ranks, communication times. Of
  // machines that differ in their build alone, the newest is listed.
  std::vector<Machine> machines() const;

 private:
  struct DeviceRecord {
    Device device;
    std::map<std::string, OpTime, std::less<>> ops;
    std::map<std::string, std::string> products;
  };
  struct ClusterRecord {
    Machine machine;
    NetworkTimes network;
  };
  friend class ProfileParser;
  std::vector<DeviceRecord> devices_;    // oldest first
  std::vector<ClusterRecord> clusters_;  // likewise
};

// Reads the profile of a machine. Config error: the file cannot be read, or holds other machines only; the message
// names the machine and the machines in the file.
Result<Profile> read_profile(const std::filesystem::path& path, const Machine& machine);
// Reads the profile for the ranks and hosts of `here` on any device with `threads` threads per rank (0: any number):
// the profile of `here` if the file holds it, else the only one that fits. Config error: none fits, or several do; the
// message says what the file holds.
Result<Profile> read_profile_of_any_device(const std::filesystem::path& path, const Machine& here, int threads);
// Like read_profile, but a missing file or machine gives an empty profile.
Result<Profile> read_profile_or_empty(const std::filesystem::path& path, const Machine& machine);
// Writes the profile into the file and keeps the others that it holds. The file and its folder are created if they do
// not exist. The file is replaced as a whole, by one process at a time: the lock is FILE.lock, which is not removed.
// Config error: the file is damaged or cannot be written.
Status write_profile(const std::filesystem::path& path, const Profile& profile);
// Like write_profile, but keeps ops of the machine that the profile lacks, such as those that another job measured
// meanwhile.
Status add_to_profile(const std::filesystem::path& path, const Profile& profile);

}  // namespace lancet::cost
