#include "rings.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <ranges>

#include "lancet/cost/costs.h"
#include "lancet/ir/dependencies.h"
#include "lancet/ir/groups.h"
#include "lancet/ops/catalogue.h"

namespace lancet::schedule {
namespace {

using ir::Instruction;
using ir::TensorId;
using ops::Axis;

// The largest number of partitions for which XLA makes such loops (kMaxIterations in dot_handler.cc).
constexpr std::int64_t most_windows = 32;

// The first row whose entries fit and of which the instruction has equal shares.
const ops::PartitionRow* first_row(const ir::Program& program, const Instruction& at, std::int64_t shards,
                                   const std::function<bool(Axis)>& is_operand,
                                   const std::function<bool(Axis)>& is_result, int axis) {
  const bool is_local = at.stream == ir::Stream::compute && at.writes.empty() && at.repeated == 0 && at.body.empty();
  if (!is_local || at.results.empty()) return nullptr;
  for (const ops::PartitionRow& row : ops::op(at.op).partition) {
    if (row.placed || row.operands.size() < at.operands.size() || row.results.size() < at.results.size()) continue;
    const std::span operands(row.operands.data(), at.operands.size());
    const std::span results(row.results.data(), at.results.size());
    if (std::ranges::count(operands, Axis(axis)) > 0 && std::ranges::all_of(operands, is_operand) &&
        std::ranges::all_of(results, is_result) && ops::has_shares(program, at, row, shards))
      return &row;
  }
  return nullptr;
}

// The readers of each tensor.
std::vector<std::vector<std::size_t>> find_readers(const ir::Program& program) {
  std::vector<std::vector<std::size_t>> readers(program.tensors.size());
  for (std::size_t i = 0; i < program.instructions.size(); ++i)
    for (const TensorId id : program.instructions[i].operands)
      if (auto& of = readers[id.index()]; of.empty() || of.back() != i) of.push_back(i);
  return readers;
}

// True if the row splits the tensor wherever the instruction reads it.
bool splits(const ops::PartitionRow* row, const Instruction& at, TensorId id, int axis) {
  for (std::size_t o = 0; row && o < at.operands.size(); ++o)
    if (at.operands[o] == id && row->operands[o] != axis) return false;
  return row != nullptr;
}

class Finder {
 public:
  explicit Finder(const ir::Program& program)
      : program_(program), readers_(find_readers(program)), makers_(ir::makers_of(program)) {
    is_output_.resize(program.tensors.size());
    for (const ir::Output& output : program.outputs) is_output_[output.tensor.index()] = true;
    find_weights();
  }

  std::vector<Ring> run() const {
    std::vector<Ring> rings;
    for (std::size_t i = 0; i < program_.instructions.size(); ++i) {
      const Instruction& at = program_.instructions[i];
      const ops::Ring kind = ops::op(at.op).ring;
      if (kind == ops::Ring::none || at.repeated != 0 || at.attributes.has("blocks")) continue;
      Ring ring{.collective = i,
                .gathers = kind == ops::Ring::gather,
                .axis = int(at.attributes.integer("axis")),
                .shards = at.attributes.integer("shards")};
      if (ring.shards < 2 || ring.shards > most_windows) continue;
      ring.gathers ? add_readers(ring) : add_maker(ring);
      if (ring.products.empty() && ring.weight_gradients.empty()) continue;
      ring.kind = kind_of(ring);
      rings.push_back(std::move(ring));
    }
    return rings;
  }

 private:
  // Follows the gradients back from the updates, through the sums over ranks.
  void find_weights() {
    weights_.resize(program_.tensors.size());
    for (const Instruction& at : program_.instructions | std::views::reverse) {
      if (at.role == ir::Role::update) {
        const auto parameter = std::ranges::find_if(
            at.writes, [&](TensorId id) { return program_[id].kind == ir::TensorKind::parameter; });
        if (parameter != at.writes.end())
          for (const TensorId id : at.operands) weights_[id.index()] = *parameter;
      } else if (at.role == ir::Role::sync && at.operands.size() == at.results.size()) {
        for (std::size_t i = 0; i < at.operands.size(); ++i)
          weights_[at.operands[i].index()] = weights_[at.results[i].index()];
      }
    }
  }

