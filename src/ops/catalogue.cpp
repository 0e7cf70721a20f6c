#include "lancet/ops/catalogue.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <set>
#include <unordered_map>

#include "lancet/base/check.h"
#include "lancet/ir/plan.h"
#include "lancet/ir/program.h"
#include "signature.h"
#include "tables.h"

namespace lancet::ops {
namespace {

std::string describe(std::span<const TensorType> types) {
  std::vector<std::string> texts;
  for (const TensorType& type : types) texts.push_back(ir::to_string(type));
  return fmt::format("({})", fmt::join(texts, ", "));
}

std::vector<TensorType> types_of(const ir::Program& program, std::span<const TensorId> ids) {
  std::vector<TensorType> types;
  for (TensorId id : ids) types.push_back(program.type(id));
  return types;
}

Result<std::vector<TensorType>> infer(const OpDef& op, const OpInput& input) {
  const int count = static_cast<int>(input.operands.size());
  if (count < op.required || count > op.most)
    return internal_error(fmt::format("{} takes {} to {} operands, found {}", op.name, op.required, op.most, count));
  try {
    return op.infer(input);
  } catch (const InternalError& error) {  // a plan from a file may lack an attribute, or have one of another type
    const std::string what = error.what();
    return internal_error(what.substr(0, what.find(" (")));
  }
}

// The index of the operand whose memory a result shares, or -1.
int storage_operand(const OpDef& op, int result, int operands) {
  if (op.in_place) return result;
  for (const Alias& alias : op.aliases)
    if (alias.result == result && alias.operand < operands) return alias.operand;
  return -1;
}

Status check(const ir::Program& program, const ir::Instruction& instruction) {
  const OpDef* op = find_op(instruction.op);
  auto at = [&](std::string_view what) {
    return internal_error(fmt::format("{}, in: {}", what, print(program, instruction)));
  };
  if (!op) return at("no such op");
  if (instruction.stream != op->stream)
    return at(fmt::format("expected it on the stream {}, found {}", name(op->stream), name(instruction.stream)));
  if (ir::is_repeat(instruction)) {
    if (instruction.op != "repeat") return at("expected a body of a repeat alone");
    for (const ir::Instruction& part : instruction.body) LANCET_TRY(check(program, part));
    return {};
  }
  for (int operand : op->writes)
    if (operand < int(instruction.operands.size()) &&
        !instruction.writes_operand(instruction.operands[std::size_t(operand)]))
      return at(fmt::format("expected operand {} to be updated in place (&)", operand));
  const auto operands = types_of(program, instruction.operands);
  auto results = infer(*op, {operands, instruction.attributes});
  if (!results.ok()) return at(results.error().message);
  if (*results != types_of(program, instruction.results)) return at("expected results " + describe(*results));
  for (std::size_t i = 0; i < instruction.results.size(); ++i) {
    const int in = storage_operand(*op, int(i), int(instruction.operands.size()));
    const TensorId result = instruction.results[i];
    if (in >= 0 && program[result].storage != instruction.operands[std::size_t(in)] &&
        program.region(result) != program.region(instruction.operands[std::size_t(in)]))
      return at(fmt::format("result {} must live in operand {}", i, in));
    if (in < 0 && program[result].storage.valid() && !program[result].slice)
      return at(fmt::format("result {} must not take the place of another tensor", i));
  }
  return {};
}

// The type of one of n equal parts of a tensor, by its entry in a row; none if n does not divide the axis.
std::optional<TensorType> type_of_share(TensorType type, Axis axis, const ir::Blocks& blocks, std::int64_t n) {
  if (!is_split(axis)) return type;
  const int index = index_of(axis, type.shape.rank());
  if (index >= type.shape.rank() || index < 0) return std::nullopt;
  if (const auto unit = blocks.unit_of(type.shape[index]); !unit || *unit % n != 0) return std::nullopt;
  type.shape.set(index, type.shape[index] / n);
  return type;
}

std::optional<std::vector<TensorType>> types_of_share(const ir::Program& program, std::span<const TensorId> ids,
                                                      std::span<const Axis> entries, const ir::Blocks& packed_in,
                                                      std::int64_t n) {
  if (ids.size() > entries.size()) return std::nullopt;
  std::vector<TensorType> types;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto type = type_of_share(program.type(ids[i]), entries[i], entries[i] == packed ? packed_in : 1, n);
    if (!type) return std::nullopt;
    types.push_back(*type);
  }
  return types;
}

}  // namespace

std::span<const OpDef* const> all_ops() {
  static const std::vector<OpDef> ops = [] {
    std::vector<OpDef> completed;
    for (std::span<const OpDef> folder : op_folders()) completed.insert(completed.end(), folder.begin(), folder.end());
    for (OpDef& op : completed) try {
        complete(op);
      } catch (const InternalError& error) {
        throw InternalError(fmt::format("op {}: {}", op.name, error.what()));
      }
    std::ranges::sort(completed, {}, &OpDef::name);
    return completed;
  }();
  static const std::vector<const OpDef*> table = [] {
    std::vector<const OpDef*> pointers;
    for (const OpDef& op : ops) pointers.push_back(&op);
    return pointers;
  }();
  return table;
}

