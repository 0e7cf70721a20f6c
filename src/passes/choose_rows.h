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
#include <string>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/ops/op.h"
#include "lancet/passes/reshard_steps.h"

namespace lancet::passes {

// Changes of sharding of what is about experts' slots (ops::Ragged). On the tokens' side a rank has the slots that its
// own tokens fill, of all experts: [E,C{data,expert},D]; on the experts' side all slots of its own experts:
// [E{expert},C{data},D]. The irregular all-to-all changes one into the other and sends filled slots only. It needs the
// counts of both sides: `filled`, partial over the axes that split the slots, since each rank counts its own, and
// `rows`, which all_to_all_counts makes of them once, split as the experts are (Lancet, section 6 and Fig. 10).
//
// Ranks that have the same tokens need no all-to-all: they have whole counts and slots of tokens, each takes the counts
// of its own experts, and dispatch makes [E{expert},C,D] at once.
//
// No other step may split or join the dimension of the slots: that would make buffers in which the tokens' slots are
// elsewhere than the gate says. Steps along the other dimensions may, as where `tensor` splits the experts' products:
// sums, gathers and scatters of features. They move whole buffers, slots without a token included.

// What a tensor is to the slots.
struct SlotUse {
  enum class Kind : std::uint8_t {
    none,
    buffer,  // [E,C,...]: dimension 1 has the slots
    counts,  // i32[E,2]: the slots that are filled
    slots,   // i32[T,K]: the slots of the tokens
    // i32[1]: the windows that a rank's choices take. It is partial like the counts that it comes with, and the whole
    // is the largest number of the ranks that meet in the all-to-alls. Other ranks may have others.
    windows,
  };
  Kind kind = Kind::none;
  double filled = 1;  // of a buffer: the share of its slots that is expected to be filled
};

// The price of a step; infinite if it may not touch such a tensor.
double step_cost(const SlotUse& use, const Reshard& step, const ReshardCost& cost);

// The sharding of the counts that goes with a buffer's.
ir::Sharding sharding_of_counts(const ir::Sharding& buffer);

// The tensors of a logical Program that are about slots, from the op table. InternalError: a buffer with two counts.
class RaggedTensors {
 public:
  explicit RaggedTensors(const ir::Program& program);

  SlotUse use(ir::TensorId id) const { return uses_[id.index()]; }
  // The counts of a buffer.
  ir::TensorId counts(ir::TensorId buffer) const { return counts_[buffer.index()]; }
  // The buffers that a tensor counts the slots of; none of other tensors.
  const std::vector<ir::TensorId>& buffers(ir::TensorId counts) const { return buffers_[counts.index()]; }
  // Of windows: the counts with which they travel; of these counts, their windows. Invalid if there are none.
  ir::TensorId partner(ir::TensorId id) const { return partners_[id.index()]; }
  // The expected number of filled slots on all ranks; 0: all may be.
  std::int64_t tokens(ir::TensorId counts) const { return tokens_[counts.index()]; }

  // The sharding that a tensor of the program has, without the axes that are not wide on the mesh. Errors
  // (ExitCode::config), with the tensor's name: those of check_sharding() (reshard_steps.h), and a partial sum of
  // integers other than counts, which all_to_all_counts sums; no other collective sums integers.
  Result<ir::Sharding> sharding_on(const ir::Program& program, ir::TensorId id, const ir::Mesh& mesh) const;

  // Errors (ExitCode::config): experts that are split over several axes, or tokens of a gate over `tensor`.
  Status check(const ir::Program& program, const std::vector<ir::Sharding>& shardings) const;

 private:
  void add(const ir::Program& program, const ir::Instruction& instruction);
  void add_buffer(ir::TensorId buffer, ir::TensorId counts);

  std::vector<SlotUse> uses_;                       // by tensor, as those below
  std::vector<ir::TensorId> counts_;                // of buffers
  std::vector<std::vector<ir::TensorId>> buffers_;  // of counts
  std::vector<std::int64_t> tokens_;                // of counts
  std::vector<ir::TensorId> partners_;              // of windows and their counts
};

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
