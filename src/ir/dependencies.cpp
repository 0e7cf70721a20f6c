#include "lancet/ir/dependencies.h"

#include <algorithm>

namespace lancet::ir {
namespace {

struct Access {
  InstructionId by;
  Region region;
};

// What happened to one root's memory so far: writes, and reads since them, that no later write covers as a whole.
struct History {
  std::vector<Access> writes, reads;
};

// The instructions of `accesses` that touch the region.
void collect(const std::vector<Access>& accesses, const Region& region, std::vector<InstructionId>& into) {
  for (const Access& access : accesses)
    if (overlap(access.region, region)) into.push_back(access.by);
}

void forget_covered(std::vector<Access>& accesses, const Region& region) {
  std::erase_if(accesses, [&](const Access& access) { return contains(region, access.region); });
}

}  // namespace

std::vector<std::vector<InstructionId>> dependencies(const Program& program) {
  std::vector<History> history(program.tensors.size());
  std::vector<std::vector<InstructionId>> result(program.instructions.size());
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& instruction = program.instructions[i];
    auto& before = result[i];
    std::vector<Region> writes, reads;
    for (TensorId id : instruction.results) writes.push_back(program.region(id));
    for (TensorId id : instruction.writes) writes.push_back(program.region(id));
    for (TensorId id : instruction.operands) reads.push_back(program.region(id));
    for (const Region& region : reads) collect(history[region.root.index()].writes, region, before);
    for (const Region& region : writes) {
      collect(history[region.root.index()].writes, region, before);
      collect(history[region.root.index()].reads, region, before);
    }
    for (const Region& region : reads) history[region.root.index()].reads.push_back({id_of(i), region});
    for (const Region& region : writes) {
      History& memory = history[region.root.index()];
      forget_covered(memory.writes, region);
      forget_covered(memory.reads, region);
      memory.writes.push_back({id_of(i), region});
    }
    std::sort(before.begin(), before.end());
    before.erase(std::unique(before.begin(), before.end()), before.end());
  }
  return result;
}

HappensBefore::HappensBefore(const Program& program, const std::vector<std::vector<InstructionId>>& waits)
    : clocks_(program.instructions.size()), position_(program.instructions.size()), stream_(program.instructions.size()) {
  std::array<std::int32_t, stream_count> next{};
  std::array<InstructionId, stream_count> last{};
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    const auto stream = static_cast<std::size_t>(program.instructions[i].stream);
    stream_[i] = static_cast<std::uint8_t>(stream);
    position_[i] = next[stream]++;
    Clock clock{};
    auto join = [&](InstructionId before) {
      const Clock& other = clocks_[before.index()];
      for (std::size_t l = 0; l < stream_count; ++l) clock[l] = std::max(clock[l], other[l]);
      const std::size_t l = stream_[before.index()];
      clock[l] = std::max(clock[l], position_[before.index()] + 1);
    };
    if (last[stream].valid()) join(last[stream]);
    for (InstructionId wait : waits[i]) {
      LANCET_CHECK(wait.index() < i, "instruction {} waits for the later instruction {}", i, wait.value);
      join(wait);
    }
    clocks_[i] = clock;
    last[stream] = id_of(i);
  }
}

std::vector<std::vector<InstructionId>> minimal_waits(const Program& program,
                                                      const std::vector<std::vector<InstructionId>>& needed) {
  std::vector<std::vector<InstructionId>> waits(program.instructions.size());
  // Clocks are kept as the waits grow; of a stream only the latest needed instruction can matter, and only if the stream's
  // own past and the waits already taken do not imply it.
  std::vector<HappensBefore::Clock> clocks(program.instructions.size());
  std::vector<std::int32_t> position(program.instructions.size());
  std::array<std::int32_t, stream_count> next{};
  std::array<InstructionId, stream_count> last{};
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    const auto stream = static_cast<std::size_t>(program.instructions[i].stream);
    position[i] = next[stream]++;
    HappensBefore::Clock clock{};
    auto stream_of = [&](InstructionId id) { return static_cast<std::size_t>(program.instructions[id.index()].stream); };
    auto join = [&](InstructionId before) {
      for (std::size_t l = 0; l < stream_count; ++l) clock[l] = std::max(clock[l], clocks[before.index()][l]);
      clock[stream_of(before)] = std::max(clock[stream_of(before)], position[before.index()] + 1);
    };
    if (last[stream].valid()) join(last[stream]);
    for (auto it = needed[i].rbegin(); it != needed[i].rend(); ++it) {  // the latest first
      if (clock[stream_of(*it)] > position[it->index()]) continue;
      join(*it);
      waits[i].push_back(*it);
    }
    std::reverse(waits[i].begin(), waits[i].end());
    clocks[i] = clock;
    last[stream] = id_of(i);
  }
  return waits;
}

std::vector<std::vector<InstructionId>> accesses(const Program& program) {
  std::vector<std::vector<InstructionId>> result(program.tensors.size());
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    auto touch = [&](TensorId id) {
      auto& list = result[program.root(id).index()];
      if (list.empty() || list.back() != id_of(i)) list.push_back(id_of(i));
    };
    for (TensorId id : program.instructions[i].operands) touch(id);
    for (TensorId id : program.instructions[i].results) touch(id);
  }
  return result;
}

}  // namespace lancet::ir
