#include "cuts.h"

#include <algorithm>

#include "lancet/base/check.h"
#include "lancet/ops/catalogue.h"

namespace lancet::schedule {

std::span<const PassCut> pass_cuts() {
  static const PassCut cuts[] = {
      {"micro_batches",
       {.parts = "micro batches",
        .splits = "the step's micro batches (train.gradient_accumulation_steps)",
        .pairs = "the backward pass of each and the forward pass of the next",
        .rewrites = "nothing: the instructions of two passes are ordered together",
        .memory = "the activations of two micro batches, as far as overlap.memory_factor allows",
        .launches = "none",
        .source = "Megatron-LM, overlap across micro batches; DualPipe (DeepSeek-V3, 2024), section 3.2.1"}},
      {"ring_shards",
       {.parts = "windows",
        .splits = "an all-gathered or reduce-scattered tensor, in a window for each rank of the group",
        .pairs = "an all-gather and the products that read it; a product and the reduce-scatter of its result",
        .rewrites = "permutes of windows, a product each; a copy that joins windows where a reader needs the whole",
        .memory = "windows on their way; two sums of a reduce-scatter's ring",
        .launches = "one product and message a window; half as many messages a direction where both are used",
        .source = "collective matmul (Wang et al., ASPLOS 2023); XLA's windowed einsum"}}};
  return cuts;
}

const Cut& cut_named(std::string_view name) {
  const auto cuts = all_cuts();
  const auto found = std::ranges::find_if(cuts, [&](const Cut* known) { return known->name == name; });
  LANCET_CHECK(found != cuts.end(), "no cut is named {}", name);
  return **found;
}

std::vector<ir::InstructionId> members(const ir::Program& program,
                                       const std::function<bool(const ir::Instruction&)>& is) {
  std::vector<ir::InstructionId> result;
  for (std::size_t i = 0; i < program.instructions.size(); ++i)
    if (is(program.instructions[i])) result.push_back(ir::id_of(i));
  return result;
}

bool in_layers(const ir::Instruction& at) { return at.role == ir::Role::forward || at.role == ir::Role::dx; }

bool is_expert_core(const ir::Instruction& at) {
  return ops::kind(at) == ops::Kind::all_to_all || ops::is_over_expert_rows(at);
}

std::vector<ColumnPair> column_pairs(const ir::Program& program) {
  std::vector<std::size_t> maker(program.tensors.size(), program.instructions.size());
  std::vector<int> readers(program.tensors.size());
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    for (ir::TensorId id : program.instructions[i].operands) ++readers[id.index()];
    for (ir::TensorId id : program.instructions[i].results) maker[id.index()] = i;
  }
  for (const ir::Output& output : program.outputs) ++readers[output.tensor.index()];
  std::vector<ColumnPair> pairs;
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    const ir::Instruction& at = program.instructions[i];
    const ops::OpDef& op = ops::op(at.op);
    if (op.kind != ops::Kind::all_to_all || op.to_experts || !in_layers(at)) continue;
    const ir::TensorId sent = at.operands[0];
    const std::size_t from = maker[sent.index()];
    if (from < i && readers[sent.index()] == 1 && ops::op(program.instructions[from].op).column_tiles &&
        !program[at.results[0]].storage.valid())
      pairs.push_back({from, i});
  }
  return pairs;
}

AxisRows expert_rows(const ir::Program& program) {
  return infer_axes(program,
                    members(program, [](const ir::Instruction& at) { return in_layers(at) && is_expert_core(at); }));
}

std::vector<int> any_count(const ir::Program&, const AxisRows&, const TokenRanks&, std::span<const int> wanted) {
  return {wanted.begin(), wanted.end()};
}

}  // namespace lancet::schedule
