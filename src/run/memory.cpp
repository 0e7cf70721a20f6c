// The host's free memory is MemAvailable of /proc/meminfo; control groups are read from /sys/fs/cgroup. The limit of a
// group applies to all groups below it, so the search walks from the process's group up to the root.
#include "lancet/run/rank_device.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <limits>
#include <string>

namespace lancet::run {
namespace {

using std::filesystem::path;

constexpr std::int64_t no_limit = std::numeric_limits<std::int64_t>::max();

// The number in a file; empty for "max", which cgroup v2 writes for no limit.
std::optional<std::int64_t> number_in(const path& file) {
  std::ifstream in(file);
  std::int64_t number = 0;
  if (in >> number) return number;
  return std::nullopt;
}

// The number after `key` in a file of "key value" lines; 0 if the key is missing.
std::int64_t entry(const path& file, const std::string& key) {
  std::ifstream in(file);
  std::string name;
  for (std::int64_t value = 0; in >> name >> value;)
    if (name == key) return value;
  return 0;
}

// File names and keys of the two cgroup versions.
struct Names {
  const char *limit, *used, *cache;
};
constexpr Names v1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};
constexpr Names v2{"memory.max", "memory.current", "inactive_file"};

// Free bytes under the limits of this group and of each group above it. The usage includes inactive file pages, which
// are subtracted because the kernel drops them first.
std::int64_t left_in(const path& mount, const path& group, const Names& names) {
  std::int64_t left = no_limit;
  for (path inner = group.relative_path();; inner = inner.parent_path()) {
    const path folder = mount / inner;
    if (const auto limit = number_in(folder / names.limit), used = number_in(folder / names.used); limit && used) {
      const std::int64_t kept = std::max<std::int64_t>(0, *used - entry(folder / "memory.stat", names.cache));
      left = std::min(left, std::max<std::int64_t>(0, *limit - kept));
    }
    if (inner.empty()) return left;
  }
}

// Free bytes under the limits of the process's groups. A line of /proc/self/cgroup is "0::/user.slice" (v2) or
// "9:cpu,memory:/docker/1f3" (v1). In a container that path may be the host's; the container's own group is then the
// mount itself, which left_in reads too.
std::int64_t left_in_groups(const path& root) {
  std::ifstream in(root / "proc/self/cgroup");
  std::int64_t left = no_limit;
  for (std::string line; std::getline(in, line);) {
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (second == line.npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const path group = line.substr(second + 1);
    if (controllers == ",,") left = std::min(left, left_in(root / "sys/fs/cgroup", group, v2));
    if (controllers.find(",memory,") != controllers.npos)
      left = std::min(left, left_in(root / "sys/fs/cgroup/memory", group, v1));
  }
  return left;
}

}  // namespace

std::int64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::int64_t size = 0, resident = 0;
  statm >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

std::optional<std::int64_t> available_bytes(const path& root) {
  std::int64_t free = no_limit;
  std::ifstream meminfo(root / "proc/meminfo");
  for (std::string line; std::getline(meminfo, line);)
    if (std::int64_t kilobytes = 0; std::sscanf(line.c_str(), "MemAvailable: %ld", &kilobytes) == 1)
      free = kilobytes * 1024;
  const std::int64_t left = std::min(free, left_in_groups(root));
  return left == no_limit ? std::nullopt : std::optional(left);
}

Status check_memory(std::int64_t needed, int local_ranks, std::string_view what) {
  const auto available = available_bytes();
  if (!available || needed <= *available / local_ranks) return {};
  return config_error(fmt::format("expected {} MB of free memory a rank for {}, found {} MB", needed / 1'000'000, what,
                                  *available / local_ranks / 1'000'000));
}

}  // namespace lancet::run
