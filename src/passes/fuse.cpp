// Looks at each instruction whose operand 0 is the result of a product. Where the catalogue has an op that does both
// (OpDef::fuses), the product becomes that op at the place where it is, and the reader goes.
#include <fmt/format.h>
#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "lancet/base/check.h"
#include "lancet/ir/dependencies.h"
#include "lancet/ir/groups.h"
#include "lancet/ops/catalogue.h"
#include "lancet/passes/passes.h"

namespace lancet::passes {
namespace {

using ir::Instruction;
using ir::TensorId;

class Fuse {
 public:
  explicit Fuse(const ir::Program& program)
      : program_(program), maker_(ir::makers_of(program)), readers_(program.tensors.size()) {
    for (const Instruction& at : program.instructions)
      for (TensorId id : at.operands) ++readers_[id.index()];
    for (const ir::Output& output : program.outputs) ++readers_[output.tensor.index()];
    for (const ir::Tensor& tensor : program.tensors)  // a view reads the tensor whose memory it shares
      if (tensor.kind == ir::TensorKind::view && tensor.storage.valid()) ++readers_[tensor.storage.index()];
  }

  ir::Program run() {
    gone_.resize(program_.instructions.size());
    for (std::size_t i = 0; i < program_.instructions.size(); ++i) gone_[i] = fuse(program_.instructions[i]);
    std::size_t at = 0;
    std::erase_if(program_.instructions, [&](const Instruction&) { return gone_[at++]; });
    return std::move(program_);
  }

 private:
  // Merges an instruction into the product that made its operand 0; false if no op does both.
  bool fuse(const Instruction& reader) {
    const std::size_t none = program_.instructions.size();
    const std::size_t maker = reader.operands.empty() ? none : maker_[reader.operands[0].index()];
    if (maker == none) return false;
    Instruction& product = program_.instructions[maker];
    const ops::OpDef* fused = fused_op(product, reader);
    if (!fused || product.attributes.integer("streamed", 0)) return false;
    if (reader.role != ir::Role::forward && !merge_backward(product, reader)) return false;
    if (reader.role == ir::Role::forward) product.results.push_back(reader.results[0]);
    product.op = fused->name;
    return true;
  }

  static const ops::OpDef* fused_op(const Instruction& product, const Instruction& reader) {
    const bool rows = int(reader.operands.size()) > ops::op(reader.op).required;
    for (const ops::OpDef* op : ops::all_ops())
      if (op->fuses && op->fuses->product == product.op && op->fuses->reader == reader.op && op->fuses->rows == rows)
        return !rows || product.operands.back() == reader.operands.back() ? op : nullptr;
    return nullptr;
  }

  // The product's own result is not made any more: false if another instruction reads it.
  bool merge_backward(Instruction& product, const Instruction& reader) {
    if (readers_[reader.operands[0].index()] != 1) return false;
    product.operands.insert(product.operands.begin() + 2, reader.operands[1]);
    product.results = reader.results;
    program_[reader.results[0]].storage = {};  // it shared the memory of the product's result
    return true;
  }

