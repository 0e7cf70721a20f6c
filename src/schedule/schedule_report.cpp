#include "lancet/schedule/schedule_report.h"

#include <algorithm>
#include <map>

namespace lancet::schedule {
namespace {

using ir::Role;
using ir::Stream;

bool takes_time(const ir::Interval& when) { return when.end > when.start; }
bool is_part(const ir::Instruction& at) { return at.attributes.has("parts") && at.attributes.has("part"); }
// The micro batches of a step are split alike, so the first one stands for all.
bool is_first_part(const ir::Instruction& at) {
  return is_part(at) && at.attributes.integer("part") == 0 && at.micro_batch == 0;
}

// Disjoint sets of instructions (union-find).
class Components {
 public:
  explicit Components(std::size_t size) : parent_(size) {
    for (std::size_t i = 0; i < size; ++i) parent_[i] = i;
  }
  std::size_t of(std::size_t i) {
    while (parent_[i] != i) i = parent_[i] = parent_[parent_[i]];
    return i;
  }
  void join(std::size_t a, std::size_t b) { parent_[of(b)] = of(a); }

 private:
  std::vector<std::size_t> parent_;
};

}  // namespace

std::vector<CommunicationCover> communication_covers(const ir::Program& program, std::span<const ir::Interval> when,
                                                     ir::Stream stream) {
  std::vector<ir::InstructionId> compute;
  std::vector<CommunicationCover> covers;
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    const ir::InstructionId id{static_cast<std::int32_t>(i)};
    if (!takes_time(when[i])) continue;
    if (program.instructions[i].stream == Stream::compute) compute.push_back(id);
    if (program.instructions[i].stream == stream) covers.push_back({id, when[i].end - when[i].start, 0, {}});
  }
  std::size_t first = 0;  // the first computation that may still overlap; streams run in order
  for (CommunicationCover& cover : covers) {
    const ir::Interval& span = when[cover.communication.index()];
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

std::string site_of(const ir::Instruction& instruction) {
  return is_part(instruction) ? instruction.label.substr(0, instruction.label.rfind('/')) : instruction.label;
}

std::vector<SplitRange> split_ranges(const ir::Program& program) {
  const auto& instructions = program.instructions;
  Components components(instructions.size());
  std::vector<std::vector<std::size_t>> makers(program.tensors.size());  // by root tensor: instructions that write it
  for (std::size_t i = 0; i < instructions.size(); ++i) {
    const ir::Instruction& at = instructions[i];
    if (!is_first_part(at)) continue;
    for (ir::TensorId operand : at.operands)
      for (std::size_t maker : makers[program.root(operand).index()])
        if (instructions[maker].role == at.role &&
            instructions[maker].attributes.integer("parts") == at.attributes.integer("parts"))
          components.join(maker, i);
    for (ir::TensorId result : at.results) makers[program.root(result).index()].push_back(i);
  }
  std::vector<SplitRange> ranges;
  std::map<std::size_t, std::size_t> index;  // by component, its index in `ranges`
  for (std::size_t i = 0; i < instructions.size(); ++i) {
    const ir::Instruction& at = instructions[i];
    if (!is_first_part(at) || (at.role != Role::forward && at.role != Role::dx)) continue;
    const auto [it, first] = index.emplace(components.of(i), ranges.size());
    if (first) ranges.push_back({at.role, int(at.attributes.integer("parts")), site_of(at), site_of(at)});
    ranges[it->second].last = site_of(at);
  }
  return ranges;
}

}  // namespace lancet::schedule
