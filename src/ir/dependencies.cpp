#include "lancet/ir/dependencies.h"

#include <algorithm>

namespace lancet::ir {
namespace {

InstructionId id_of(std::size_t index) { return {static_cast<std::int32_t>(index)}; }

// What happened to one stretch of memory so far.
struct History {
  InstructionId writer{};
  std::vector<InstructionId> readers;  // since the last write
};

}  // namespace

std::vector<std::vector<InstructionId>> dependencies(const Program& program) {
  std::vector<History> history(program.tensors.size());
  std::vector<std::vector<InstructionId>> result(program.instructions.size());
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& instruction = program.instructions[i];
    auto& before = result[i];
    for (TensorId operand : instruction.operands) {
      History& memory = history[program.root(operand).index()];
      if (memory.writer.valid()) before.push_back(memory.writer);
    }
    auto write = [&](TensorId id) {
      History& memory = history[program.root(id).index()];
      if (memory.writer.valid()) before.push_back(memory.writer);
      before.insert(before.end(), memory.readers.begin(), memory.readers.end());
    };
    for (TensorId id : instruction.results) write(id);
    for (TensorId id : instruction.writes) write(id);
    for (TensorId id : instruction.operands) history[program.root(id).index()].readers.push_back(id_of(i));
    auto written = [&](TensorId id) { history[program.root(id).index()] = {id_of(i), {}}; };
    for (TensorId id : instruction.results) written(id);
    for (TensorId id : instruction.writes) written(id);
    std::sort(before.begin(), before.end());
    before.erase(std::unique(before.begin(), before.end()), before.end());
    std::erase(before, id_of(i));
  }
  return result;
}

HappensBefore::HappensBefore(const Program& program, const std::vector<std::vector<InstructionId>>& waits)
    : clocks_(program.instructions.size()), position_(program.instructions.size()), lane_(program.instructions.size()) {
  std::array<std::int32_t, lane_count> next{};
  std::array<InstructionId, lane_count> last{};
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    const auto lane = static_cast<std::size_t>(program.instructions[i].lane);
    lane_[i] = static_cast<std::uint8_t>(lane);
    position_[i] = next[lane]++;
    Clock clock{};
    auto join = [&](InstructionId before) {
      const Clock& other = clocks_[before.index()];
      for (std::size_t l = 0; l < lane_count; ++l) clock[l] = std::max(clock[l], other[l]);
      const std::size_t l = lane_[before.index()];
      clock[l] = std::max(clock[l], position_[before.index()] + 1);
    };
    if (last[lane].valid()) join(last[lane]);
    for (InstructionId wait : waits[i]) {
      LANCET_CHECK(wait.index() < i, "instruction {} waits for the later instruction {}", i, wait.value);
      join(wait);
    }
    clocks_[i] = clock;
    last[lane] = id_of(i);
  }
}

std::vector<std::vector<InstructionId>> minimal_waits(const Program& program,
                                                      const std::vector<std::vector<InstructionId>>& needed) {
  std::vector<std::vector<InstructionId>> waits(program.instructions.size());
  // Clocks are kept as the waits grow; of a lane only the latest needed instruction can matter, and only if the lane's
  // own past and the waits already taken do not imply it.
  std::vector<HappensBefore::Clock> clocks(program.instructions.size());
  std::vector<std::int32_t> position(program.instructions.size());
  std::array<std::int32_t, lane_count> next{};
  std::array<InstructionId, lane_count> last{};
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    const auto lane = static_cast<std::size_t>(program.instructions[i].lane);
    position[i] = next[lane]++;
    HappensBefore::Clock clock{};
    auto lane_of = [&](InstructionId id) { return static_cast<std::size_t>(program.instructions[id.index()].lane); };
    auto join = [&](InstructionId before) {
      for (std::size_t l = 0; l < lane_count; ++l) clock[l] = std::max(clock[l], clocks[before.index()][l]);
      clock[lane_of(before)] = std::max(clock[lane_of(before)], position[before.index()] + 1);
    };
    if (last[lane].valid()) join(last[lane]);
    for (auto it = needed[i].rbegin(); it != needed[i].rend(); ++it) {  // the latest first
      if (clock[lane_of(*it)] > position[it->index()]) continue;
      join(*it);
      waits[i].push_back(*it);
    }
    std::reverse(waits[i].begin(), waits[i].end());
    clocks[i] = clock;
    last[lane] = id_of(i);
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
