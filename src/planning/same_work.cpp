// The two Programs differ in names, order and parts, so each instruction is described by what a schedule cannot change:
// its op, label and role, the attributes that splitting leaves alone, and the source of each operand (a named tensor,
// or the description and result number of the instruction that made it). Helpers of parts and gradient buckets are
// looked through: their result counts as their operand. The check demands that each instruction of the plan has a twin
// in the model with the same description and sources, that no description of the model is missing, that outputs have
// the same sources, and that the buckets hold as many bytes.
#include "same_work.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "lancet/ir/dependencies.h"
#include "lancet/ops/catalogue.h"
#include "lancet/ops/all_to_all_way.h"

namespace lancet::planning {
namespace {

using ir::Instruction;
using ir::TensorId;

// One line for each named tensor, output and update, to compare and to show.
std::set<std::string> interface_of(const ir::Program& program) {
  std::set<std::string> lines;
  for (const ir::Tensor& tensor : program.tensors)
    if (tensor.number < 0)
      lines.insert(fmt::format("{} @{} : {}{}", ir::name(tensor.kind), tensor.name, ir::to_string(tensor.type),
                               tensor.local ? " local" : ""));
  for (const ir::Output& output : program.outputs)
    lines.insert(fmt::format("output {} : {}", output.name, ir::to_string(program.type(output.tensor))));
  for (const Instruction& instruction : program.instructions)
    for (TensorId id : instruction.writes)
      if (const ir::Tensor& tensor = program[program.root(id)]; tensor.number < 0)
        lines.insert(fmt::format("update of @{}", tensor.name));
  return lines;
}

Status same_interface(const ir::Program& found, const ir::Program& expected) {
  const auto theirs = interface_of(found), mine = interface_of(expected);
  for (const std::string& line : mine)
    if (!theirs.contains(line)) return config_error(fmt::format("expected the model's \"{}\", found none", line));
  for (const std::string& line : theirs)
    if (!mine.contains(line)) return config_error(fmt::format("expected what the model has, found \"{}\"", line));
  return {};
}

// The model's instruction of which this is a part or the whole.
std::string site_of(const Instruction& at) {
  return fmt::format("{} at {} ({})", at.op, at.label.substr(0, at.label.find('/')), ir::name(at.role));
}

// The description that all parts of an instruction share: its site, and the attributes that neither splitting nor the
// choice of the all-to-all's way changes.
std::string work_of(const Instruction& at) {
  const auto is_one_of = [](const auto& names, std::string_view name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  std::string line = site_of(at);
  for (const auto& [name, value] : at.attributes.items()) {
    if (is_one_of(ops::divided_attributes, name) || is_one_of(ops::part_attributes, name)) continue;
    if (name == ops::way_attribute) continue;
    std::visit([&, &name = name](const auto& v) { line += fmt::format(" {}={}", name, v); }, value);
  }
  return line;
}

// The part that an instruction computes, or -1: the whole. A `part` that is no number is ignored: no kernel reads it.
int part_number(const Instruction& at) {
  for (const auto& [name, value] : at.attributes.items())
    if (const auto* number = std::get_if<std::int64_t>(&value); name == "part" && number) return int(*number);
  return -1;
}

// True if the instruction may read results of that part: its own part, or any part for an all-to-all that stays whole,
// which reads the routes of all parts.
bool takes_part(const Instruction& at, int part) {
  const int own = part_number(at);
  return own == part || (own < 0 && ops::kind(at) == ops::Kind::all_to_all);
}

// The source of each tensor of a Program, as text.
class Sources {
 public:
  explicit Sources(const ir::Program& program)
      : program_(program), is_bucket_(ir::gradient_all_reduces(program)), makers_(program.tensors.size()) {
    for (std::size_t i = 0; i < program.instructions.size(); ++i) {
      const auto& results = program.instructions[i].results;
      for (std::size_t r = 0; r < results.size(); ++r) {
        Maker maker{int(i), int(r), part_number(program.instructions[i])};
        makers_[results[r].index()] = maker;
        maker.part = -1;
        const ir::Tensor& tensor = program[results[r]];  // the source of a whole tensor is that of its first slice
        if (tensor.slice && makers_[tensor.storage.index()].instruction < 0) makers_[tensor.storage.index()] = maker;
      }
    }
  }

  bool is_bucket(std::size_t instruction) const { return is_bucket_[instruction]; }

  // An instruction that a schedule adds or changes: a helper of parts, or an all-reduce of gradients.
  bool is_helper(std::size_t instruction) const {
    return is_bucket(instruction) || ops::kind(program_.instructions[instruction]) == ops::Kind::part_helper;
  }

  // "@h.0.ln_1.weight", or "layer_norm at h.0.ln_1 (forward), result 0".
  std::string of(TensorId id) const {
    if (program_[id].number < 0) return "@" + program_[id].name;
    const Maker maker = makers_[id.index()];
    if (maker.instruction < 0) return program_[id].storage.valid() ? of(program_[id].storage) : "nothing";
    const auto made_by = std::size_t(maker.instruction);
    const Instruction& at = program_.instructions[made_by];
    if (is_helper(made_by)) return of(at.operands[is_bucket(made_by) ? std::size_t(maker.result) : 0]);
    return fmt::format("{}, result {}", site_of(at), maker.result);
  }

  int part_of(TensorId id) const { return program_[id].number < 0 ? -1 : makers_[id.index()].part; }

  // The sources of an instruction's operands. Left out are results of earlier parts of the same instruction, and
  // operands of an all-to-all over several parts that repeat those of the first part. The operands of an op that adds
  // any number of them are sorted, since buckets may order them differently.
  std::vector<std::string> of(const Instruction& at) const {
    std::vector<std::string> sources;
    const std::string own = site_of(at) + ",";
    for (std::size_t i = 0; i < at.operands.size(); ++i) {
      std::string source = of(at.operands[i]);
      if (source.starts_with(own)) continue;
      if (const int part = part_of(at.operands[i]); part >= 0 && !takes_part(at, part))
        source += fmt::format(", part {}", part);
      if (ops::kind(at) == ops::Kind::all_to_all && i > 2 && source == sources[2 - i % 2]) continue;
      sources.push_back(std::move(source));
    }
    if (ops::op(at.op).most == ops::any_number && ops::kind(at) != ops::Kind::all_to_all)
      std::sort(sources.begin(), sources.end());
    return sources;
  }

 private:
  struct Maker {
    int instruction = -1, result = 0;
    int part = -1;  // -1: the whole
  };
  const ir::Program& program_;
  const std::vector<bool> is_bucket_;  // by instruction
  std::vector<Maker> makers_;  // by tensor
};

using Works = std::map<std::string, std::vector<std::vector<std::string>>>;  // work_of -> sources of each instruction

Works works_of(const ir::Program& program, const Sources& sources) {
  Works works;
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& at = program.instructions[i];
    if (!sources.is_helper(i)) works[work_of(at)].push_back(sources.of(at));
  }
  return works;
}

Error other_operands(std::size_t instruction, const std::string& work, const std::vector<std::string>& found,
                     const std::vector<std::string>& expected) {
  const auto [theirs, mine] = std::mismatch(found.begin(), found.end(), expected.begin(), expected.end());
  return config_error(fmt::format("instruction [{}], {}: expected as operand {} {}, found {}", instruction, work,
                                  theirs - found.begin(), mine == expected.end() ? "nothing" : *mine,
                                  theirs == found.end() ? "nothing" : *theirs));
}

Status same_instructions(const ir::Program& found, const ir::Program& expected) {
  const Sources found_sources(found), expected_sources(expected);
  const Works mine = works_of(expected, expected_sources), theirs = works_of(found, found_sources);
  for (const auto& [work, sources] : mine)
    if (!theirs.contains(work)) return config_error(fmt::format("expected the model's {}, found none", work));
  for (std::size_t i = 0; i < found.instructions.size(); ++i) {
    const Instruction& at = found.instructions[i];
    if (found_sources.is_helper(i)) continue;
    const std::string work = work_of(at);
    const auto known = mine.find(work);
    if (known == mine.end())
      return config_error(fmt::format("instruction [{}]: expected what the model has, found {}", i, work));
    const std::vector<std::string> sources = found_sources.of(at);
    if (std::find(known->second.begin(), known->second.end(), sources) == known->second.end())
      return other_operands(i, work, sources, known->second.front());
  }
  for (const ir::Output& output : expected.outputs) {
    const std::string wanted = expected_sources.of(output.tensor), given = found_sources.of(found.output(output.name));
    if (wanted != given)
      return config_error(fmt::format("output {}: expected {}, found {}", output.name, wanted, given));
  }
  return {};
}

std::int64_t reduced_bytes(const ir::Program& program) {
  std::int64_t bytes = 0;
  const std::vector<bool> is_bucket = ir::gradient_all_reduces(program);
  for (std::size_t i = 0; i < is_bucket.size(); ++i)
    for (std::size_t o = 0; is_bucket[i] && o < program.instructions[i].operands.size(); ++o)
      bytes += ir::bytes(program.type(program.instructions[i].operands[o]));
  return bytes;
}

}  // namespace

Status same_work(const ir::Program& found, const ir::Program& expected) {
  LANCET_TRY(same_interface(found, expected));
  LANCET_TRY(same_instructions(found, expected));
  const std::int64_t theirs = reduced_bytes(found), mine = reduced_bytes(expected);
  if (theirs != mine)
    return config_error(fmt::format("expected all-reduces of {} bytes of gradients, found {}", mine, theirs));
  return {};
}

}  // namespace lancet::planning
