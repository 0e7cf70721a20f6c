// dependencies() walks the program once. Per memory root it keeps the writes that are still visible and the reads of
// them, each with its byte region. A read depends on the overlapping writes; a write depends on the overlapping writes
// and reads, and drops those that it covers completely, so that the lists stay short. HappensBefore joins vector clocks
// in program order: an instruction's clock is the maximum, per stream, over the instruction before it on its stream and
// over those that it waits for, each of which also counts itself. It visits the needed instructions from the latest to
// the earliest and chooses a wait only for one that the clock does not include yet, so each stream needs at most one
// wait.
//
// Plans of pipeline stages meet one another: the two ends of a message, and collectives along the axis `stage`. Whoever
// reorders a stage keeps the order of these, which StageOrder adds as dependencies: of the messages of one micro batch
// on one stream, and of the collectives on one stream. A value also arrives only after the stage has sent what it was
// made from, so that a receive waits for the sends of the passes before its own.
#include "lancet/ir/dependencies.h"

#include <fmt/format.h>
#include <algorithm>
#include <limits>
#include <utility>

#include "lancet/ir/groups.h"
#include "lancet/ir/micro_batches.h"

namespace lancet::ir {
namespace {

// The accesses to memory that no later write covers completely, as lists: all are in one piece of memory.
class Accesses {
 public:
  struct List {
    std::int32_t first = -1;
  };
  void add(List& list, InstructionId by, const Region& region) {
    nodes_.push_back({by, region, list.first});
    list.first = std::int32_t(nodes_.size()) - 1;
  }
  void collect(const List& list, const Region& region, std::vector<InstructionId>& into) const {
    for (std::int32_t at = list.first; at >= 0; at = nodes_[std::size_t(at)].next)
      if (overlap(nodes_[std::size_t(at)].region, region)) into.push_back(nodes_[std::size_t(at)].by);
  }
  void forget_covered(List& list, const Region& region) {
    for (std::int32_t* at = &list.first; *at >= 0;) {
      Node& node = nodes_[std::size_t(*at)];
      if (contains(region, node.region))
        *at = node.next;
      else
        at = &node.next;
    }
  }

 private:
  struct Node {
    InstructionId by;
    Region region;
    std::int32_t next;
  };
  std::vector<Node> nodes_;
};

// Of one root's memory.
struct History {
  Accesses::List writes, reads;
};

bool is_of_stage(const Program& program) {
  return std::ranges::any_of(program.instructions, [](const Instruction& at) { return between_stages(at.stream); });
}

class StageOrder {
 public:
  explicit StageOrder(const Program& program)
      : is_of_stage_(is_of_stage(program)), messages_(is_of_stage_ ? std::size_t(micro_batches(program)) : 0) {}

  // Adds the earlier instructions that instruction i has to follow.
  void add(const Instruction& at, InstructionId id, std::vector<InstructionId>& before) {
    if (!is_of_stage_) return;
    const auto follow = [&](InstructionId earlier) {
      if (earlier.valid()) before.push_back(earlier);
    };
    if (!between_stages(at.stream)) {
      if (!is_along_stages(at)) return;
      follow(std::exchange(collectives_[std::size_t(at.stream)], id));
      return;
    }
    OfMicroBatch& of = messages_[std::size_t(at.micro_batch)];
    follow(std::exchange(of.last[std::size_t(at.stream)], id));
    const std::int64_t chunk = at.attributes.integer(chunk_attribute, 0);
    const auto last = [](const std::vector<Sent>& sends, auto is_earlier) {
      const auto found =
          std::find_if(sends.rbegin(), sends.rend(), [&](const Sent& of) { return is_earlier(of.chunk); });
      return found == sends.rend() ? InstructionId() : found->id;
    };
    const auto any = [](std::int64_t) { return true; };
    if (at.stream == Stream::send_next) of.next.push_back({id, chunk});
    if (at.stream == Stream::send_previous) of.previous.push_back({id, chunk});
    if (at.stream == Stream::receive_previous) follow(last(of.next, [&](std::int64_t sent) { return sent < chunk; }));
    if (at.stream != Stream::receive_next) return;
    follow(last(of.next, any));
    follow(last(of.previous, [&](std::int64_t sent) { return sent > chunk; }));
  }

