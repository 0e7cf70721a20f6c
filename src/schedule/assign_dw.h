// The assignment problem of the dW schedule (Lancet, section 4.2): assigns computation to all-to-alls that it hides.
#pragma once

#include <cstdint>
#include <vector>

#include "lancet/schedule/simulate.h"

namespace lancet::schedule {

// An instruction that can move. Positions along the step are numbered: 2a is under all-to-all number a, 2a + 1 is after
// it and before the next.
struct Movable {
  double ms = 0;
  std::vector<bool> allowed;  // by all-to-all
  int default_position = 0;   // default position, where the item stays if it is not assigned
  std::vector<int> before;    // items whose position must not be greater than this one's
};

struct Assignment {
  std::vector<double> slack;  // slack per all-to-all: milliseconds of computation that it hides
  std::vector<Movable> items;
};

// Assigns each item to an all-to-all (or -1) by the paper's greedy (Algorithm 1) for the objective of its integer
// program (1)-(2), the sum over all-to-alls of min(slack, assigned ms).
std::vector<int> assign_greedily(const Assignment& problem);

// The objective of an assignment: milliseconds of the all-to-alls that are covered.
double covered(const Assignment& problem, const std::vector<int>& assigned);

// Finds the instructions that may overlap an all-to-all: no path of dependencies joins the two (Lancet, section 4.1).
class Labels {
 public:
  // all_to_alls: in program order. dependencies: ir::dependencies of the Program.
  Labels(const Dependencies& dependencies, const std::vector<ir::InstructionId>& all_to_alls);
  // True if the instruction and all-to-all number a are independent (and distinct).
  bool overlappable(ir::InstructionId id, std::size_t a) const {
    return !bit(reached_, id, a) && !bit(reaches_, id, a);
  }

 private:
  using Bits = std::vector<std::uint64_t>;  // words_ words an instruction
  bool bit(const Bits& bits, ir::InstructionId id, std::size_t a) const {
    return bits[id.index() * words_ + a / 64] >> (a % 64) & 1;
  }
  void join(Bits& bits, std::size_t into, std::size_t from) const;
  std::size_t words_;
  Bits reached_;  // the all-to-alls that an instruction depends on, and itself
  Bits reaches_;  // the all-to-alls that depend on an instruction, and itself
};

}  // namespace lancet::schedule