  ir::Program program_;
  const std::vector<std::size_t> maker_;  // by tensor
  std::vector<int> readers_;              // by tensor: how many
  std::vector<bool> gone_;                // by instruction
};

}  // namespace

ir::Program fuse(const ir::Program& program) { return Fuse(program).run(); }

// Takes the instructions of each repeat out of the program and puts one instruction with them as its body where the
// last of them was. Instructions between them that belong to no repeat, such as the zeros that gradients are added
// onto, then come before it. What the body makes in memory of its own becomes a slice of the scratch: offsets are given
// from the first tensor to the last, each the lowest at which it overlaps none that exists at the same time.
namespace {

constexpr std::int64_t alignment = 64;  // of tensors in the scratch, as of those in the arena
std::int64_t aligned(std::int64_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

// A tensor of the body that has memory of its own, and where it is in the scratch.
struct Block {
  TensorId tensor;
  std::size_t first = 0, last = 0;  // instructions of the body that make it and that touch it last
  std::int64_t bytes = 0, offset = 0;
};

class Fold {
 public:
  // instructions: those of one repeat. Their first begins it.
  Fold(ir::Program& program, const ir::Mesh& mesh, std::vector<Instruction> instructions)
      : program_(program), mesh_(mesh), begin_(instructions.front()), body_(std::move(instructions)) {
    LANCET_CHECK(ops::kind(begin_) == ops::Kind::round, "a repeat at {} begins with {}", begin_.label, begin_.op);
    body_.erase(body_.begin());
    for (Instruction& part : body_) part.repeated = 0;
  }

  Instruction run() {
    Instruction repeat;
    repeat.op = "repeat";
    repeat.stream = ops::op(repeat.op).stream;
    repeat.role = body_.back().role;
    repeat.label = begin_.label;
    repeat.results = {begin_.results[0], TensorId{}};
    find_tensors(repeat);
    repeat.results[ir::repeat_scratch] = pack();
    set_axes(repeat);
    repeat.body = std::move(body_);
    return repeat;
  }

 private:
  // What the body reads from outside, updates outside, and makes in memory of its own.
  void find_tensors(Instruction& repeat) {
    std::set<TensorId> made{begin_.results[0]}, read{begin_.operands[0]};
    repeat.operands = {begin_.operands[0]};
    for (std::size_t i = 0; i < body_.size(); ++i) {
      for (const TensorId id : body_[i].operands) {
        if (!made.contains(id) && read.insert(id).second) repeat.operands.push_back(id);
        touch(id, i);
      }
      for (const TensorId id : body_[i].results) {
        const TensorId root = program_.root(id);
        made.insert(id);
        if (root == id)
          blocks_.push_back({id, i, i, aligned(ir::bytes(program_.type(id)))});
        else if (!made.contains(root))
          repeat.results.push_back(id);
        touch(id, i);
      }
    }
  }

  void touch(TensorId id, std::size_t instruction) {
    const auto block = std::ranges::find(blocks_, program_.root(id), &Block::tensor);
    if (block != blocks_.end()) block->last = instruction;
  }

  TensorId pack() {
    std::int64_t size = alignment;
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      Block& block = blocks_[i];
      std::vector<const Block*> there;  // at the same time, by offset
      for (std::size_t j = 0; j < i; ++j)
        if (blocks_[j].last >= block.first) there.push_back(&blocks_[j]);
      std::ranges::sort(there, {}, &Block::offset);
      for (const Block* other : there) {
        if (other->offset >= block.offset + block.bytes) break;
        block.offset = std::max(block.offset, other->offset + other->bytes);
      }
      size = std::max(size, block.offset + block.bytes);
    }
    const TensorId scratch = program_.add_value({DType::i32, {size / size_of(DType::i32)}});
    for (const Block& block : blocks_) {
      program_[block.tensor].storage = scratch;
      program_[block.tensor].slice = ir::Slice{block.offset, 0, 0};
    }
    return scratch;
  }

  // The axes of all collectives of the body: ranks that differ along others need not agree on the number of rounds. A
  // body without collectives, where one rank has all experts of a layer, is met by no other rank, least of all by one
  // of another stage.
  void set_axes(Instruction& repeat) const {
    ir::Axes axes;
    for (const Instruction& part : body_)
      if (part.stream != ir::Stream::compute) axes = axes | ir::group_of(part, mesh_);
    if (!axes.empty())
      ir::set_group(repeat.attributes, mesh_, axes);
    else if (mesh_[ir::Axis::stage] > 1)
      repeat.attributes.set(ir::axes_attribute, std::string(ir::name(ir::Axis::expert)));
  }

  ir::Program& program_;
  const ir::Mesh& mesh_;
  const Instruction begin_;
  std::vector<Instruction> body_;
  std::vector<Block> blocks_;
};

}  // namespace

bool has_unfolded_repeats(const ir::Program& program) {
  return std::ranges::any_of(program.instructions, [](const Instruction& at) { return at.repeated > 0; });
}

ir::Program fold_repeats(const ir::Program& program, const ir::Mesh& mesh) {
  ir::Program result = program.without_instructions();
  std::map<std::int32_t, std::size_t> left;  // by repeat: its instructions that are still to come
  for (const Instruction& at : program.instructions)
    if (at.repeated > 0) ++left[at.repeated];
  std::map<std::int32_t, std::vector<Instruction>> taken;
  for (const Instruction& at : program.instructions) {
    if (at.repeated == 0) {
      result.instructions.push_back(at);
      continue;
    }
    taken[at.repeated].push_back(at);
    if (--left[at.repeated] > 0) continue;
    result.instructions.push_back(Fold(result, mesh, std::move(taken[at.repeated])).run());
    const Status closed = ir::verify_body(result, result.instructions.back());
    LANCET_CHECK(closed.ok(), "{}", closed.error().message);
  }
  return result;
}

}  // namespace lancet::passes
