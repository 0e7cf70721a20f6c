// Greedy packing of blocks by size. A block is one value, or the operands of one all-reduce, which must be adjacent.
// Its lives are given by vector clocks (ir::Life). Two blocks may share bytes if one is certainly dead before the other
// is born. Blocks are placed from the largest to the smallest, each at the lowest offset that overlaps no block alive
// at the same time. Outputs never die. A block that crosses the border between steps has two lives in a run; other
// blocks may use its bytes in between. From the instruction `until` on, all that the program lists comes after the
// block's life for certain, so that no lives need be compared.
#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>

#include "lancet/ir/dependencies.h"
#include "lancet/ops/catalogue.h"
#include "lancet/schedule/plan_memory.h"
#include "lancet/schedule/simulate.h"

namespace lancet::schedule {
namespace {

using ir::InstructionId;
using ir::TensorId;

constexpr std::int64_t alignment = 64;  // a cache line, and the widest vector
std::int64_t aligned(std::int64_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

struct Block {
  std::vector<TensorId> members;
  std::int64_t bytes = 0;
  std::int32_t first = std::numeric_limits<std::int32_t>::max();  // the first instruction that accesses it
  std::vector<ir::Life> lives;
  std::int64_t offset = -1;
};

class Placer {
 public:
  Placer(const ir::Program& program, const ir::HappensBefore& order)
      : program_(program),
        order_(order),
        touched_(ir::accesses(program)),
        crosses_(ir::crossing_memory(program)),
        block_of_(program.tensors.size(), -1) {}

  // The size of the arena.
  std::int64_t run() {
    group_all_reduces();
    for (std::size_t i = 0; i < program_.tensors.size(); ++i)
      if (block_of_[i] < 0 && owns_memory({static_cast<std::int32_t>(i)})) make_block({{static_cast<std::int32_t>(i)}});
    for (const ir::Output& output : program_.outputs)
      if (const int block = block_of_[program_.root(output.tensor).index()]; block >= 0)
        std::ranges::for_each(blocks_[std::size_t(block)].lives, &ir::Life::end_never);
    place();
    std::int64_t arena_bytes = 0;
    for (const Block& block : blocks_) arena_bytes = std::max(arena_bytes, block.offset + block.bytes);
    return arena_bytes;
  }

  // By tensor, after run(); -1 of those without memory of their own.
  std::vector<std::int64_t> offsets() const {
    std::vector<std::int64_t> offsets(program_.tensors.size(), -1);
    for (const Block& block : blocks_) {
      std::int64_t offset = block.offset;
      for (TensorId id : block.members) {
        offsets[id.index()] = offset;
        offset += aligned(ir::bytes(program_.type(id)));
      }
    }
    return offsets;
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

  void make_block(std::vector<TensorId> members) {
    Block block;
    std::vector<InstructionId> accesses;
    for (TensorId id : members) {
      block_of_[id.index()] = static_cast<int>(blocks_.size());
      block.bytes += aligned(ir::bytes(program_.type(id)));
      const auto& touched = touched_[id.index()];
      block.first = std::min(block.first, touched.front().value);
      accesses.insert(accesses.end(), touched.begin(), touched.end());
    }
    const bool crosses = std::ranges::any_of(members, [&](TensorId id) { return bool(crosses_[id.index()]); });
    block.lives = ir::lives_of(program_, order_, accesses, crosses);
    block.members = std::move(members);
    blocks_.push_back(std::move(block));
  }

  void place() {
    std::vector<std::size_t> by_size(blocks_.size());
    std::iota(by_size.begin(), by_size.end(), 0);
    std::stable_sort(by_size.begin(), by_size.end(), [&](std::size_t a, std::size_t b) {
      return blocks_[a].bytes != blocks_[b].bytes ? blocks_[a].bytes > blocks_[b].bytes
                                                  : blocks_[a].first < blocks_[b].first;
    });
    std::vector<Place> places = found_lives();
    std::vector<Windows> levels{Windows(narrowest, program_.instructions.size())};
    while (!levels.back().has_all()) levels.push_back(levels.back().wider());
    for (std::size_t i : by_size) {
      Block& block = blocks_[i];
      Place& place = places[i];
      const auto level = std::ranges::find_if(levels, [&](const Windows& of) { return of.around(place.when); });
      const Placed& placed = *level->around(place.when);
      std::int64_t offset = 0;
      for (std::size_t k = 0; k < placed.blocks.size(); ++k) {
        if (placed.when[k].until <= place.when.from || place.when.until <= placed.when[k].from) continue;
        const auto id = std::size_t(placed.blocks[k]);
        const Place& other = places[id];
        if (other.begin >= offset + block.bytes) break;
        if (other.end > offset && !ir::are_apart(blocks_[id].lives, block.lives)) offset = other.end;
      }
      block.offset = place.begin = offset;
      place.end = offset + block.bytes;
      for (Windows& of : levels) of.add(places, i);
    }
  }

  // Instructions before and after which a block is not alive.
  struct When {
    std::int32_t from, until;
  };
  // When, and in which bytes.
  struct Place {
    When when;
    std::int64_t begin = 0, end = 0;
  };
  // Blocks by offset. When they are alive is all that is read of most, and is in one piece of memory.
  struct Placed {
    std::vector<std::int32_t> blocks;
    std::vector<When> when;
    void add(const std::vector<Place>& places, std::size_t block) {
      const auto begin_of = [&](std::int32_t id) { return places[std::size_t(id)].begin; };
      const auto at = std::ranges::upper_bound(blocks, places[block].begin, {}, begin_of) - blocks.begin();
      blocks.insert(blocks.begin() + at, std::int32_t(block));
      when.insert(when.begin() + at, places[block].when);
    }
  };
  // Windows of instructions that overlap by half, up to a single one of all. Each has the blocks that are alive in it,
  // so that a block whose life is within a window is compared with these alone, not with those of other layers and
  // micro batches.
  class Windows {
   public:
    Windows(std::size_t width, std::size_t count)
        : half_(width / 2), count_(count), windows_(count > width ? (count - 1) / half_ : 1) {}
    bool has_all() const { return windows_.size() == 1; }
    Windows wider() const { return {8 * half_, count_}; }
    // That of the whole life; null: none.
    const Placed* around(const When& when) const {
      const std::size_t k = first(when);
      return has_all() || std::size_t(when.until) <= k * half_ + 2 * half_ ? &windows_[k] : nullptr;
    }
    void add(const std::vector<Place>& places, std::size_t block) {
      const When& when = places[block].when;
      const std::size_t end = std::min(windows_.size(), (std::size_t(when.until) + half_ - 1) / half_);
      for (std::size_t k = std::max<std::size_t>(first(when), 1) - 1; k < end; ++k) windows_[k].add(places, block);
    }

   private:
    std::size_t first(const When& when) const { return std::min(std::size_t(when.from) / half_, windows_.size() - 1); }
    std::size_t half_, count_;
    std::vector<Placed> windows_;
  };
  static constexpr std::size_t narrowest = 512;  // instructions

  std::vector<Place> found_lives() const {
    const std::size_t count = program_.instructions.size();
    std::vector<ir::HappensBefore::Clock> least(count + 1);  // of this instruction and all after it
    least[count].fill(std::numeric_limits<std::int32_t>::max());
    for (std::size_t i = count; i-- > 0;)
      std::ranges::transform(least[i + 1], order_.clock(ir::id_of(i)), least[i].begin(),
                             [](std::int32_t a, std::int32_t b) { return std::min(a, b); });
    std::vector<Place> places;
    for (const Block& block : blocks_) {
      const auto is_over = [&](const ir::HappensBefore::Clock& clock) {
        return std::ranges::equal(clock, block.lives.back().dead, std::greater_equal());
      };
      const auto until = std::ranges::partition_point(least, std::not_fn(is_over)) - least.begin();
      places.push_back({{block.lives.size() > 1 ? 0 : block.first, std::int32_t(until)}});
    }
    return places;
  }

  const ir::Program& program_;
  const ir::HappensBefore& order_;
  std::vector<std::vector<InstructionId>> touched_;
  std::vector<bool> crosses_;  // by tensor
  std::vector<int> block_of_;  // likewise
  std::vector<Block> blocks_;
};

}  // namespace

ir::Plan plan_memory(const ir::Program& program, const Dependencies& dependencies) {
  ir::Plan plan;
  plan.program = program;
  const ir::HappensBefore order(program, dependencies);
  plan.waits = order.waits();
  plan.predicted.resize(program.instructions.size());
  Placer placer(program, order);
  plan.arena_bytes = placer.run();
  plan.offsets = placer.offsets();
  return plan;
}

std::int64_t arena_bytes(const ir::Program& program, const Dependencies& dependencies) {
  const ir::HappensBefore order(program, dependencies);
  return Placer(program, order).run();
}

ir::Plan plan_memory_sequentially(const ir::Program& program) {
  return plan_memory(program, turns(program, ir::dependencies(program)));
}

std::int64_t resident_bytes(const ir::Program& program) {
  std::int64_t bytes = 0;
  for (const ir::Tensor& tensor : program.tensors)
    if (tensor.number < 0) bytes += ir::bytes(tensor.type);
  return bytes;
}

std::int64_t plan_bytes(const ir::Plan& plan) { return resident_bytes(plan.program) + plan.arena_bytes; }

}  // namespace lancet::schedule
