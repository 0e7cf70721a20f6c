#include "lancet/ir/micro_batches.h"

#include <algorithm>
#include <charconv>

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

std::optional<std::int32_t> block_of(std::string_view label) {
  constexpr std::string_view blocks = "h.";
  if (!label.starts_with(blocks)) return std::nullopt;
  label.remove_prefix(blocks.size());
  std::int32_t block = 0;
  const auto [end, error] = std::from_chars(label.data(), label.data() + label.size(), block);
  const bool whole = end == label.data() + label.size() || *end == '.';
  return error == std::errc() && whole && block >= 0 ? std::optional(block) : std::nullopt;
}

}  // namespace lancet::ir
