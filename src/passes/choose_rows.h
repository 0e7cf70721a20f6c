// The share of an instruction that each rank executes: one row of the op table for each axis of the mesh, or none, in
// which case all ranks along the axis do the same. The choice is the one whose changes of sharding cost least: of the
// operands, from the shardings in which they are at hand, and of the results, to those that the Program says (GShard,
// section 3.3, which has an order of cases for einsums in place of costs). What the instruction computes has no price:
// of equal costs, the choice is a row before the same computation on all ranks. So `cost` must price local steps,
// take_shard and one_summand, at 0, as bytes_sent() does; a price for them may cost less on all ranks alike, and that
// multiplies the computation by the ranks of the axis.
//
// Before all costs, a parameter that `tensor` splits stays split: the axis is there so that no rank needs more of it
// (Megatron-LM, section 3). By cost alone, ranks would gather the weights and split long sequences.
#pragma once
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/ops/op.h"
#include "lancet/passes/reshard_steps.h"
#include "ragged.h"

namespace lancet::passes {

// An operand or a result of an instruction.
struct ShardedOperand {
  ir::TensorType type;                       // of the whole tensor
  std::vector<ir::Sharding> shardings = {};  // of an operand: in which it is at hand; of a result: the one that it
                                             // gets, or none if no instruction reads it
  SlotUse slots = {};                        // which steps it may take
  bool pinned = false;                       // its memory is a state or a parameter: it cannot change its sharding
  bool is_parameter = false;
};

struct ShardedInstruction {
  const ir::Instruction& instruction;
  std::vector<ShardedOperand> operands, results;
};

// What one rank executes.
struct Share {
  std::vector<ir::Sharding> operands, results;  // that it takes and makes
  ir::Attributes attributes;
};

class RowChooser {
 public:
  // The costs of equal steps are equal: they are asked for once.
  RowChooser(const ir::Mesh& mesh, ReshardCost cost) : mesh_(mesh), cost_(std::move(cost)) {}

  // Mesh axes are chosen for one after the other, outermost first. Error: an operand would have to change its sharding
  // and cannot.
  Result<Share> choose(const ShardedInstruction& instruction);

 private:
  // In the order in which choices are preferred.
  struct Price {
    int unmet = 0;     // results about slots that no steps bring to the sharding which the Program says
    int gathered = 0;  // parameters that tensor no longer splits
    double cost = 0;
    int collectives = 0;
    bool replicated = false;  // each rank along the axis computes all of it
    int steps = 0;
    friend auto operator<=>(const Price&, const Price&) = default;
  };
  std::optional<Price> price(const ShardedInstruction& instruction, const Share& share, ir::Axes axes);
  std::optional<Price> price_of(const ShardedOperand& operand, const ir::Sharding& sharding, bool is_result,
                                ir::Axes axes);
  // Infinite if there is no way.
  const Price& price_of(const ShardedOperand& operand, const ir::Sharding& from, const ir::Sharding& to);

  ir::Mesh mesh_;
  ReshardCost cost_;
  std::map<std::string, Price> prices_;
};

}  // namespace lancet::passes
