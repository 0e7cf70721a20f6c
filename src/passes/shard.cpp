// Spreads the shardings of annotated tensors to all others (GShard, sections 3.2 and 3.3.2).
//
// A partition row names one index of an op: the axis of each operand and each result that runs over it. The op needs no
// communication along this index if all of these axes are split alike, and if the operands that have it are, a result
// that sums over it is partial. So for each instruction and each row, a sweep in program order takes the finest split
// that an operand has and gives it to the results; a sweep in reverse order takes that of all tensors of the
// instruction and gives it to the operands. Sweeps repeat until nothing changes.
//
// A dimension is only ever split further: it keeps its axes, outermost first, and gains inner ones. There are
// axis_count axes and each is used once in a tensor, so the sweeps end. Where two rows want the same axis, the first
// one has it. Rows of higher levels therefore wait until those of lower levels have nothing left to do: a batch that is
// split costs no communication, a contraction that is split costs a sum.
#include <fmt/format.h>

#include <algorithm>

#include "choose_rows.h"
#include "lancet/ops/catalogue.h"
#include "lancet/passes/passes.h"

namespace lancet::passes {
namespace {

using ir::Axes;
using ir::Instruction;
using ir::Sharding;
using ir::Tensor;
using ir::TensorId;
using ops::PartitionRow;

constexpr int levels = 3;

// 0: every shard makes a part of the results. 1: likewise, for products. 2: the results are sums over the shards.
int level_of(const ops::OpDef& op, const PartitionRow& row) {
  if (std::ranges::none_of(row.results, ops::is_split)) return levels - 1;
  return op.kind == ops::Kind::product ? 1 : 0;
}

bool sums(ops::Axis result) { return result == ops::partial || result == ops::accumulated; }

bool begins_with(const std::vector<ir::Axis>& axes, const std::vector<ir::Axis>& first) {
  return axes.size() >= first.size() && std::equal(first.begin(), first.end(), axes.begin());
}

class Spreading {
 public:
  // All tensors of the program have a sharding; those that are fixed keep theirs.
  Spreading(ir::Program program, std::vector<bool> fixed, const ir::Mesh& mesh)
      : program_(std::move(program)), fixed_(std::move(fixed)), mesh_(mesh) {
    for (const Instruction& at : program_.instructions) rules_.push_back(rules_of(at));
  }

  Result<ir::Program> run() {
    for (int level = 0; level < levels; ++level)
      for (bool changes = true; changes;) changes = sweep(level);
    for (std::size_t i = 0; i < rules_.size(); ++i)
      for (const Rule& rule : rules_[i]) LANCET_TRY(check_divided(program_.instructions[i], rule));
    return std::move(program_);
  }

 private:
  // A tensor of an instruction and what a row says of it.
  struct Entry {
    TensorId tensor;
    ops::Axis axis;
  };

  // A row that fits the operands and results of an instruction.
  struct Rule {
    const PartitionRow* row;
    int level;
    bool in_blocks;  // tensors may share blocks, since the row itself names none
  };
  std::vector<Rule> rules_of(const Instruction& at) const {
    const ops::OpDef& op = ops::op(at.op);
    std::vector<Rule> rules;
    for (const PartitionRow& row : op.partition)
      if (row.in_space() && ops::has_shares(program_, at, row, 1))
        rules.push_back({&row, level_of(op, row),
                         row.packed.empty() && ops::has_one_extent(types(at.operands), types(at.results), row)});
    return rules;
  }

  std::vector<ir::TensorType> types(const std::vector<TensorId>& tensors) const {
    std::vector<ir::TensorType> types;
    for (const TensorId id : tensors) types.push_back(program_.type(id));
    return types;
  }

  // True if something changed.
  bool sweep(int level) {
    bool changed = false;
    auto visit = [&](std::size_t i, auto step) {
      for (const Rule& rule : rules_[i])
        if (rule.level <= level) changed |= (this->*step)(program_.instructions[i], rule);
    };
    for (std::size_t i = 0; i < rules_.size(); ++i) visit(i, &Spreading::forward);
    for (std::size_t i = rules_.size(); i-- > 0;) visit(i, &Spreading::backward);
    return changed;
  }

