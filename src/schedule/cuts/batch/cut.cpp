#include <algorithm>

#include "lancet/ops/catalogue.h"
#include "schedule/cuts/cuts.h"

namespace lancet::schedule {
namespace {

// Weight gradients stay whole, so that their bits are the same as without parts, unless the operands that they keep
// alive until all parts are made are a large share of all values (the logits).
bool keeps_much_alive(const ir::Program& program, const ir::Instruction& at, std::int64_t all) {
  constexpr std::int64_t share = 32;
  if (at.role != ir::Role::dw || at.stream != ir::Stream::compute ||
      std::ranges::none_of(ops::op(at.op).partition, &ops::PartitionRow::in_time))
    return false;
  return share * (ir::bytes(program.type(at.operands[0])) + ir::bytes(program.type(at.operands[1]))) > all;
}

AxisRows batch_rows(const ir::Program& program) {
  std::int64_t all = 0;
  for (const ir::Tensor& tensor : program.tensors)
    if (tensor.number >= 0 && !tensor.storage.valid()) all += ir::bytes(tensor.type);
  return infer_axes(program, members(program, [&](const ir::Instruction& at) {
                      return in_layers(at) || keeps_much_alive(program, at, all);
                    }));
}

// True if every instruction that has a row can be split in `parts` equal parts along the batch.
bool divides(const ir::Program& program, const AxisRows& rows, int parts) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (!rows[i]) continue;
    const ir::Instruction& at = program.instructions[i];
    for (std::size_t o = 0; o < at.operands.size(); ++o)
      if (rows[i]->operands[o] == 0 && program.type(at.operands[o]).shape[0] % parts != 0) return false;
  }
  return true;
}

std::vector<int> that_divide_sequences(const ir::Program& program, const AxisRows& rows, const TokenRanks&,
                                       std::span<const int> wanted) {
  std::vector<int> counts(wanted.begin(), wanted.end());
  std::erase_if(counts, [&](int parts) { return !divides(program, rows, parts); });
  return counts;
}

}  // namespace

const Cut& batch_cut() {
  static const Cut cut{
      .name = "batch",
      .words = {.parts = "parts",
                .splits = "sequences of the batch; tokens of a part fill the slots after those of the part before",
                .pairs = "everything between all-to-alls, gate and attention included; backward as forward, or whole",
                .rewrites = "rows of the ops' tables; split_filled splits what a gate over the whole batch filled",
                .memory = "what several parts keep alive at once; none more where parts run one after another",
                .launches = "one of each op and message a part; with copies, two more at a pipeline's borders",
                .source = "Lancet (Jiang et al., MLSys 2024), section 5; FlowMoE (Gao et al., NeurIPS 2025)"},
      .rows = batch_rows,
      .part_counts = that_divide_sequences,
      .filled = {.op = "split_filled", .by_choices = true},
      .has_pipelines = true};
  return cut;
}

}  // namespace lancet::schedule
