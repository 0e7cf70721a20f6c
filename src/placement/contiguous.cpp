// A dynamic program for each order of the devices: least[k][i] is the shortest sum for the first i units on the first k
// devices, each of which has at least one. A border between two devices is passed by all flows between units on both
// sides of it.
#include "contiguous.h"

#include <algorithm>
#include <cmath>

#include "partial.h"

namespace lancet::placement {
namespace {

constexpr std::size_t most_permuted = 4;

class Splitter {
 public:
  Splitter(const Problem& problem, const Units& units) : problem_(problem), count_(std::size_t(units.count())) {
    mb_.assign(count_ + 1, 0);
    ms_.assign(problem.devices.size(), mb_);
    excluded_.assign(problem.devices.size(), std::vector<int>(count_ + 1, 0));
    for (std::size_t unit = 0; unit < count_; ++unit) add_unit(units, unit);
    crossing_.assign(count_ + 1, {});
    for (const Flow& flow : problem.flows) {
      const int from = units.of[std::size_t(flow.from)], to = units.of[std::size_t(flow.to)];
      for (int border = std::min(from, to) + 1; border <= std::max(from, to); ++border) {
        Crossing& at = crossing_[std::size_t(border)];
        (from < to ? at.mb : at.back_mb) += flow.mb;
        ++(from < to ? at.flows : at.back_flows);
      }
    }
  }

  // The device of each unit, for devices in this order; empty if no split fits.
  std::vector<int> split(const std::vector<int>& devices) const {
    const std::size_t orders = devices.size();
    std::vector<std::vector<double>> least(orders + 1, std::vector<double>(count_ + 1, never));
    std::vector<std::vector<std::size_t>> begin(orders + 1, std::vector<std::size_t>(count_ + 1, 0));
    least[0][0] = 0;
    for (std::size_t k = 0; k < orders; ++k)
      for (std::size_t first = 0; first < count_; ++first) {
        if (least[k][first] == never) continue;
        const double before = least[k][first] + (k > 0 ? border_ms(first, devices[k - 1], devices[k]) : 0);
        for (std::size_t end = first + 1; end <= count_ && fits(first, end, devices[k]); ++end) {
          const auto& ms = ms_[std::size_t(devices[k])];
          const double now = before + ms[end] - ms[first];
          if (now < least[k + 1][end]) least[k + 1][end] = now, begin[k + 1][end] = first;
        }
      }
    std::size_t used = 1;
    for (std::size_t k = 2; k <= orders; ++k)
      if (least[k][count_] < least[used][count_]) used = k;
    if (least[used][count_] == never) return {};
    std::vector<int> device(count_);
    for (std::size_t k = used, end = count_; k > 0; end = begin[k][end], --k)
      std::fill(device.begin() + std::ptrdiff_t(begin[k][end]), device.begin() + std::ptrdiff_t(end), devices[k - 1]);
    return device;
  }

  // The fastest first.
  std::vector<int> by_speed(std::vector<int> devices) const {
    std::stable_sort(devices.begin(), devices.end(),
                     [&](int a, int b) { return ms_[std::size_t(a)].back() < ms_[std::size_t(b)].back(); });
    return devices;
  }

 private:
  struct Crossing {
    double mb = 0, back_mb = 0;
    int flows = 0, back_flows = 0;
  };

  void add_unit(const Units& units, std::size_t unit) {
    mb_[unit + 1] = mb_[unit] + units.mb[unit];
    for (std::size_t k = 0; k < ms_.size(); ++k) {
      double sum = 0;
      for (const int op : units.ops[unit]) sum += problem_.ops[std::size_t(op)].ms[k];
      ms_[k][unit + 1] = ms_[k][unit] + (std::isfinite(sum) ? sum : 0);
      excluded_[k][unit + 1] = excluded_[k][unit] + !std::isfinite(sum);
    }
  }

  bool fits(std::size_t first, std::size_t end, int device) const {
    const auto& excluded = excluded_[std::size_t(device)];
    return mb_[end] - mb_[first] <= problem_.devices[std::size_t(device)].memory_mb && excluded[end] == excluded[first];
  }

  double border_ms(std::size_t border, int left, int right) const {
    const Crossing& at = crossing_[border];
    const auto a = std::size_t(left), b = std::size_t(right);
    double ms = 0;
    if (at.flows > 0) ms += at.mb * problem_.ms_per_mb[a][b] + at.flows * problem_.latency_ms[a][b];
    if (at.back_flows > 0) ms += at.back_mb * problem_.ms_per_mb[b][a] + at.back_flows * problem_.latency_ms[b][a];
    return std::isfinite(ms) ? ms : never;
  }

  const Problem& problem_;
  const std::size_t count_;
  std::vector<double> mb_;                  // of the first units
  std::vector<std::vector<double>> ms_;     // by device, of the first units
  std::vector<std::vector<int>> excluded_;  // by device: of the first units, those that it does not run
  std::vector<Crossing> crossing_;          // by border: before that unit
};

}  // namespace

std::vector<std::vector<int>> contiguous_splits(const Problem& problem, const Units& units) {
  const Splitter splitter(problem, units);
  std::vector<std::vector<int>> splits;
  const auto add = [&](const std::vector<int>& devices) {
    if (std::vector<int> split = splitter.split(devices); !split.empty()) splits.push_back(std::move(split));
  };
  for (std::vector<int> devices : linked_devices(problem)) {
    if (devices.size() > most_permuted) {
      add(splitter.by_speed(std::move(devices)));
      continue;
    }
    do add(devices);
    while (std::next_permutation(devices.begin(), devices.end()));
  }
  return splits;
}

}  // namespace lancet::placement
