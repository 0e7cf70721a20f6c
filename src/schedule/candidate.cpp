#include "lancet/schedule/candidate.h"

#include <algorithm>
#include <array>

namespace lancet::schedule {
namespace {

using ir::id_of;
using ir::InstructionId;
using ir::Lane;
using ir::Role;

void tidy(std::vector<InstructionId>& list) {
  std::sort(list.begin(), list.end());
  list.erase(std::unique(list.begin(), list.end()), list.end());
}

bool is_part(const ir::Instruction& at) { return at.attributes.has("parts"); }

}  // namespace

Needed taking_turns(const ir::Program& program, Needed needed) {
  std::array<InstructionId, 2> last{}, last_whole{};  // compute, expert
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    const ir::Instruction& at = program.instructions[i];
    if (at.lane == Lane::reduce) continue;
    const std::size_t mine = at.lane == Lane::compute ? 0 : 1;
    const InstructionId other = is_part(at) ? last_whole[1 - mine] : last[1 - mine];
    if (other.valid()) needed[i].push_back(other);
    tidy(needed[i]);
    last[mine] = id_of(i);
    if (!is_part(at)) last_whole[mine] = id_of(i);
  }
  return needed;
}

Needed one_at_a_time_on_the_wire(const ir::Program& program, Needed needed) {
  std::array<InstructionId, ir::lane_count> last{};
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    const Lane lane = program.instructions[i].lane;
    if (lane == Lane::compute) continue;
    const InstructionId other = last[static_cast<std::size_t>(lane == Lane::expert ? Lane::reduce : Lane::expert)];
    if (other.valid()) needed[i].push_back(other);
    tidy(needed[i]);
    last[static_cast<std::size_t>(lane)] = id_of(i);
  }
  return needed;
}

Candidate as_it_is(const Step& step, std::string how, ir::Program program, std::vector<cost::Load> loads,
                   Needed needed) {
  Candidate result{std::move(how), std::move(program), std::move(needed), std::move(loads), {}};
  result.timeline =
      simulate(result.program, result.needed, result.loads, step.costs().interference(), step.costs().launch_ms());
  return result;
}

}  // namespace lancet::schedule
