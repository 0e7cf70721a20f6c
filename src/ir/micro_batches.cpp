#include "lancet/ir/micro_batches.h"

#include <algorithm>

namespace lancet::ir {

std::int32_t micro_batches(const Program& program) {
  std::int32_t last = 0;
  for (const Instruction& at : program.instructions) last = std::max(last, at.micro_batch);
  return last + 1;
}

std::vector<bool> closes_step(const Program& program) {
  std::vector<bool> is_share_of_rank(program.tensors.size()), closes;
  for (const Output& output : program.outputs)
    if (is_share(output.kind)) is_share_of_rank[output.tensor.index()] = true;
  for (const Instruction& at : program.instructions) {
    const bool reports =
        std::ranges::any_of(at.results, [&](TensorId id) { return bool(is_share_of_rank[id.index()]); });
    closes.push_back(at.role == Role::update || (at.role == Role::sync && !reports));
  }
  return closes;
}

}  // namespace lancet::ir
