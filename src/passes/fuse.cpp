#include <algorithm>
#include <string>
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
    for (std::size_t i = 0; i < program_.instructions.size(); ++i) {
      if (program_.instructions[i].op == "gelu") forward(i);
      if (program_.instructions[i].op == "gelu_dx") backward(i);
    }
    std::size_t at = 0;
    std::erase_if(program_.instructions, [&](const Instruction&) { return gone_[at++]; });
    return std::move(program_);
  }

 private:
  // The product that made operand 0 of a GELU, over the same rows; null if there is none that can apply the GELU.
  Instruction* product_before(const Instruction& gelu, std::size_t gelu_rows, const char* dense, const char* experts,
                              std::size_t product_rows) {
    const int maker = maker_[gelu.operands[0].index()];
    if (maker == none) return nullptr;
    Instruction& product = program_.instructions[std::size_t(maker)];
    const bool rows = gelu.operands.size() > gelu_rows;
    if (product.op != (rows ? experts : dense) || product.attributes.integer("streamed", 0)) return nullptr;
    if (rows && product.operands[product_rows] != gelu.operands[gelu_rows]) return nullptr;
    return &product;
  }

  // h = linear(...), y = gelu(h) become h, y = linear_gelu(...), where h was made. Other instructions may still read h.
  void forward(std::size_t i) {
    const Instruction& gelu = program_.instructions[i];
    Instruction* product = product_before(gelu, 1, "linear", "expert_linear", 3);
    if (!product) return;
    product->op += "_gelu";
    product->results.push_back(gelu.results[0]);
    gone_[i] = true;
  }

  // dy = linear_dx(...), dh = gelu_dx(dy, h) become dh = linear_dx_gelu(..., h), where dy was made, if no other
  // instruction reads dy.
  void backward(std::size_t i) {
    const Instruction& gelu = program_.instructions[i];
    Instruction* product = product_before(gelu, 2, "linear_dx", "expert_linear_dx", 2);
    if (!product || readers_[gelu.operands[0].index()] != 1) return;
    product->op += "_gelu";
    product->operands.insert(product->operands.begin() + 2, gelu.operands[1]);
    product->results = gelu.results;
    program_[gelu.results[0]].storage = {};  // it shared dy's memory
    gone_[i] = true;
  }

  ir::Program program_;
  std::vector<int> maker_, readers_;  // by tensor: the instruction that makes it or none; the number of its readers
  std::vector<bool> gone_;            // by instruction
};

}  // namespace

ir::Program fuse(const ir::Program& program) { return Fuse(program).run(); }

}  // namespace lancet::passes
