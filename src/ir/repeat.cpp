// Bodies of repeats. set_body() makes what the body makes in memory of its own slices of one scratch: offsets are given
// from the first tensor to the last, each the lowest at which it overlaps none that exists at the same time.
#include <fmt/format.h>
#include <algorithm>
#include <set>
#include <vector>

#include "lancet/base/check.h"
#include "lancet/ir/program.h"

namespace lancet::ir {
namespace {

constexpr std::int64_t scratch_alignment = 64;  // of tensors in the scratch, as of those in the arena

// A tensor of the body that has memory of its own, and where it is in the scratch.
struct ScratchBlock {
  TensorId tensor;
  std::size_t first = 0, last = 0;  // instructions of the body that make it and that touch it last
  std::int64_t bytes = 0, offset = 0;
};

// Gives the blocks their offsets. Returns the bytes of the scratch.
std::int64_t pack(std::vector<ScratchBlock>& blocks) {
  std::int64_t size = scratch_alignment;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    ScratchBlock& block = blocks[i];
    std::vector<const ScratchBlock*> there;  // at the same time, by offset
    for (std::size_t j = 0; j < i; ++j)
      if (blocks[j].last >= block.first) there.push_back(&blocks[j]);
    std::ranges::sort(there, {}, &ScratchBlock::offset);
    for (const ScratchBlock* other : there) {
      if (other->offset >= block.offset + block.bytes) break;
      block.offset = std::max(block.offset, other->offset + other->bytes);
    }
    size = std::max(size, block.offset + block.bytes);
  }
  return size;
}

const TensorType one_number{DType::i32, {1}};

bool contains_id(const std::vector<TensorId>& list, TensorId id) { return std::ranges::find(list, id) != list.end(); }

// Walks the body once, as its first execution does. `live_` are the tensors in the scratch that can be read.
class BodyVerifier {
 public:
  BodyVerifier(const Program& program, const Instruction& repeat) : program_(program), repeat_(repeat) {}

  Status run() {
    const auto& results = repeat_.results;
    if (repeat_.operands.empty() || program_.type(repeat_.operands[repeat_count]) != one_number || results.size() < 2 ||
        program_.type(results[repeat_round]) != one_number)
      return internal_error("expected a repeat of a count i32[1] with a round i32[1] and a scratch, found " +
                            print(program_, repeat_));
    for (std::size_t i = 2; i < results.size(); ++i)
      if (!program_[results[i]].storage.valid())
        return wrong(repeat_, results[i], "is not in the memory of an operand");
    for (const Instruction& part : repeat_.body) LANCET_TRY(check(part));
    for (std::size_t i = 2; i < results.size(); ++i)
      if (!contains_id(updated_, results[i])) return wrong(repeat_, results[i], "is not made by its body");
    return {};
  }

 private:
  Status wrong(const Instruction& at, TensorId id, std::string_view what) const {
    return internal_error(fmt::format("{} {}, in the body of {} at {}: {}", program_.display(id), what, repeat_.op,
                                      repeat_.label, print(program_, at)));
  }

  Status check(const Instruction& part) {
    if (is_repeat(part) || !part.writes.empty())
      return internal_error(
          fmt::format("expected a body that updates its repeat's results alone, found {}", print(program_, part)));
    for (const TensorId id : part.operands)
      if (!readable(id)) return wrong(part, id, "is read, and was neither made there nor is an operand of the repeat");
    for (const TensorId id : part.results) LANCET_TRY(make(part, id));
    return {};
  }

  bool readable(TensorId id) const {
    return id.valid() && id.index() < program_.tensors.size() &&
           (contains_id(live_, id) || contains_id(updated_, id) || contains_id(repeat_.operands, id) ||
            id == repeat_.results[repeat_round]);
  }

  Status make(const Instruction& part, TensorId id) {
    if (!id.valid() || id.index() >= program_.tensors.size()) return internal_error("a result does not exist");
    if (contains_id(live_, id) || contains_id(updated_, id)) return wrong(part, id, "is made twice");
    if (std::ranges::find(repeat_.results.begin() + 2, repeat_.results.end(), id) != repeat_.results.end()) {
      updated_.push_back(id);
      return {};
    }
    const TensorId scratch = repeat_.results[repeat_scratch];
    const Region region = program_.region(id);
    if (region.root != scratch || region.begin < 0 || region.end > bytes(program_.type(scratch)))
      return wrong(part, id, "is neither in the scratch nor a result of the repeat");
    std::erase_if(live_, [&](TensorId other) { return overlap(program_.region(other), region); });
    live_.push_back(id);
    return {};
  }

  const Program& program_;
  const Instruction& repeat_;
  std::vector<TensorId> live_, updated_;
};

}  // namespace

void set_body(Program& program, Instruction& repeat, std::vector<Instruction> body) {
  repeat.operands.resize(repeat_count + 1);
  repeat.results.resize(repeat_scratch + 1);
  std::set<TensorId> made{repeat.results[repeat_round]}, read{repeat.operands[repeat_count]};
  std::vector<ScratchBlock> blocks;
  const auto touch = [&](TensorId id, std::size_t instruction) {
    const auto block = std::ranges::find(blocks, program.root(id), &ScratchBlock::tensor);
    if (block != blocks.end()) block->last = instruction;
  };
  for (std::size_t i = 0; i < body.size(); ++i) {
    for (const TensorId id : body[i].operands) {
      if (!made.contains(id) && read.insert(id).second) repeat.operands.push_back(id);
      touch(id, i);
    }
    for (const TensorId id : body[i].results) {
      const TensorId root = program.root(id);
      made.insert(id);
      if (root == id)
        blocks.push_back(
            {id, i, i, (bytes(program.type(id)) + scratch_alignment - 1) / scratch_alignment * scratch_alignment});
      else if (!made.contains(root))
        repeat.results.push_back(id);
      touch(id, i);
    }
  }
  const std::int64_t size = pack(blocks);
  const TensorId scratch = program.add_value({DType::i32, {size / size_of(DType::i32)}});
  repeat.results[repeat_scratch] = scratch;
  for (const ScratchBlock& block : blocks) {
    program[block.tensor].storage = scratch;
    program[block.tensor].slice = Slice{block.offset, 0, 0};
  }
  repeat.body = std::move(body);
  const Status closed = verify_body(program, repeat);
  LANCET_CHECK(closed.ok(), "{}", closed.error().message);
}

Program inline_bodies(const Program& program) {
  Program result = program.without_instructions();
  for (const Instruction& at : program.instructions) {
    if (!is_repeat(at)) {
      result.instructions.push_back(at);
      continue;
    }
    TensorId round = result.find(round_input);
    if (!round.valid()) round = result.add_named(TensorKind::input, std::string(round_input), one_number);
    for (Tensor& tensor : result.tensors)
      if (tensor.storage == at.results[repeat_scratch]) tensor.storage = {}, tensor.slice = {};
    for (Instruction part : at.body) {
      std::ranges::replace(part.operands, at.results[repeat_round], round);
      result.instructions.push_back(std::move(part));
    }
  }
  return result;
}

Status verify_body(const Program& program, const Instruction& instruction) {
  return is_repeat(instruction) ? BodyVerifier(program, instruction).run() : Status();
}

}  // namespace lancet::ir
