#include "process.h"

#include <signal.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

namespace lancet::experiment {
namespace {

struct Stat {
  pid_t parent = 0;
  std::uint64_t start = 0;
};

// Parses /proc/PID/stat: "PID (name) state PARENT ... START ...". The name may hold any character, and the start is the
// 22nd field.
Stat stat_of(const std::filesystem::path& process) {
  std::ifstream in(process / "stat");
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  const std::size_t name_end = text.rfind(')');
  int parent = 0;
  unsigned long long start = 0;
  constexpr const char* fields = " %*c %d %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu";
  if (name_end == std::string::npos || std::sscanf(text.c_str() + name_end + 1, fields, &parent, &start) != 2)
    return {};
  return {parent, start};
}

std::filesystem::path folder_of(pid_t id) { return "/proc/" + std::to_string(id); }

}  // namespace

Process process_of(pid_t id) { return {id, stat_of(folder_of(id)).start}; }

std::vector<Process> family_of(pid_t root) {
  std::multimap<pid_t, Process> children;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const std::string name = entry.path().filename();
    if (!std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isdigit(c); })) continue;
    const Stat stat = stat_of(entry.path());
    children.emplace(stat.parent, Process{std::stoi(name), stat.start});
  }
  std::vector<Process> family{process_of(root)};
  for (std::size_t i = 0; i < family.size(); ++i)
    for (auto [at, end] = children.equal_range(family[i].id); at != end; ++at) family.push_back(at->second);
  return family;
}

void kill_if_same(const Process& process) {
  if (process.start != 0 && process_of(process.id) == process) ::kill(process.id, SIGKILL);
}

}  // namespace lancet::experiment
