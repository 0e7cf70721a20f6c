#include "place_stages.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>

#include "lancet/base/json.h"

namespace lancet::cli {
namespace {

const placement::Cluster::Device& device_of(const placement::PlannedStages& stages, const placement::Cluster& cluster,
                                            std::size_t stage) {
  return cluster.devices[std::size_t(stages.split.devices[stage])];
}

std::string even_text(const placement::StageAnswer& answer) {
  const placement::PlannedStages& even = answer.even;
  if (even.step_ms <= 0) return fmt::format("even split: it cannot be planned: {}\n", answer.no_even);
  return fmt::format("even split: {:.3f} ms{}\n", even.step_ms, even.fits() ? "" : ", out of memory");
}

// Rounded as it is printed, so that a gap a little below 0 is printed as 0.0 and not as -0.0.
double gap_percent(const placement::StageAnswer& answer) {
  return std::round(1000 * (1 - answer.bound_ms / answer.best.step_ms)) / 10 + 0.0;
}

}  // namespace

std::string text_of_stages(const placement::StageAnswer& answer, const placement::Cluster& cluster, double seconds) {
  const placement::PlannedStages& best = answer.best;
  std::string text =
      fmt::format("stages: {:.3f} ms a step, no split goes below {:.3f} ms (gap {:.1f}%), {} planned in {:.1f} s\n",
                  best.step_ms, answer.bound_ms, gap_percent(answer), answer.planned, seconds);
  if (best.least_ms > 0) text += fmt::format("no order of this split goes below {:.3f} ms\n", best.least_ms);
  text += even_text(answer);
  text += fmt::format("\n{:<6} {:<12} {:>7} {:>11} {:>11} {:>10}\n", "stage", "device", "blocks", "compute ms",
                      "memory MB", "of MB");
  for (std::size_t s = 0; s < best.bytes.size(); ++s)
    text += fmt::format("{:<6} {:<12} {:>7} {:>11.3f} {:>11.1f} {:>10.1f}\n", s, device_of(best, cluster, s).name,
                        best.split.blocks[s], best.compute_ms[s], double(best.bytes[s]) * 1e-6,
                        device_of(best, cluster, s).memory_mb);
  text += fmt::format("\nto run it on {} rank{}, a host each:", best.bytes.size(), best.bytes.size() == 1 ? "" : "s");
  for (const std::string& setting : best.settings()) text += fmt::format(" --set '{}'", setting);
  return text + "\n";
}

std::string json_of_stages(const placement::StageAnswer& answer, const placement::Cluster& cluster, double seconds) {
  using nlohmann::ordered_json;
  const placement::PlannedStages& best = answer.best;
  ordered_json out{{"makespan_ms", best.step_ms},
                   {"bound_ms", answer.bound_ms},
                   {"least_of_split_ms", best.least_ms},
                   {"even_ms", answer.even.step_ms > 0 ? ordered_json(answer.even.step_ms) : ordered_json()},
                   {"even_fits", answer.even.step_ms > 0 && answer.even.fits()},
                   {"planned", answer.planned},
                   {"seconds", seconds}};
  for (std::size_t s = 0; s < best.bytes.size(); ++s)
    out["assignment"].push_back({{"device", device_of(best, cluster, s).name},
                                 {"blocks", best.split.blocks[s]},
                                 {"compute_ms", best.compute_ms[s]},
                                 {"memory_mb", double(best.bytes[s]) * 1e-6},
                                 {"of_mb", device_of(best, cluster, s).memory_mb}});
  out["set"] = best.settings();
  return json_text(out) + "\n";
}

}  // namespace lancet::cli