  // True if an instruction makes the gradient of weights of which the ranks of the ring hold copies, as of a bias that
  // is added to a sum. Each rank sums windows from its own one on, so the copies would not stay equal to the bit.
  bool is_of_copies(const Instruction& at, const Ring& ring) const {
    const ir::Axes group = ir::group_of(program_.instructions[ring.collective]);  // none: all ranks
    return std::ranges::any_of(at.results, [&](TensorId id) {
      const TensorId root = program_.root(id);
      const TensorId weights = program_[root].kind == ir::TensorKind::state ? root : weights_[id.index()];
      if (!weights.valid()) return false;
      const auto& sharding = program_[weights].sharding;
      const ir::Axes divided = sharding ? sharding->used() : ir::Axes();
      return group.empty() ? divided.empty() : (divided & group).empty();
    });
  }

  void add_readers(Ring& ring) const {
    const TensorId whole = program_.instructions[ring.collective].results[0];
    for (const std::size_t reader : readers_[whole.index()]) {
      const Instruction& at = program_.instructions[reader];
      if (ops::kind(at) != ops::Kind::product) continue;
      if (splits(window_row(program_, at, ring.axis, ring.shards), at, whole, ring.axis))
        ring.products.push_back(reader);
      else if (splits(sum_row(program_, at, ring.axis, ring.shards), at, whole, ring.axis) && !is_of_copies(at, ring))
        ring.weight_gradients.push_back(reader);
    }
  }

  void add_maker(Ring& ring) const {
    const TensorId summand = program_.instructions[ring.collective].operands[0];
    const std::size_t maker = makers_[summand.index()];
    if (maker == program_.instructions.size() || readers_[summand.index()].size() != 1 || is_output_[summand.index()])
      return;
    const Instruction& at = program_.instructions[maker];
    if (ops::kind(at) == ops::Kind::product && at.results.size() == 1 &&
        window_row(program_, at, ring.axis, ring.shards))
      ring.products.push_back(maker);
  }

  std::string kind_of(const Ring& ring) const {
    const Instruction& collective = program_.instructions[ring.collective];
    std::string kind = fmt::format("{} {}", cost::op_key(program_, collective), ir::name(collective.role));
    for (const auto& list : {ring.products, ring.weight_gradients})
      for (const std::size_t i : list) kind += "; " + cost::op_key(program_, program_.instructions[i]);
    return kind;
  }

  const ir::Program& program_;
  const std::vector<std::vector<std::size_t>> readers_;
  const std::vector<std::size_t> makers_;  // by tensor
  std::vector<bool> is_output_;
  std::vector<TensorId> weights_;  // by tensor: the parameter that it is the gradient of, or that it updates
};

}  // namespace

std::string Ring::key(const ir::Program& program) const {
  return fmt::format("{} {} {}", ir::axes_text(program.instructions[collective]), shards, axis);
}

std::vector<Ring> find_rings(const ir::Program& program) { return Finder(program).run(); }

const ops::PartitionRow* window_row(const ir::Program& program, const ir::Instruction& at, int axis,
                                    std::int64_t shards) {
  return first_row(
      program, at, shards, [&](Axis entry) { return entry == axis || entry == ops::none; },
      [&](Axis entry) { return entry == axis; }, axis);
}

const ops::PartitionRow* sum_row(const ir::Program& program, const ir::Instruction& at, int axis, std::int64_t shards) {
  return first_row(
      program, at, shards, [&](Axis entry) { return entry == axis || entry == ops::none || entry == ops::accumulated; },
      [](Axis entry) { return entry == ops::accumulated; }, axis);
}

}  // namespace lancet::schedule
