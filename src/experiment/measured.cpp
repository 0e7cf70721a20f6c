#include "measured.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace lancet::experiment {
namespace {

using cost::Place;

template <class Test>
std::vector<Place> those(const std::vector<Place>& places, const Test& test) {
  std::vector<Place> found;
  std::copy_if(places.begin(), places.end(), std::back_inserter(found), test);
  return found;
}

bool one_device(const std::vector<Place>& places) {
  return !places.empty() &&
         std::all_of(places.begin(), places.end(), [&](const Place& p) { return p.device == places.front().device; });
}

}  // namespace

Result<cost::Profile> profile_of(const cost::ProfileFile& file, const std::string& path, const cost::Layout& layout,
                                 int threads) {
  const std::vector<Place> fitting =
      those(file.places(), [&](const Place& p) { return threads == 0 || p.device.threads == threads; });
  const std::vector<Place> exact = those(
      fitting, [&](const Place& p) { return p.cluster.ranks == layout.ranks && p.cluster.hosts == layout.hosts; });
  if (exact.size() == 1) return file.find(exact.front());
  const std::vector<Place> alike =
      those(fitting, [&](const Place& p) { return p.device.local_ranks == layout.on_host(); });
  for (const std::vector<Place>* devices : {&alike, &fitting})
    if (exact.empty() && one_device(*devices))
      return file.find({devices->front().device, {"of another layout", layout.ranks, layout.hosts}});
  return config_error(fmt::format("{}: expected ops of one device{}, found {}", path,
                                  threads > 0 ? fmt::format(" with threads={}", threads) : "", file.inventory()));
}

}  // namespace lancet::experiment