  bool forward(const Instruction& at, const Rule& rule) {
    const PartitionRow& row = *rule.row;
    const std::vector<Entry> from = split_entries(at.operands, row.operands);
    const ir::Split split = finest(at, from, rule);
    bool changed = false;
    if (!split.axes.empty())
      for (const Entry& to : split_entries(at.results, row.results)) changed |= refine(at, row, to, split);
    const Axes summed = axes_in_common(at, rule, from);
    for (std::size_t r = 0; r < at.results.size(); ++r) {
      if (sums(row.results[r])) changed |= add_partial(at.results[r], summed);
      if (is_in_state(at.results[r]))
        changed |= add_partial(at.results[r], sharding(program_[at.results[r]].storage).partial);
    }
    return changed;
  }

  bool backward(const Instruction& at, const Rule& rule) {
    const PartitionRow& row = *rule.row;
    const std::vector<Entry> to = split_entries(at.operands, row.operands);
    std::vector<Entry> from = split_entries(at.results, row.results);
    from.insert(from.end(), to.begin(), to.end());
    const ir::Split split = finest(at, from, rule);
    bool changed = false;
    if (!split.axes.empty())
      for (const Entry& entry : to) changed |= refine(at, row, entry, split);
    for (TensorId result : at.results) changed |= share_with_state(result);
    return changed;
  }

  static std::vector<Entry> split_entries(const std::vector<TensorId>& tensors, const std::vector<ops::Axis>& axes) {
    std::vector<Entry> entries;
    for (std::size_t i = 0; i < tensors.size(); ++i)
      if (ops::is_split(axes[i])) entries.push_back({tensors[i], axes[i]});
    return entries;
  }

  Sharding& sharding(TensorId id) { return *program_[id].sharding; }
  std::size_t index(const Entry& entry) const {
    return std::size_t(ops::index_of(entry.axis, program_.type(entry.tensor).shape.rank()));
  }

  // How the row's index is split in the entry's tensor: without the blocks that the row itself names.
  ir::Split split_of(const Instruction& at, const Entry& entry, const Rule& rule) {
    const ir::Split& split = sharding(entry.tensor).dimensions[index(entry)];
    if (rule.in_blocks) return split;
    return split.blocks == ops::blocks_of(*rule.row, entry.axis, at.attributes) ? ir::Split{split.axes} : ir::Split{};
  }

  // The split into the most axes, of equals the first.
  ir::Split finest(const Instruction& at, const std::vector<Entry>& entries, const Rule& rule) {
    ir::Split best;
    for (const Entry& entry : entries)
      if (ir::Split split = split_of(at, entry, rule); split.axes.size() > best.axes.size()) best = std::move(split);
    return best;
  }

  // Gives the entry's dimension as many more axes of the split, outermost first, as are free in its tensor and divide
  // the instruction. True if that is at least one.
  bool refine(const Instruction& at, const PartitionRow& row, const Entry& entry, const ir::Split& split) {
    if (fixed_[entry.tensor.index()]) return false;
    Sharding& whole = sharding(entry.tensor);
    ir::Split& current = whole.dimensions[index(entry)];
    ir::Split finer{current.axes,
                    entry.axis == ops::packed ? ops::blocks_of(row, entry.axis, at.attributes) : split.blocks};
    if (!current.axes.empty() && finer.blocks != current.blocks) return false;
    if (!begins_with(split.axes, current.axes)) return false;
    const std::int64_t extent = program_.type(entry.tensor).shape[int(index(entry))];
    while (finer.axes.size() < split.axes.size()) {
      const ir::Axis next = split.axes[finer.axes.size()];
      finer.axes.push_back(next);
      if (whole.used().has(next) || !ir::divides({extent, finer}, mesh_) ||
          !ops::has_shares(program_, at, row, ir::shards(finer, mesh_))) {
        finer.axes.pop_back();
        break;
      }
    }
    if (finer.axes.size() == current.axes.size()) return false;
    current = std::move(finer);
    return true;
  }

  // The axes along which every operand that has the row's index is split alike.
  Axes axes_in_common(const Instruction& at, const Rule& rule, const std::vector<Entry>& operands) {
    if (operands.empty()) return {};
    ir::Split common = split_of(at, operands[0], rule);
    for (const Entry& entry : operands) {
      const ir::Split other = split_of(at, entry, rule);
      if (other.blocks != common.blocks) return {};
      while (!begins_with(other.axes, common.axes)) common.axes.pop_back();
    }
    while (!common.axes.empty() && !ops::has_shares(program_, at, *rule.row, ir::shards(common, mesh_)))
      common.axes.pop_back();
    return Axes(common.axes);
  }