 private:
  struct Sent {
    InstructionId id;
    std::int64_t chunk;
  };
  struct OfMicroBatch {
    std::array<InstructionId, stream_count> last{};
    std::vector<Sent> next, previous;  // of the forward, of the backward pass
  };
  const bool is_of_stage_;
  std::vector<OfMicroBatch> messages_;
  std::array<InstructionId, stream_count> collectives_{};
};

}  // namespace

std::vector<std::vector<InstructionId>> dependencies(const Program& program) {
  std::vector<History> history(program.tensors.size());
  std::vector<std::vector<InstructionId>> result(program.instructions.size());
  Accesses accesses;
  std::vector<Region> writes, reads;  // of an instruction; here, so that their memory serves all
  std::vector<InstructionId> before;  // likewise
  StageOrder stages(program);
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& instruction = program.instructions[i];
    before.clear();
    writes.clear();
    reads.clear();
    for (TensorId id : instruction.results) writes.push_back(program.region(id));
    for (TensorId id : instruction.writes) writes.push_back(program.region(id));
    for (TensorId id : instruction.operands) reads.push_back(program.region(id));
    for (const Region& region : reads) accesses.collect(history[region.root.index()].writes, region, before);
    for (const Region& region : writes) {
      accesses.collect(history[region.root.index()].writes, region, before);
      accesses.collect(history[region.root.index()].reads, region, before);
    }
    stages.add(instruction, id_of(i), before);
    for (const Region& region : reads) accesses.add(history[region.root.index()].reads, id_of(i), region);
    for (const Region& region : writes) {
      History& memory = history[region.root.index()];
      accesses.forget_covered(memory.writes, region);
      accesses.forget_covered(memory.reads, region);
      accesses.add(memory.writes, id_of(i), region);
    }
    std::ranges::sort(before);
    result[i].assign(before.begin(), std::unique(before.begin(), before.end()));
  }
  return result;
}

HappensBefore::HappensBefore(const Program& program, const Lists& needed)
    : clocks_(program.instructions.size()),
      position_(program.instructions.size()),
      stream_(program.instructions.size()),
      waits_(program.instructions.size()) {
  std::array<std::int32_t, stream_count> next{};
  std::array<InstructionId, stream_count> last{};
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    const auto stream = static_cast<std::size_t>(program.instructions[i].stream);
    stream_[i] = static_cast<std::uint8_t>(stream);
    position_[i] = next[stream]++;
    Clock clock{};
    auto join = [&](InstructionId before) {
      const Clock& other = clocks_[before.index()];
      for (std::size_t s = 0; s < stream_count; ++s) clock[s] = std::max(clock[s], other[s]);
      const std::size_t s = stream_[before.index()];
      clock[s] = std::max(clock[s], position_[before.index()] + 1);
    };
    if (last[stream].valid()) join(last[stream]);
    for (auto wait = needed[i].rbegin(); wait != needed[i].rend(); ++wait) {
      LANCET_CHECK(wait->index() < i, "instruction {} waits for the later instruction {}", i, wait->value);
      if (clock[stream_[wait->index()]] > position_[wait->index()]) continue;
      join(*wait);
      waits_[i].push_back(*wait);
    }
    std::ranges::reverse(waits_[i]);
    clocks_[i] = clock;
    last[stream] = id_of(i);
  }
}

namespace {

constexpr std::int32_t always = std::numeric_limits<std::int32_t>::max();

bool ends_before(const Life& life, const Life& other) {
  bool ends = true;  // without branches, since planning memory asks often
  for (std::size_t stream = 0; stream < stream_count; ++stream) ends &= other.born[stream] >= life.dead[stream];
  return ends;
}

}  // namespace

void Life::end_never() { dead.fill(always); }

std::vector<Life> lives_of(const Program& program, const HappensBefore& order,
                           const std::vector<InstructionId>& accesses, bool crosses) {
  std::vector<Life> lives(crosses ? 2 : 1);
  for (Life& life : lives) life.born.fill(always);
  for (const InstructionId access : accesses) {
    Life& life = lives[crosses && !of_step_before(program.instructions[access.index()])];
    const HappensBefore::Clock& clock = order.clock(access);
    for (std::size_t stream = 0; stream < stream_count; ++stream)
      life.born[stream] = std::min(life.born[stream], clock[stream]);
    auto& last = life.dead[order.stream(access)];
    last = std::max(last, order.position(access) + 1);
  }
  if (crosses) {
    lives.front().born.fill(0);
    lives.back().end_never();
  }
  return lives;
}

bool are_apart(const std::vector<Life>& a, const std::vector<Life>& b) {
  for (const Life& mine : a)
    for (const Life& other : b)
      if (!ends_before(mine, other) && !ends_before(other, mine)) return false;
  return true;
}

std::vector<bool> gradient_all_reduces(const Program& program) {
  std::vector<bool> made_backward(program.tensors.size()), result(program.instructions.size());
  const bool of_stage = is_of_stage(program);
  for (const Instruction& at : program.instructions) {
    const bool backward = at.role == Role::dx || at.role == Role::dw;
    for (std::size_t r = 0; backward && r < at.results.size(); ++r) {
      made_backward[at.results[r].index()] = true;
      if (program[at.results[r]].slice) made_backward[program[at.results[r]].storage.index()] = true;
    }
  }
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& at = program.instructions[i];
    result[i] = at.stream == Stream::reduce && !(of_stage && is_along_stages(at)) &&
                std::any_of(at.operands.begin(), at.operands.end(), [&](TensorId id) {
                  const bool slice = program[id].kind == TensorKind::view && program[id].slice;
                  return made_backward[id.index()] || (slice && made_backward[program[id].storage.index()]);
                });
  }
  return result;
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

