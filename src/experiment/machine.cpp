#include "machine.h"

#include <fmt/format.h>
#include <sched.h>

#include <cmath>
#include <cstdlib>
#include <fstream>

#include "lancet/profiler/profiler.h"

namespace lancet::experiment {
namespace {

// Returns the value of the first line "KEY : value" of a file; empty if there is none.
std::string value_in(const char* path, const std::string& key) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos || line.substr(0, line.find_last_not_of(" \t", colon - 1) + 1) != key) continue;
    const std::size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

std::string first_word_of(const char* path) {
  std::string word;
  std::ifstream(path) >> word;
  return word;
}

int cores_here() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

std::string clock() {
  const std::string highest = first_word_of("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq");  // kHz
  const double mhz =
      highest.empty() ? std::atof(value_in("/proc/cpuinfo", "cpu MHz").c_str()) : std::atof(highest.c_str()) * 1e-3;
  return mhz > 0 ? fmt::format("{:.1f} GHz", mhz * 1e-3) : "clock unknown";
}

std::string governor() {
  const std::string word = first_word_of("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
  return "governor " + (word.empty() ? "unknown" : word);
}

std::string memory() {
  const double kib = std::atof(value_in("/proc/meminfo", "MemTotal").c_str());
  return kib > 0 ? fmt::format("{:.0f} GiB", std::round(kib / (1 << 20))) : "memory unknown";
}

}  // namespace

std::string processor_name() {
  const std::string family = value_in("/proc/cpuinfo", "cpu family"), model = value_in("/proc/cpuinfo", "model");
  const std::string name = profiler::this_device(1, 1).cpu;
  return family.empty() || model.empty() ? name : fmt::format("{} (family {}, model {})", name, family, model);
}

std::string machine_label(int used) {
  const int cores = cores_here();
  return fmt::format("{}, {} of {} core{}, {}, {}, {}", processor_name(), used > 0 && used < cores ? used : cores,
                     cores, cores == 1 ? "" : "s", clock(), governor(), memory());
}

}  // namespace lancet::experiment
