// Made-up costs for the planner's tests: work at round speeds, a network with a start-up time.
#pragma once
#include <vector>

#include "lancet/cost/costs.h"
#include "lancet/ops/catalogue.h"

namespace lancet::test {

struct FakeCosts final : cost::Costs {
  double flops_per_ms = 4e6, bytes_per_ms = 4e6, network_bytes_per_ms = 3e4, reduce_bytes_per_ms = 4e6,
         network_start_ms = 0.001;
  double core = 0, launch = 0;
  cost::Interference beside{1, 0.5};

  std::optional<double> compute_ms(std::string_view) const override { return 1; }
  double all_to_all_ms(double bytes, ir::Axes = {}) const override {
    return network_start_ms + bytes / network_bytes_per_ms;
  }
  double all_reduce_ms(double bytes, ir::Axes = {}) const override {
    return network_start_ms + bytes / reduce_bytes_per_ms;
  }
  cost::CoreCost all_to_all_core() const override { return {0, core}; }
  cost::CoreCost all_reduce_core() const override { return {0, core}; }
  double launch_ms() const override { return launch; }
  cost::Interference interference() const override { return beside; }
};

inline double bytes_sent_of(const ir::Program& p, const ir::Instruction& i) {
  double bytes = 0;
  if (i.stream == ir::Stream::expert) bytes = double(ir::bytes(p.type(i.operands[0])));
  if (i.stream == ir::Stream::reduce)
    for (ir::TensorId id : i.operands) bytes += double(ir::bytes(p.type(id)));
  return bytes;
}

inline std::vector<cost::OpCost> loads_of(const ir::Program& p, const FakeCosts& costs) {
  std::vector<cost::OpCost> result;
  for (const ir::Instruction& i : p.instructions) {
    const double bytes = bytes_sent_of(p, i);
    if (i.stream == ir::Stream::compute) {
      const ops::Work work = ops::work(p, i);
      result.push_back({work.flops / costs.flops_per_ms + work.bytes / costs.bytes_per_ms, 0});
    } else {
      const double ms = i.stream == ir::Stream::expert ? costs.all_to_all_ms(bytes) : costs.all_reduce_ms(bytes);
      result.push_back({ms, costs.core * bytes / 1e6});
    }
  }
  return result;
}

}  // namespace lancet::test