std::vector<std::size_t> makers_of(const Program& program) {
  std::vector<std::size_t> makers(program.tensors.size(), program.instructions.size());
  for (std::size_t i = 0; i < program.instructions.size(); ++i)
    for (const TensorId id : program.instructions[i].results) makers[id.index()] = i;
  return makers;
}

// Two instructions are in conflict if they use overlapping bytes and one of them writes these. What step n - 1 left
// uses the memory as that step has left it, so each of its instructions goes before all instructions of step n that are
// in conflict with it. As the same list is run again and again, that is all that the order has to keep across the
// border: what the instructions left by one step need of each other and of the rest of their own step is checked on the
// list of one whole step (in_step_order).
namespace {

struct Use {
  Region region;
  bool writes = false;
};

std::vector<Use> uses_of(const Program& program, const Instruction& at) {
  std::vector<Use> uses;
  for (TensorId id : at.operands) uses.push_back({program.region(id), at.writes_operand(id)});
  for (TensorId id : at.results) uses.push_back({program.region(id), true});
  return uses;
}

bool in_conflict(const std::vector<Use>& known, const Use& use) {
  return std::ranges::any_of(
      known, [&](const Use& other) { return (other.writes || use.writes) && overlap(other.region, use.region); });
}

// The input that an instruction reads although it is of the other step; invalid if there is none.
TensorId input_of_other_step(const Program& program, const Instruction& at) {
  for (TensorId id : at.operands) {
    const Tensor& tensor = program[program.root(id)];
    if (tensor.kind != TensorKind::input) continue;
    if ((parse_micro_batch(tensor.name).micro_batch == step_before) != of_step_before(at)) return program.root(id);
  }
  return {};
}

}  // namespace

bool crosses_steps(const Program& program) { return std::ranges::any_of(program.instructions, of_step_before); }

std::vector<InstructionId> in_step_order(const Program& program) {
  std::vector<InstructionId> order;
  for (const bool before : {false, true})
    for (std::size_t i = 0; i < program.instructions.size(); ++i)
      if (of_step_before(program.instructions[i]) == before) order.push_back(id_of(i));
  return order;
}

std::vector<bool> crossing_memory(const Program& program) {
  std::vector<bool> of_this(program.tensors.size()), of_before(program.tensors.size());
  for (const Instruction& at : program.instructions)
    for (const auto* list : {&at.operands, &at.results})
      for (TensorId id : *list) (of_step_before(at) ? of_before : of_this)[program.root(id).index()] = true;
  std::vector<bool> crossing(program.tensors.size());
  for (std::size_t i = 0; i < crossing.size(); ++i)
    crossing[i] = of_this[i] && of_before[i] && program.tensors[i].number >= 0;
  return crossing;
}

std::vector<TensorId> carried_values(const Program& program) {
  std::vector<bool> made(program.tensors.size()), named(program.tensors.size());
  for (const Instruction& at : program.instructions) {
    if (!of_step_before(at)) {
      for (TensorId id : at.results) made[id.index()] = true;
      continue;
    }
    for (const auto* list : {&at.operands, &at.results})
      for (TensorId id : *list)
        for (; id.valid(); id = program[id].storage) named[id.index()] = true;
  }
  std::vector<TensorId> carried;
  for (std::size_t i = 0; i < made.size(); ++i)
    if (made[i] && named[i] && program.tensors[i].kind == TensorKind::value)
      carried.push_back({static_cast<std::int32_t>(i)});
  return carried;
}

Status verify_border(const Program& program) {
  const std::vector<bool> closes = closes_step(program);
  std::vector<std::vector<Use>> used(program.tensors.size());  // by memory, by instructions of this step so far
  for (std::size_t i = 0; i < closes.size(); ++i) {
    const Instruction& at = program.instructions[i];
    const auto error = [&](std::string_view what) {
      return internal_error(fmt::format("instruction [{}] {}, in: {}", i, what, print(program, at)));
    };
    const bool before = of_step_before(at);
    if (before && !closes[i]) return error("is of the step before, but does not close a step");
    if (const TensorId input = input_of_other_step(program, at); input.valid())
      return error(fmt::format("reads {}, an input of another step than its own", program.display(input)));
    for (const Use& use : uses_of(program, at)) {
      std::vector<Use>& known = used[use.region.root.index()];
      if (!before)
        known.push_back(use);
      else if (in_conflict(known, use))
        return error(fmt::format("is of the step before, and comes after one of this step that uses the memory of {}",
                                 program.display(use.region.root)));
    }
  }
  return {};
}

}  // namespace lancet::ir
