#include "lancet/schedule/turns.h"

#include <array>

#include "reorder.h"

namespace lancet::schedule {
namespace {

using ir::id_of;
using ir::InstructionId;
using ir::Stream;

}  // namespace

Dependencies turns(const ir::Program& program, Dependencies dependencies) {
  std::vector<bool> is_part;
  for (const ir::Instruction& at : program.instructions) is_part.push_back(at.attributes.has("parts"));
  return turns(program, std::move(dependencies), is_part);
}

Dependencies turns(const ir::Program& program, Dependencies dependencies, const std::vector<bool>& overlaps) {
  Dependencies extra(dependencies.size());
  std::array<InstructionId, 2> last{}, last_whole{};  // compute, expert
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    const ir::Instruction& at = program.instructions[i];
    if (at.stream == Stream::reduce || ir::between_stages(at.stream)) continue;
    const std::size_t mine = at.stream == Stream::compute ? 0 : 1;
    const InstructionId other = overlaps[i] ? last_whole[1 - mine] : last[1 - mine];
    if (other.valid()) extra[i].push_back(other);
    last[mine] = id_of(i);
    if (!overlaps[i]) last_whole[mine] = id_of(i);
  }
  join(dependencies, extra);
  return dependencies;
}

Dependencies one_message_at_a_time(const ir::Program& program, Dependencies dependencies) {
  Dependencies extra(dependencies.size());
  std::array<InstructionId, ir::stream_count> last{};
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    const Stream stream = program.instructions[i].stream;
    if (stream == Stream::compute) continue;
    const InstructionId other =
        last[static_cast<std::size_t>(stream == Stream::expert ? Stream::reduce : Stream::expert)];
    if (other.valid()) extra[i].push_back(other);
    last[static_cast<std::size_t>(stream)] = id_of(i);
  }
  join(dependencies, extra);
  return dependencies;
}

}  // namespace lancet::schedule
