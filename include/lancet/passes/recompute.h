// Recomputation: values of the forward pass that are not kept for the backward pass, but made a second time there, so
// that their memory is free in between (Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016; GShard,
// section 5.1; selective: Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models, 2022,
// section 5).
//
//     %7 : f32[8,128,1024] = gelu(%6)              # compute forward h.0.mlp.gelu
//     %80 : f32[8,128,1024] = gelu(%6)             # compute recompute h.0.mlp.gelu
//     %81 : f32[256,1024] = linear_dw(%79, %80)    # compute dw h.0.mlp.c_proj
//
// The memory of %7 is free after the product that reads it; %80 is made right before its first reader. The same ops run
// on the same operands, so gradients keep their bits.
#pragma once
#include <cstddef>
#include <vector>

#include "lancet/ir/program.h"

namespace lancet::passes {

// The results of forward instructions of one rank's step that can be made again.
class Recomputation {
 public:
  // step: after autodiff and fold_repeats, before it is split in parts. It has to outlive the object.
  explicit Recomputation(const ir::Program& step);

  // Per instruction, true if the backward pass reads what it makes, and its op can make that again (ops::Again) from
  // operands that nothing overwrites. False for communication and for products of what communication has gathered.
  const std::vector<bool>& candidates() const { return candidates_; }

  // The instructions of the step in order, with those that make results again where they are needed.
  struct Place {
    std::size_t instruction = 0;
    bool again = false;
  };
  // chosen: per instruction; only candidates. A chosen result of which another one is made is made before that one.
  std::vector<Place> order(const std::vector<bool>& chosen) const;

  // The first instruction behind the forward pass. From there on, instructions read what was made again.
  std::size_t forward_end() const { return forward_end_; }
  // The operands from which an instruction's results are made again, and these results.
  std::vector<ir::TensorId> operands(std::size_t instruction) const;
  std::vector<ir::TensorId> results(std::size_t instruction) const;

  // The step whose chosen instructions run twice.
  ir::Program run(const std::vector<bool>& chosen) const;

 private:
  bool can_repeat(std::size_t instruction, const std::vector<bool>& shares_memory) const;

  const ir::Program& step_;
  std::size_t forward_end_ = 0;
  std::vector<std::int32_t> maker_;  // by tensor: the forward instruction that makes it, or -1
  std::vector<bool> candidates_;
};

// recompute: the pass. chosen as in Recomputation::order().
inline ir::Program recompute(const ir::Program& step, const std::vector<bool>& chosen) {
  return Recomputation(step).run(chosen);
}

}  // namespace lancet::passes