const OpDef* find_op(std::string_view name) {
  static const auto by_name = [] {
    std::unordered_map<std::string_view, const OpDef*> ops;
    for (const OpDef* op : all_ops()) ops.emplace(op->name, op);
    return ops;
  }();
  const auto found = by_name.find(name);
  return found == by_name.end() ? nullptr : found->second;
}

const OpDef& op(std::string_view name) {
  const OpDef* found = find_op(name);
  LANCET_CHECK(found, "no op is called {}", name);
  return *found;
}

const CpuKernel* find_cpu_kernel(std::string_view op) {
  static const auto folders = cpu_folders();
  for (std::span<const CpuKernel> folder : folders)
    for (const CpuKernel& kernel : folder)
      if (kernel.op == op) return &kernel;
  return nullptr;
}

bool moves(const ir::Instruction& instruction, Axis axis) {
  if (kind(instruction) != Kind::collective) return false;
  return std::ranges::any_of(std::array{"axis", "from", "to"}, [&](std::string_view dimension) {
    return instruction.attributes.has(dimension) && instruction.attributes.integer(dimension) == axis;
  });
}

bool is_divided(const ir::Instruction& instruction, std::string_view attribute) {
  const OpDef* found = find_op(instruction.op);
  return found && std::ranges::any_of(found->partition, [&](const PartitionRow& row) {
           return row.in_time() && std::ranges::count(row.divided, attribute) > 0;
         });
}

bool has_one_extent(std::span<const TensorType> operands, std::span<const TensorType> results,
                    const PartitionRow& row) {
  std::set<std::int64_t> extents;
  auto add = [&](std::span<const TensorType> types, std::span<const Axis> entries) {
    for (std::size_t i = 0; i < std::min(types.size(), entries.size()); ++i) {
      const int d = is_split(entries[i]) ? index_of(entries[i], types[i].shape.rank()) : -1;
      if (d >= 0 && d < types[i].shape.rank()) extents.insert(types[i].shape[d]);
    }
  };
  add(operands, row.operands);
  add(results, row.results);
  return extents.size() == 1;
}

ir::Blocks blocks_of(const PartitionRow& row, Axis axis, const Attributes& attributes) {
  if (axis != packed || row.packed.empty()) return 1;
  std::vector<std::int64_t> widths;
  for (const BlockWidth& width : row.packed)
    widths.push_back(width.attribute.empty() ? width.constant : attributes.integer(width.attribute, 1));
  return ir::Blocks::of(std::move(widths));
}

Attributes attributes_of_share(const PartitionRow& row, const Attributes& attributes, std::int64_t n) {
  Attributes share = attributes;
  for (std::string_view name : row.divided)
    if (share.has(name)) share.set(name, share.integer(name) / n);
  return share;
}

bool has_shares(const ir::Program& program, const ir::Instruction& instruction, const PartitionRow& row,
                std::int64_t n) {
  const ir::Blocks blocks = blocks_of(row, packed, instruction.attributes);
  const auto operands = types_of_share(program, instruction.operands, row.operands, blocks, n);
  const auto results = types_of_share(program, instruction.results, row.results, blocks, n);
  if (!operands || !results) return false;
  const Attributes attributes = attributes_of_share(row, instruction.attributes, n);
  const auto made = infer(op(instruction.op), {*operands, attributes});
  return made.ok() && *made == *results;
}

std::vector<TensorId> append(ir::Program& program, std::string_view name, std::vector<TensorId> operands,
                             Attributes attributes, ir::Role role, std::string label) {
  const OpDef& def = op(name);
  const auto types = types_of(program, operands);
  auto results = infer(def, {types, attributes});
  LANCET_CHECK(results.ok(), "{} at {}: {}, found {}", name, label, results.error().message, describe(types));
  ir::Instruction instruction{std::string(name),     std::move(operands), {},   {},
                              std::move(attributes), def.stream,          role, std::move(label)};
  for (std::size_t i = 0; i < results->size(); ++i) {
    const int in = storage_operand(def, int(i), int(instruction.operands.size()));
    const TensorId storage = in < 0 ? TensorId{} : instruction.operands[std::size_t(in)];
    instruction.results.push_back(program.add_value((*results)[i], storage));
  }
  for (int operand : def.writes)
    if (operand < int(instruction.operands.size()))
      instruction.writes.push_back(instruction.operands[std::size_t(operand)]);
  program.instructions.push_back(instruction);
  return instruction.results;
}

Status verify(const ir::Program& program) {
  LANCET_TRY(ir::verify(program));
  for (const ir::Instruction& instruction : program.instructions) LANCET_TRY(check(program, instruction));
  return {};
}

std::vector<bool> find_counted(const ir::Program& program) {
  std::vector<bool> counted(program.tensors.size());
  for (const ir::Instruction& instruction : program.instructions)
    for (const int operand : op(instruction.op).counted)
      if (operand < int(instruction.operands.size()))
        counted[instruction.operands[std::size_t(operand)].index()] = true;
  return counted;
}

Work work(const ir::Program& program, const ir::Instruction& instruction) {
  const OpDef& def = op(instruction.op);
  const auto operands = types_of(program, instruction.operands);
  if (def.work) return def.work({operands, instruction.attributes});
  Work result;
  for (const TensorType& type : operands) result.bytes += double(ir::bytes(type));
  for (const TensorType& type : types_of(program, instruction.results)) result.bytes += double(ir::bytes(type));
  return result;
}

}  // namespace lancet::ops
