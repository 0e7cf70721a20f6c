#include "place_experts.h"

#include <fmt/format.h>

#include "lancet/base/json.h"

namespace lancet::cli {

std::string text_of_experts(const placement::ExpertAnswer& answer, const placement::Cluster& cluster, double seconds) {
  const placement::ExpertShares& best = answer.best;
  std::string text =
      fmt::format("experts: {:.3f} ms a step, {} planned in {:.1f} s\n", best.step_ms, answer.planned, seconds);
  text += answer.even.step_ms > 0 ? fmt::format("equal shares: {:.3f} ms{}\n", answer.even.step_ms,
                                                answer.even.lacking > 0 ? ", out of memory" : "")
                                  : fmt::format("equal shares: they cannot be planned: {}\n", answer.no_even);
  text += fmt::format("\n{:<12} {:>7} {:>11} {:>10}\n", "device", "experts", "memory MB", "of MB");
  for (std::size_t i = 0; i < best.counts.size(); ++i)
    text += fmt::format("{:<12} {:>7} {:>11.1f} {:>10.1f}\n", cluster.devices[i].name, best.counts[i],
                        double(best.bytes) * 1e-6, cluster.devices[i].memory_mb);
  text += fmt::format("\nto run it on {} ranks, a host each:", best.counts.size());
  for (const std::string& setting : best.settings()) text += fmt::format(" --set '{}'", setting);
  return text + "\n";
}

std::string json_of_experts(const placement::ExpertAnswer& answer, const placement::Cluster& cluster, double seconds) {
  using nlohmann::ordered_json;
  const placement::ExpertShares& best = answer.best;
  ordered_json out{{"makespan_ms", best.step_ms},
                   {"even_ms", answer.even.step_ms > 0 ? ordered_json(answer.even.step_ms) : ordered_json()},
                   {"even_fits", answer.even.step_ms > 0 && answer.even.lacking == 0},
                   {"planned", answer.planned},
                   {"seconds", seconds}};
  for (std::size_t i = 0; i < best.counts.size(); ++i)
    out["assignment"].push_back({{"device", cluster.devices[i].name},
                                 {"experts", best.counts[i]},
                                 {"memory_mb", double(best.bytes) * 1e-6},
                                 {"of_mb", cluster.devices[i].memory_mb}});
  out["set"] = best.settings();
  return json_text(out) + "\n";
}

}  // namespace lancet::cli
