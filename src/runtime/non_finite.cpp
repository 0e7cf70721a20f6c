// The search for a non-finite number repeats the step on one thread. It walks the plan in an order in which all ranks
// meet in their collectives: that of one step, which ranks of one plan share, or the options'. It zeroes each result's
// memory before its first use, runs the instruction, and searches its results. Updates of parameters and state are
// skipped, so that the search leaves the model as it was. After the first non-finite number the walk continues without
// searching, because other ranks still need this rank's collectives.
#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "bound_plan.h"
#include "lancet/base/shown.h"
#include "lancet/ir/dependencies.h"

namespace lancet::runtime {
namespace {

using ir::TensorId;

struct BadElement {
  std::int64_t index = 0;
  float value = 0;
};

template <class T>
std::optional<BadElement> first_in(const T* data, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i)
    if (const float value = to_f32(data[i]); !std::isfinite(value)) return BadElement{i, value};
  return std::nullopt;
}

// Searches tensors of f32 and bf16; other types hold no numbers that can overflow.
std::optional<BadElement> first_non_finite(const ops::TensorView& tensor) {
  if (tensor.dtype() == DType::f32) return first_in(tensor.as<float>(), tensor.elements());
  if (tensor.dtype() == DType::bf16) return first_in(tensor.as<bf16>(), tensor.elements());
  return std::nullopt;
}

// Runs a plan step by step and keeps the first non-finite number.
class Search {
 public:
  Search(const ir::Plan& plan, const Addresses& addresses, SingleSteps& steps,
         const std::function<bool(std::int32_t)>& left_out)
      : plan_(plan), addresses_(addresses), steps_(steps), left_out_(left_out), made_(plan.program.tensors.size()) {}

  Result<std::optional<NonFinite>> operator()(const ExecutorOptions& options) {
    constexpr std::int64_t before_all = std::numeric_limits<std::int64_t>::min();
    for (std::size_t i = 0; i < plan_.program.tensors.size(); ++i)
      if (const auto kind = plan_.program.tensors[i].kind;
          kind == ir::TensorKind::parameter || kind == ir::TensorKind::state)
        LANCET_TRY(look(TensorId{static_cast<std::int32_t>(i)}, {}, before_all + std::int64_t(i)));
    LANCET_ASSIGN(const std::vector<ir::PlacedInstruction> ordered, options.order ? options.order() : listed());
    for (const auto& [id, place] : ordered) LANCET_TRY(visit(id, place));
    return first_;
  }

 private:
  std::vector<ir::PlacedInstruction> listed() const {
    std::vector<ir::PlacedInstruction> order;
    std::int64_t place = 0;
    for (const ir::InstructionId id : ir::in_step_order(plan_.program)) {
      order.push_back({id, place});
      place += std::ssize(plan_.program.instructions[id.index()].results);
    }
    return order;
  }

  Status visit(ir::InstructionId id, std::int64_t place) {
    const ir::Instruction& instruction = plan_.program.instructions[id.index()];
    if (left_out_(static_cast<std::int32_t>(id.index()))) return {};
    if (instruction.role == ir::Role::update && !instruction.writes.empty()) return {};
    LANCET_TRY(clear_fresh(instruction));
    LANCET_TRY(steps_.run(static_cast<std::int32_t>(id.index())));
    for (TensorId result : instruction.results) LANCET_TRY(look(result, id, place++));
    return {};
  }
  // Zeroes the memory of results before anything is written there: slots without a token are never written, and their
  // old contents must not be taken for a result.
  Status clear_fresh(const ir::Instruction& instruction) {
    for (TensorId id : instruction.results) {
      const TensorId root = plan_.program.root(id);
      if (made_[root.index()] || plan_.offsets[root.index()] < 0) continue;
      made_[root.index()] = true;
      LANCET_TRY(steps_.zero(addresses_.view(root)));
    }
    return {};
  }
  Status look(TensorId id, ir::InstructionId instruction, std::int64_t place) {
    if (first_) return {};
    LANCET_ASSIGN(const ops::TensorView view, steps_.host_view(addresses_.view(id)));
    if (const auto bad = first_non_finite(view)) first_ = NonFinite{place, id, instruction, bad->index, bad->value};
    return {};
  }

  const ir::Plan& plan_;
  const Addresses& addresses_;
  SingleSteps& steps_;
  const std::function<bool(std::int32_t)>& left_out_;
  std::vector<bool> made_;
  std::optional<NonFinite> first_;
};

}  // namespace

std::string to_string(const ir::Program& program, const NonFinite& found) {
  std::string made;
  if (found.instruction.valid()) {
    const ir::Instruction& instruction = program.instructions[found.instruction.index()];
    made = fmt::format(" = {} at {} ({})", instruction.op, instruction.label, ir::name(instruction.role));
  }
  return fmt::format("{} : {}{}, element {} is {}", program.display(found.tensor),
                     ir::to_string(program.type(found.tensor)), made, found.element, unsigned_nan(found.value));
}

Result<std::optional<NonFinite>> search_non_finite(const ir::Plan& plan, const Addresses& addresses,
                                                   const ExecutorOptions& options, SingleSteps& steps,
                                                   const std::function<bool(std::int32_t)>& left_out) {
  return Search(plan, addresses, steps, left_out)(options);
}

}  // namespace lancet::runtime
