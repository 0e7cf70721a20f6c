// The measured costs: op times of a device and communication times of a cluster, kept in a file for each machine.
// `lancet profile` (profiler/profiler.h) measures them; this header stores and interpolates them.
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

struct CollectiveTimes {
  std::vector<Point> all_to_all, all_reduce;  // by bytes_sent; empty: not measured
  // Of messages that reach some ranks of the group alone, by to_string(Reach).
  std::map<std::string, std::vector<Point>> messages = {};
  friend bool operator==(const CollectiveTimes&, const CollectiveTimes&) = default;
};

struct NetworkTimes : CollectiveTimes {  // those of all ranks
  CoreCost all_to_all_core, all_reduce_core;
  double launch_ms = 0;
  Interference interference;
  std::map<std::string, CollectiveTimes> groups = {};  // by group_key
  bool measured() const { return !all_to_all.empty() && !all_reduce.empty(); }
};

// The key of a mesh's groups of these axes: the size of each axis and the distance of its neighbours, if that is not 1,
// for on several hosts it decides what the group's network is. "expert 4", or "data 2 / 8 x expert 4 / 2" for two axes.
std::string group_key(const ir::Mesh& mesh, ir::Axes axes);
// The group whose times hold for these axes: none, which stands for all ranks, if the axes are all that the mesh has.
ir::Axes measured_group(const ir::Mesh& mesh, ir::Axes axes);

// The measured points that price messages of this reach; null if there are none.
const std::vector<Point>* points_of(const CollectiveTimes& times, const Reach& reach);

// The costs measured at one machine. A question about communication that was not measured is an InternalError; with one
// rank communication is free.
class Profile final : public Costs {
 public:
  Machine machine;
  std::map<std::string, OpTime, std::less<>> ops;  // by op_key
  // On a GPU: the algorithm that each product used when it was measured, as the device describes it.
  std::map<std::string, std::string> products;
  NetworkTimes network;
  // The largest rate of matrix products by their type ("f32"), in TFLOP/s: the yardstick of MFU. No cost depends on it.
  std::map<std::string, double> peak_tflops;
  // Of the Programs that are priced: decides which group the axes of an instruction mean. Not in the file.
  ir::Mesh mesh;
  bool even_hosts = true;  // false: hosts are known to have unlike numbers of ranks. Not in the file.

  Profile() = default;
  explicit Profile(Machine where) : machine(std::move(where)) {}

  std::optional<double> compute_ms(std::string_view op_key) const override;
  double all_to_all_ms(double bytes, ir::Axes group = {}) const override;
  double all_reduce_ms(double bytes, ir::Axes group = {}) const override;
  bool knows(ir::Axes group) const override;
  std::int64_t ranks_on_host(ir::Axes group) const override;
  std::optional<std::string> unknown_messages(const ir::Instruction& instruction) const override;
  // By the measured times of its reach. A message that reaches only other hosts takes as long as the all-to-all that
  // sends as many bytes to them.
  double message_ms(double bytes, const ir::Instruction& instruction) const override;
  CoreCost all_to_all_core() const override { return network.all_to_all_core; }
  CoreCost all_reduce_core() const override { return network.all_reduce_core; }
  double launch_ms() const override { return network.launch_ms; }
  Interference interference() const override { return network.interference; }
  std::string identity() const override;  // 16 digits

  // The part that holds for `other`: ops, products and peaks if its device is the same, communication if the cluster is
  // the same, too.
  Profile on(const Machine& other) const;
  // True if planning for the machine lacks nothing: ops and, for several ranks, communication.
  bool complete() const { return !ops.empty() && (machine.cluster.ranks == 1 || network.measured()); }

 private:
  const CollectiveTimes& times_of(ir::Axes group) const;
  Layout layout() const;  // of all ranks
};

// The profile file: JSON. Errors are ExitCode::config and name the file and the field.
std::string print(const Profile& profile);  // parse_profile(print(x)) gives x again
Result<Profile> parse_profile(std::string_view text, std::string_view origin);

// Reads the profile that the file holds. Config error: no such file, or a damaged one, which the message says how to
// replace.
Result<Profile> read_profile(const std::filesystem::path& path);
// Reads the profile of a machine. Config error: also if the file holds another one, in what the message says, or lacks
// ops or communication.
Result<Profile> read_profile(const std::filesystem::path& path, const Machine& machine);
// Reads what a machine's file holds, to add to it. It is nothing if there is no file or one of another build, whose
// times are of no more use. Config error: a damaged file, or one of another machine.
Result<Profile> read_profile_or_empty(const std::filesystem::path& path, const Machine& machine);
// Like read_profile_or_empty, but a profile that is cut off or of another format is nothing, too.
Result<Profile> read_profile_to_replace(const std::filesystem::path& path, const Machine& machine);
// Replaces the file, or creates it and its folder. Config error: that of read_profile_to_replace, or it cannot be
// written.
Status write_profile(const std::filesystem::path& path, const Profile& profile);
// Like write_profile, but keeps what the file holds for the machine and the profile lacks, such as ops that another job
// measured meanwhile. network_renewed: communication was measured again, so that the profile's times of it, if it has
// any, replace all that the file holds. Of two jobs that do so at the same moment, one may lose its times, which are
// measured again.
Status add_to_profile(const std::filesystem::path& path, Profile profile, bool network_renewed = false);

}  // namespace lancet::cost
