// Costs computed from an op's work and a declared device and network: enough to plan without measurement.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "lancet/cost/costs.h"

namespace lancet::test {

// In every block, one of two ranks has `fullest` times the mean load, as far as the slots hold it.
inline std::shared_ptr<const cost::Loads> loads_of_fullest(double fullest, double slots = 10) {
  cost::RoutedModel model{.experts = 2, .ranks = 2, .slots = slots};
  std::vector<std::vector<double>> layers;
  for (int block = 0; block < 64; ++block) {
    model.blocks.push_back(block);
    layers.push_back({fullest, 2 - fullest});
  }
  return std::make_shared<const cost::Loads>(cost::Loads::recorded(model, {layers}));
}

struct DeclaredCosts : cost::Costs {
  double elements_per_ms = 40'000;  // of an op's first operand
  double network_mb_per_s = 10;
  double latency_ms = 0.05;
  cost::Interference beside{};
  double core = 0;

  std::optional<double> compute_ms(std::string_view key) const override {
    const auto open = key.find('[');
    double elements = 1;
    for (std::size_t at = open; at != std::string_view::npos && key[at] != ']'; at = key.find_first_of(",]", at + 1))
      elements *= std::atof(std::string(key.substr(at + 1, 20)).c_str());
    if (const auto tokens = key.find("tokens="); tokens != std::string_view::npos)
      elements = (is_copy_of_columns(key) ? 2 : 32) * std::atof(std::string(key.substr(tokens + 7)).c_str());
    return 0.01 + elements * share_of_columns(key) / elements_per_ms;
  }
  static bool is_copy_of_columns(std::string_view key) { return key.starts_with("place_columns"); }
  // Of an expert's weights [E,N,K], the share of N that a product makes, of K for a gradient.
  static double share_of_columns(std::string_view key) {
    const bool of_gradient = key.starts_with("expert_linear_dx");
    const auto columns = key.find("columns=");
    if (columns == std::string_view::npos || is_copy_of_columns(key)) return 1;
    return number(key, columns + 8) / extent(key, 1, of_gradient ? 2 : 1);
  }
  static double number(std::string_view key, std::size_t from) {
    return std::atof(std::string(key.substr(from, 20)).c_str());
  }
  // An extent of one of the operands that a key lists.
  static double extent(std::string_view key, int operand, int axis) {
    auto at = key.find('[');
    for (; operand > 0; --operand) at = key.find('[', at + 1);
    for (; axis > 0; --axis) at = key.find(',', at + 1);
    return number(key, at + 1);
  }
  double all_to_all_ms(double bytes, ir::Axes = {}) const override {
    return latency_ms + bytes / network_mb_per_s * 1e-3;
  }
  double all_reduce_ms(double bytes, ir::Axes = {}) const override {
    return latency_ms + bytes / network_mb_per_s * 1e-3;
  }
  cost::CoreCost all_to_all_core() const override { return {0, core}; }
  cost::CoreCost all_reduce_core() const override { return {0, core}; }
  double launch_ms() const override { return 0.01; }
  cost::Interference interference() const override { return beside; }
};

}  // namespace lancet::test