  bool add_partial(TensorId id, Axes axes) {
    const Axes added = axes - sharding(id).used();
    if (fixed_[id.index()] || added.empty()) return false;
    sharding(id).partial = sharding(id).partial | added;
    return true;
  }

  // The sums that several instructions make in the memory of one state, such as accumulated gradients, are partial over
  // the same axes, since this memory cannot change its sharding. So the axes of each sum are given to the next one, by
  // forward(), and to what it adds up in, the previous sum or the state, by this function.
  bool share_with_state(TensorId result) {
    return is_in_state(result) && add_partial(program_[result].storage, sharding(result).partial);
  }

  bool is_in_state(TensorId id) const {
    return program_[id].storage.valid() && program_[program_.root(id)].kind == ir::TensorKind::state;
  }

  // Error: a tensor of attention is split along the row's index, but the row has no such shares since an attribute, the
  // heads, does not divide. All ranks would compute the products of all heads then. Other ops, such as a gate whose
  // groups do not divide, cost little next to the products and stay whole.
  Status check_divided(const Instruction& at, const Rule& rule) {
    if (ops::op(at.op).kind != ops::Kind::attention) return {};
    const PartitionRow& row = *rule.row;
    std::vector<Entry> entries = split_entries(at.operands, row.operands);
    const std::vector<Entry> results = split_entries(at.results, row.results);
    entries.insert(entries.end(), results.begin(), results.end());
    for (const Entry& entry : entries) {
      const std::int64_t n = ir::shards(split_of(at, entry, rule), mesh_);
      if (ops::has_shares(program_, at, row, n)) continue;
      for (const std::string_view attribute : row.divided)
        if (const std::int64_t value = at.attributes.integer(attribute, 0); value % n != 0)
          return config_error(fmt::format("{} at {}: expected a multiple of {} {}, since {} is {}, found {}", at.op,
                                          at.label, n, attribute, program_.display(entry.tensor),
                                          ir::to_string(program_.type(entry.tensor).shape, sharding(entry.tensor)),
                                          value));
    }
    return {};
  }

  ir::Program program_;
  const std::vector<bool> fixed_;         // by tensor
  std::vector<std::vector<Rule>> rules_;  // by instruction
  const ir::Mesh& mesh_;
};

// Where tokens say which rows of a sum of gradients they add to, as of an embedding, no operand runs along these rows.
// In a state, they are split as the parameter's.
void split_by_tokens(ir::Program& program, const std::vector<bool>& fixed, const ir::Output& gradient) {
  const TensorId sum = program.root(gradient.tensor);
  if (program[sum].kind != ir::TensorKind::state) return;
  for (const Instruction& at : program.instructions)
    for (std::size_t r = 0; r < at.results.size(); ++r) {
      if (program.root(at.results[r]) != sum) continue;
      for (const PartitionRow& row : ops::op(at.op).partition) {
        bool of_operand = false;  // that is not the sum itself
        for (std::size_t i = 0; i < at.operands.size(); ++i)
          of_operand |= ops::is_split(row.operands[i]) && program.root(at.operands[i]) != sum;
        if (!row.in_space() || !ops::is_split(row.results[r]) || of_operand) continue;
        const auto rows = std::size_t(ops::index_of(row.results[r], program.type(sum).shape.rank()));
        for (std::size_t i = 0; i < program.tensors.size(); ++i)
          if (program.root({std::int32_t(i)}) == sum && !fixed[i])
            program.tensors[i].sharding->dimensions[rows] = program[gradient.parameter].sharding->dimensions[rows];
      }
    }
}

}  // namespace

Result<ir::Program> shard(const ir::Program& logical, const ir::Mesh& mesh) {
  ir::Program program = logical;
  const RaggedTensors ragged(logical);
  std::vector<bool> fixed(program.tensors.size());
  for (std::size_t i = 0; i < program.tensors.size(); ++i) {
    Tensor& tensor = program.tensors[i];
    fixed[i] = tensor.sharding.has_value();
    if (!fixed[i]) {
      tensor.sharding = Sharding::whole(std::size_t(tensor.type.shape.rank()));
      continue;
    }
    LANCET_ASSIGN(tensor.sharding, ragged.sharding_on(logical, {std::int32_t(i)}, mesh));
  }
  for (const ir::Output& output : logical.outputs)
    if (output.kind == ir::OutputKind::gradient) split_by_tokens(program, fixed, output);
  return Spreading(std::move(program), std::move(fixed), mesh).run();
}

}  // namespace lancet::passes
