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
// onto, then come before it.
namespace {

// instructions: those of one repeat. Their first begins it.
Instruction folded(ir::Program& program, const ir::Mesh& mesh, std::vector<Instruction> instructions) {
  const Instruction begin = std::move(instructions.front());
  LANCET_CHECK(ops::kind(begin) == ops::Kind::round, "a repeat at {} begins with {}", begin.label, begin.op);
  instructions.erase(instructions.begin());
  Instruction repeat = begin;
  repeat.op = "repeat";
  repeat.stream = ops::op(repeat.op).stream;
  repeat.role = instructions.back().role;
  repeat.repeated = 0;
  // The axes of all collectives of the body: ranks that differ along others need not agree on the number of rounds. A
  // body without collectives, where one rank has all experts of a layer, is met by no other rank, least of all by one
  // of another stage.
  ir::Axes axes;
  for (Instruction& part : instructions) {
    part.repeated = 0;
    if (part.stream != ir::Stream::compute) axes = axes | ir::group_of(part, mesh);
  }
  if (!axes.empty())
    ir::set_group(repeat.attributes, mesh, axes);
  else if (mesh[ir::Axis::stage] > 1)
    repeat.attributes.set(ir::axes_attribute, std::string(ir::name(ir::Axis::expert)));
  ir::set_body(program, repeat, std::move(instructions));
  return repeat;
}

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
    if (--left[at.repeated] == 0) result.instructions.push_back(folded(result, mesh, std::move(taken[at.repeated])));
  }
  return result;
}

}  // namespace lancet::passes
