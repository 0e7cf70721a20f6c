// Greedy packing of blocks by size. A block is one value, or the operands of one all-reduce, which must be adjacent, or
// all signals, so that one command zeroes them.
// Its lifetime is given by vector clocks (ir::HappensBefore): `born`, the instructions of each stream that have
// certainly ended when any access to it begins, and `dead`, the number of instructions of each stream that must have
// ended before its memory is free. Two blocks may share bytes if one is certainly dead before the other is born. Blocks
// are placed from the largest to the smallest, each at the lowest offset that overlaps no block alive at the same time.
// Outputs never die. Signals keep their values from step to step, so they share bytes with nothing else of the plan.
// They are undefined before its first step, and after steps of other plans in the same arena.
#include <algorithm>
#include <limits>
#include <numeric>

#include "lancet/ir/dependencies.h"
#include "lancet/ops/catalogue.h"
#include "lancet/schedule/candidate.h"
#include "lancet/schedule/plan_memory.h"
#include "reorder.h"

namespace lancet::schedule {
namespace {

using ir::InstructionId;
using ir::TensorId;
using Clock = ir::HappensBefore::Clock;

constexpr std::int64_t alignment = 64;  // a cache line, and the widest vector
std::int64_t aligned(std::int64_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

struct Block {
  std::vector<TensorId> members;
  std::int64_t bytes = 0;
  std::int32_t first = std::numeric_limits<std::int32_t>::max();  // the first instruction that accesses it
  Clock dead{};  // per stream, the number of instructions that must have ended before the memory is free
  Clock born{};  // per stream, the number of instructions that have certainly ended when any access begins
  std::int64_t offset = -1;
};

class Placer {
 public:
  Placer(const ir::Program& program, const ir::HappensBefore& order)
      : program_(program), order_(order), touched_(ir::accesses(program)), block_of_(program.tensors.size(), -1) {}

  void run(ir::Plan& plan) {
    group_all_reduces();
    group_signals();
    for (std::size_t i = 0; i < program_.tensors.size(); ++i)
      if (block_of_[i] < 0 && owns_memory({static_cast<std::int32_t>(i)})) make_block({{static_cast<std::int32_t>(i)}});
    keep_outputs();
    place();
    plan.offsets.assign(program_.tensors.size(), -1);
    for (const Block& block : blocks_) {
      std::int64_t offset = block.offset;
      for (TensorId id : block.members) {
        plan.offsets[id.index()] = offset;
        offset += aligned(ir::bytes(program_.type(id)));
      }
      plan.arena_bytes = std::max(plan.arena_bytes, block.offset + block.bytes);
    }
  }

 private:
  bool owns_memory(TensorId id) const {
    const ir::Tensor& tensor = program_[id];
    return tensor.number >= 0 && !tensor.storage.valid() && !touched_[id.index()].empty();
  }

  void group_all_reduces() {
    for (const ir::Instruction& instruction : program_.instructions) {
      if (instruction.stream != ir::Stream::reduce || ops::kind(instruction) == ops::Kind::flat_reduce_scatter)
        continue;
      std::vector<TensorId> members;
      for (TensorId operand : instruction.operands) {
        const TensorId root = program_.root(operand);
        if (owns_memory(root) && block_of_[root.index()] < 0) members.push_back(root);
      }
      if (members.size() > 1) make_block(members);
    }
  }

  void group_signals() {
    std::vector<TensorId> members;
    for (std::size_t i = 0; i < program_.tensors.size(); ++i) {
      const TensorId id{static_cast<std::int32_t>(i)};
      if (program_.type(id).dtype == DType::signals && owns_memory(id)) members.push_back(id);
    }
    if (!members.empty()) make_block(members);
  }

  void make_block(std::vector<TensorId> members) {
    Block block;
    block.born.fill(std::numeric_limits<std::int32_t>::max());
    for (TensorId id : members) {
      block_of_[id.index()] = static_cast<int>(blocks_.size());
      block.bytes += aligned(ir::bytes(program_.type(id)));
      const auto& accesses = touched_[id.index()];
      block.first = std::min(block.first, accesses.front().value);
      for (InstructionId access : accesses) {
        const Clock& clock = order_.clock(access);
        for (std::size_t stream = 0; stream < ir::stream_count; ++stream)
          block.born[stream] = std::min(block.born[stream], clock[stream]);
        auto& dead = block.dead[order_.stream(access)];
        dead = std::max(dead, order_.position(access) + 1);
      }
    }
    if (program_.type(members.front()).dtype == DType::signals) {
      block.born.fill(0);
      block.dead.fill(std::numeric_limits<std::int32_t>::max());
    }
    block.members = std::move(members);
    blocks_.push_back(std::move(block));
  }

  void keep_outputs() {
    for (const ir::Output& output : program_.outputs) {
      const int block = block_of_[program_.root(output.tensor).index()];
      if (block >= 0) blocks_[std::size_t(block)].dead.fill(std::numeric_limits<std::int32_t>::max());
    }
  }

  static bool ends_before(const Block& a, const Block& b) {
    for (std::size_t stream = 0; stream < ir::stream_count; ++stream)
      if (b.born[stream] < a.dead[stream]) return false;
    return true;
  }

  void place() {
    std::vector<std::size_t> by_size(blocks_.size());
    std::iota(by_size.begin(), by_size.end(), 0);
    std::stable_sort(by_size.begin(), by_size.end(), [&](std::size_t a, std::size_t b) {
      return blocks_[a].bytes != blocks_[b].bytes ? blocks_[a].bytes > blocks_[b].bytes
                                                  : blocks_[a].first < blocks_[b].first;
    });
    std::vector<const Block*> placed;  // by offset
    for (std::size_t i : by_size) {
      Block& block = blocks_[i];
      std::int64_t offset = 0;
      for (const Block* other : placed) {
        if (other->offset >= offset + block.bytes) break;
        if (other->offset + other->bytes <= offset || ends_before(*other, block) || ends_before(block, *other))
          continue;
        offset = other->offset + other->bytes;
      }
      block.offset = offset;
      placed.insert(std::upper_bound(placed.begin(), placed.end(), &block,
                                     [](const Block* a, const Block* b) { return a->offset < b->offset; }),
                    &block);
    }
  }

  const ir::Program& program_;
  const ir::HappensBefore& order_;
  std::vector<std::vector<InstructionId>> touched_;
  std::vector<int> block_of_;  // by tensor
  std::vector<Block> blocks_;
};

}  // namespace

ir::Plan plan_memory(const ir::Program& program, const Dependencies& dependencies) {
  ir::Plan plan;
  plan.program = program;
  plan.waits = ir::minimal_waits(program, dependencies);
  plan.predicted.resize(program.instructions.size());
  const ir::HappensBefore order(program, plan.waits);
  Placer(program, order).run(plan);
  return plan;
}

ir::Plan plan_memory_sequentially(const ir::Program& program) {
  return plan_memory(program, turns(program, ir::dependencies(program)));
}

}  // namespace lancet::schedule
