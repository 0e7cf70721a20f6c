#include "measured.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace lancet::experiment {
namespace {

using cost::Machine;

template <class Test>
std::vector<Machine> those(const std::vector<Machine>& machines, const Test& test) {
  std::vector<Machine> found;
  std::copy_if(machines.begin(), machines.end(), std::back_inserter(found), test);
  return found;
}

bool one_device(const std::vector<Machine>& machines) {
  return !machines.empty() &&
         std::all_of(machines.begin(), machines.end(), [&](const Machine& p) { return p.device == machines.front().device; });
}

}  // namespace

Result<cost::Profile> profile_of(const cost::ProfileFile& file, const std::string& path, const cost::Layout& layout,
                                 int threads) {
  const std::vector<Machine> fitting =
      those(file.machines(), [&](const Machine& p) { return threads == 0 || p.device.threads == threads; });
  const std::vector<Machine> exact = those(
      fitting, [&](const Machine& p) { return p.cluster.ranks == layout.ranks && p.cluster.hosts == layout.hosts; });
  if (exact.size() == 1) return file.find(exact.front());
  const std::vector<Machine> alike =
      those(fitting, [&](const Machine& p) { return p.device.local_ranks == layout.on_host(); });
  for (const std::vector<Machine>* devices : {&alike, &fitting})
    if (exact.empty() && one_device(*devices))
      return file.find({devices->front().device, {"of another layout", layout.ranks, layout.hosts}});
  return config_error(fmt::format("{}: expected ops of one device{}, found {}", path,
                                  threads > 0 ? fmt::format(" with threads={}", threads) : "", file.inventory()));
}

}  // namespace lancet::experiment
