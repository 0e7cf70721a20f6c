#include "candidate.h"

#include <algorithm>
#include <array>

#include "lancet/ir/dependencies.h"

namespace lancet::planner {
namespace {

using ir::InstructionId;
using ir::Lane;
using ir::Role;

InstructionId id_of(std::size_t index) { return {static_cast<std::int32_t>(index)}; }

void tidy(std::vector<InstructionId>& list) {
  std::sort(list.begin(), list.end());
  list.erase(std::unique(list.begin(), list.end()), list.end());
}

bool is_part(const ir::Instruction& at) { return at.attributes.has("parts"); }

bool is_filler(const ir::Instruction& at) { return at.role == Role::dw || at.role == Role::update; }

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

Scheduled scheduled_within(const ir::Program& program, const std::vector<cost::Load>& loads, std::size_t begin,
                           std::size_t end, const ListOptions& options) {
  const Needed needed = ir::dependencies(program);
  std::vector<Job> jobs;
  for (std::size_t i = begin; i < end; ++i) {
    const ir::Instruction& at = program.instructions[i];
    Job job{at.lane, loads[i].ms, int(at.attributes.integer("part", -1)), is_filler(at), {}};
    for (InstructionId need : needed[i])
      if (need.index() >= begin) job.needs.push_back(need.value - std::int32_t(begin));
    jobs.push_back(std::move(job));
  }
  Order order;
  for (std::size_t i = 0; i < begin; ++i) order.push_back(id_of(i));
  for (InstructionId id : list_schedule(jobs, options).order) order.push_back(id_of(id.index() + begin));
  for (std::size_t i = end; i < loads.size(); ++i) order.push_back(id_of(i));
  return {permuted(program, order), permuted(loads, order)};
}

Scheduled scheduled(const ir::Program& program, const std::vector<cost::Load>& loads, const ListOptions& options) {
  return scheduled_within(program, loads, 0, loads.size(), options);
}

}  // namespace lancet::planner
