// The costs of ranks on unlike machines: each is that of the machine on which it takes longest. All-to-alls keep the
// ranks at one pace, so a step takes as long as on the slowest of them. Those of a pipeline stage are of its own
// machines.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lancet/cost/hardware.h"

namespace lancet::cost {

class SlowestCosts final : public Costs {
 public:
  // One machine for all hosts, or one for each, all of the same layout.
  explicit SlowestCosts(std::vector<HardwareCosts> machines) : machines_(std::move(machines)) {}

  std::optional<double> compute_ms(std::string_view op_key) const override;
  std::optional<double> op_ms(const ir::Program& program, const ir::Instruction& instruction) const override;
  double all_to_all_ms(double bytes, ir::Axes group = {}) const override;
  double all_reduce_ms(double bytes, ir::Axes group = {}) const override;
  std::int64_t ranks_on_host(ir::Axes group) const override { return machines_.front().ranks_on_host(group); }
  std::optional<std::string> unknown_messages(const ir::Instruction& instruction) const override {
    return machines_.front().unknown_messages(instruction);
  }
  double message_ms(double bytes, const ir::Instruction& instruction) const override;
  OpCost all_to_all(const ir::Program& program, const ir::Instruction& instruction) const override;
  OpCost transfer(const ir::Program& program, const ir::Instruction& instruction) const override;
  double reduce_ms(double bytes, const ir::Instruction& instruction) const override;
  CoreCost all_to_all_core() const override;
  CoreCost all_reduce_core() const override;
  double launch_ms() const override;
  Interference interference() const override;
  std::optional<std::int64_t> free_bytes() const override;  // the least of all machines
  std::string identity() const override;
  std::unique_ptr<const Costs> under(const RankLoad& load) const override;
  std::shared_ptr<const Costs> of_stage(int stage) const override;

 private:
  std::vector<HardwareCosts> machines_;
};

}  // namespace lancet::cost
