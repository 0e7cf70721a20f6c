// A training step before any policy changes it, with the facts that all policies need: which instructions can be split,
// the costs of instructions and of their parts, and where the forward pass ends.
#pragma once
#include <map>
#include <vector>

#include "lancet/config/config.h"
#include "lancet/cost/costs.h"
#include "lancet/schedule/partition/rewrite.h"
#include "lancet/schedule/simulate.h"

namespace lancet::schedule {

// The rows along the batch (layers of both passes, and weight gradients that keep much alive), or those of the experts
// and their all-to-alls by capacity or by peers.
AxisRows axis_rows(const ir::Program& program, Cut cut);

class Step {
 public:
  // program: the result of autodiff, sync and optimize. part_counts: the counts that part_cost may be called with.
  // Error: the costs lack an op (of the whole step or of a part).
  static Result<Step> make(const ir::Program& program, const cost::Costs& costs, std::vector<int> part_counts);

  const ir::Program& program() const { return program_; }
  const Dependencies& dependencies() const { return dependencies_; }
  const std::vector<cost::OpCost>& op_costs() const { return op_costs_; }
  const cost::Costs& costs() const { return *costs_; }
  // The part_counts (at least 2, ascending) that the step can be split in: along the batch those that divide it, by
  // peers those that divide the ranks, by capacity all. Empty if no tokens travel.
  const std::vector<int>& part_counts(Cut cut) const {
    return cut == Cut::batch ? batch_parts_ : cut == Cut::capacity ? capacity_parts_ : peer_parts_;
  }
  std::size_t forward_end() const { return forward_end_; }  // the first instruction that is not of the forward pass
  bool has_all_to_all() const;                              // some of the expert stream takes time

  // Rows of the whole step along the batch, and of the experts and their all-to-alls along the capacity or by peers.
  const AxisRows& rows(Cut cut) const { return cut == Cut::batch ? batch_rows_ : capacity_rows_; }

  // No instruction split.
  Split whole(Cut cut) const;
  // Every instruction split that can be.
  Split all(Cut cut, int parts) const;

  // The costs of the instructions of rewrite(program(), split).
  std::vector<cost::OpCost> op_costs(const Rewritten& rewritten, const Split& split) const;
  // The cost of one of `parts` parts of an instruction.
  const cost::OpCost& part_cost(Cut cut, int parts, std::size_t instruction) const;

 private:
  Step() = default;
  std::int64_t ranks() const;
  Status add_part_costs(Cut cut, int parts);
  void add_peer_costs(const Rewritten& by_capacity, int parts);
  cost::OpCost helper_cost(const ir::Program& program, std::size_t instruction) const;

  ir::Program program_;
  const cost::Costs* costs_ = nullptr;
  Dependencies dependencies_;
  std::vector<cost::OpCost> op_costs_;
  std::vector<int> batch_parts_, capacity_parts_, peer_parts_;
  std::size_t forward_end_ = 0;
  AxisRows batch_rows_, capacity_rows_;
  std::map<std::pair<Cut, int>, std::vector<cost::OpCost>> part_costs_;  // by instruction of program_
  std::map<std::string, cost::OpCost> helpers_;                          // by op_key
};

// The part counts that planning and profiling consider: 2, 4, 8, ... up to max_parts, or the one that overlap.parts
// forces.
std::vector<int> part_counts(const config::Overlap& overlap);

// Programs whose instructions have every op key that a policy may need the cost of: the step and its variants in parts.
std::vector<ir::Program> variants(const ir::Program& step, const config::Overlap& overlap);

}  // namespace lancet::schedule
