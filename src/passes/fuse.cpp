// Looks at each instruction whose operand 0 is the result of a product. Where the catalogue has an op that does both
// (OpDef::fuses), the product becomes that op at the place where it is, and the reader goes.
#include <vector>

#include "lancet/ops/catalogue.h"
#include "lancet/passes/passes.h"

namespace lancet::passes {
namespace {

using ir::Instruction;
using ir::TensorId;

constexpr int none = -1;

class Fuse {
 public:
  explicit Fuse(const ir::Program& program)
      : program_(program), maker_(program.tensors.size(), none), readers_(program.tensors.size()) {
    for (std::size_t i = 0; i < program.instructions.size(); ++i) {
      for (TensorId id : program.instructions[i].operands) ++readers_[id.index()];
      for (TensorId id : program.instructions[i].results) maker_[id.index()] = int(i);
    }
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
    const int maker = reader.operands.empty() ? none : maker_[reader.operands[0].index()];
    if (maker == none) return false;
    Instruction& product = program_.instructions[std::size_t(maker)];
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
  std::vector<int> maker_, readers_;  // by tensor: the instruction that makes it or none; the number of its readers
  std::vector<bool> gone_;            // by instruction
};

}  // namespace

ir::Program fuse(const ir::Program& program) { return Fuse(program).run(); }

}  // namespace lancet::passes
