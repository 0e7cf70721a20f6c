#include "pipeline.h"

#include <algorithm>

#include "lancet/ir/dependencies.h"
#include "lancet/ir/print.h"
#include "lancet/ops/catalogue.h"

namespace lancet::planner {

bool Pipeline::skips(std::string_view name) const { return std::find(skip_.begin(), skip_.end(), name) != skip_.end(); }

void Pipeline::record(std::string_view name, double ms, const ir::Program& program) {
  const Status status = ops::verify(program);
  LANCET_CHECK(status.ok(), "after pass {}: {}", name, status.error().message);
  runs_.push_back({std::string(name), ms, program.instructions.size(), keep_texts_ ? ir::print(program) : ""});
}

void Pipeline::record(std::string_view name, double ms, const schedule::Candidate& candidate) {
  record(name, ms, candidate.program);
  const schedule::Dependencies least = ir::dependencies(candidate.program), &needed = candidate.needed;
  const std::size_t costs = candidate.op_costs.size();  // none if the request has none
  LANCET_CHECK(needed.size() == least.size() && (costs == least.size() || costs == 0),
               "after pass {}: {} instructions, {} lists of dependencies, {} costs", name, least.size(), needed.size(),
               costs);
  for (std::size_t i = 0; i < least.size(); ++i)
    for (ir::InstructionId before : least[i])
      LANCET_CHECK(std::ranges::count(needed[i], before) > 0, "after pass {}: [{}] does not wait for [{}]", name, i,
                   before.index());
}

void Pipeline::record(std::string_view name, double ms, const ir::Plan& plan) {
  const Status status = ir::verify(plan);
  LANCET_CHECK(status.ok(), "after pass {}: {}", name, status.error().message);
  record(name, ms, plan.program);
  if (keep_texts_) runs_.back().text = ir::print(plan);
}

}  // namespace lancet::planner
