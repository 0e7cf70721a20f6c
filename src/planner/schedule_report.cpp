#include "lancet/planner/schedule_report.h"

#include <algorithm>
#include <optional>

#include "lancet/ops/catalogue.h"

namespace lancet::planner {
namespace {

using ir::Lane;
using ir::Role;

bool takes_time(const ir::Interval& when) { return when.end > when.start; }

bool is_view(const ir::Program& program, const ir::Instruction& instruction) {
  const ops::Work work = ops::work(program, instruction);
  return work.flops == 0 && work.bytes == 0;
}

}  // namespace

std::vector<ExchangeCover> exchange_covers(const ir::Program& program, std::span<const ir::Interval> when) {
  std::vector<ir::InstructionId> compute;
  std::vector<ExchangeCover> covers;
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    const ir::InstructionId id{static_cast<std::int32_t>(i)};
    if (!takes_time(when[i])) continue;
    if (program.instructions[i].lane == Lane::compute) compute.push_back(id);
    if (program.instructions[i].lane == Lane::expert) covers.push_back({id, when[i].end - when[i].start, 0, {}});
  }
  std::size_t first = 0;  // of the compute lane, what may still overlap; lanes run in order
  for (ExchangeCover& cover : covers) {
    const ir::Interval& span = when[cover.exchange.index()];
    while (first < compute.size() && when[compute[first].index()].end <= span.start) ++first;
    for (std::size_t at = first; at < compute.size() && when[compute[at].index()].start < span.end; ++at) {
      const ir::Interval& other = when[compute[at].index()];
      const double ms = std::min(span.end, other.end) - std::max(span.start, other.start);
      cover.under.push_back({compute[at], ms});
      cover.covered_ms += ms;
    }
  }
  return covers;
}

std::vector<SplitRange> split_ranges(const ir::Program& program) {
  std::vector<SplitRange> ranges;
  for (const Role role : {Role::forward, Role::dx}) {
    bool open = false;
    for (const ir::Instruction& at : program.instructions) {
      if (at.role != role) continue;
      const int parts = int(at.attributes.integer("parts", 1));
      if (parts == 1) {  // what stays whole ends a range, but for messages and views
        if (at.lane == Lane::compute && !is_view(program, at)) open = false;
        continue;
      }
      if (at.attributes.integer("part", 0) != 0) continue;
      if (!open || ranges.back().parts != parts) ranges.push_back({role, parts, at.label, at.label});
      ranges.back().last = at.label;
      open = true;
    }
  }
  return ranges;
}

}  // namespace lancet::planner
