// The assignment problem of the dW schedule (Lancet, section 4.2): which computation lies under which all-to-all.
#pragma once
#include <vector>

namespace lancet::schedule {

// Places along the step: behind all-to-all number a is 2a; between it and the next, out of both, 2a + 1.
struct Movable {
  double ms = 0;
  std::vector<bool> allowed;  // by all-to-all
  int home = 0;               // its place while it is not assigned
  std::vector<int> before;    // movables that may not lie behind it
};

struct Assignment {
  std::vector<double> room;  // per all-to-all, milliseconds of computation that it hides
  std::vector<Movable> items;
};

// Per item the all-to-all that it lies under, or -1: makes the sum over all-to-alls of min(room, what lies under it)
// large, the objective of the paper's integer program (1)-(2). First the paper's greedy: for each all-to-all in launch
// order, again and again the item that fits what is left of it best. It may fill a short all-to-all with a long item
// that a later one had room for, so then single items move and pairs change places for as long as that gains.
std::vector<int> assign(const Assignment& problem);

// The paper's greedy alone.
std::vector<int> assign_greedily(const Assignment& problem);

// The objective: milliseconds of the all-to-alls that are covered.
double covered(const Assignment& problem, const std::vector<int>& under);

}  // namespace lancet::schedule
