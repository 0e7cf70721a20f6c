#include "lancet/schedule/partition/split.h"

#include "lancet/ops/catalogue.h"

namespace lancet::schedule {

std::vector<bool> per_token_tensors(const ir::Program& program) {
  std::vector<bool> result(program.tensors.size());
  for (const ir::Instruction& at : program.instructions) {
    const auto& ragged = ops::op(at.op).ragged;
    if (!ragged || ragged->slots < 0) continue;
    const Shape& choices = program.type(at.operands[std::size_t(ragged->slots)]).shape;
    for (std::size_t o = 0; o < at.operands.size(); ++o)
      if (int(o) != ragged->counts && program.type(at.operands[o]).shape == choices)
        result[at.operands[o].index()] = true;
    for (const ir::TensorId id : at.results)
      if (program.type(id).shape == choices) result[id.index()] = true;
  }
  return result;
}

Split joined(Split a, const Split& b) {
  for (std::size_t i = 0; i < a.parts.size(); ++i) {
    if (b.parts[i] == 1) continue;
    a.rows[i] = b.rows[i], a.parts[i] = b.parts[i], a.cuts[i] = b.cuts[i];
  }
  return a;
}

}  // namespace lancet::schedule
