#include "lancet/schedule/candidate.h"

#include <algorithm>

#include "lancet/schedule/plan_memory.h"

namespace lancet::schedule {

Candidate as_it_is(const Step& step, std::string how, ir::Program program, std::vector<cost::OpCost> op_costs,
                   Dependencies dependencies) {
  Candidate result{std::move(how), std::move(program), std::move(dependencies), std::move(op_costs), {}};
  result.timeline =
      simulate(result.program, result.needed, result.op_costs, step.costs().interference(), step.costs().launch_ms());
  return result;
}

bool fits_memory(const Step& step, const config::Overlap& overlap, const Candidate& candidate) {
  return double(arena_bytes(candidate.program, candidate.needed)) <= overlap.memory_factor * double(step.arena_bytes());
}

bool is_shorter(const Candidate& a, const Candidate& b) {
  return a.timeline.makespan < b.timeline.makespan * (1 - 1e-9);
}

bool is_better(const Step& step, const config::Overlap& overlap, const Candidate& a, const Candidate& best) {
  return is_shorter(a, best) && fits_memory(step, overlap, a);
}

int most_parts(const ir::Program& program) {
  int most = 1;
  for (const ir::Instruction& instruction : program.instructions)
    most = std::max(most, int(instruction.attributes.integer("parts", 1)));
  return most;
}

}  // namespace lancet::schedule
