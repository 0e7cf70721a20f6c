#include "lancet/schedule/partition/cut.h"

#include <algorithm>
#include <iterator>
#include <limits>

#include "lancet/ops/catalogue.h"
#include "split_facts.h"

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

namespace {

using ir::Instruction;
using ir::TensorId;

// Whether the instruction needs the operand whole though it is split itself, or is whole.
bool reads_whole(const Instruction& at, std::size_t operand, const Split& split, std::size_t instruction) {
  if (split.parts[instruction] == 1) return !(is_all_to_all(at) && operand > 0);  // filled slots and rows come in parts
  const ops::Axis axis = split.rows[instruction]->operands[operand];
  return axis == ops::none || axis == ops::accumulated;
}

}  // namespace

bool is_all_to_all(const Instruction& at) { return ops::kind(at) == ops::Kind::all_to_all; }

std::vector<bool> whole_users(const ir::Program& program, const Split& split) {
  std::vector<int> made_in(program.tensors.size(), 1), pipeline_of(program.tensors.size());
  std::vector<bool> whole(program.tensors.size());
  const bool copies = !split.pipeline.empty();
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& at = program.instructions[i];
    const int pipeline = copies ? split.pipeline[i] : 0;
    for (std::size_t o = 0; o < at.operands.size(); ++o) {
      const std::size_t id = at.operands[o].index();
      if (reads_whole(at, o, split, i) || split.parts[i] != made_in[id] || pipeline != pipeline_of[id])
        whole[id] = true;
    }
    for (TensorId id : at.results) {
      made_in[id.index()] = split.parts[i];
      pipeline_of[id.index()] = pipeline;
    }
  }
  if (split.all_helpers) whole.assign(whole.size(), true);
  for (const ir::Output& output : program.outputs) whole[output.tensor.index()] = true;
  if (copies) return whole;
  for (std::size_t i = whole.size(); i-- > 0;)  // a tensor that reuses another's memory needs it whole
    if (const TensorId storage = program.tensors[i].storage; whole[i] && storage.valid()) whole[storage.index()] = true;
  return whole;
}

std::vector<TensorId> choices_of(const ir::Program& program, const std::vector<bool>& per_token, TensorId filled) {
  for (const Instruction& at : program.instructions) {
    if (std::ranges::count(at.operands, filled) == 0) continue;
    std::vector<TensorId> choices;
    std::ranges::copy_if(at.operands, std::back_inserter(choices), [&](TensorId id) {
      return bool(per_token[id.index()]) && program.type(id).dtype == DType::i32;
    });
    if (!choices.empty()) return choices;
  }
  LANCET_CHECK(false, "no tokens fill the slots {}", program.display(filled));
  return {};
}

const Instruction& toucher_of(const ir::Program& program, TensorId filled, std::string_view attribute) {
  const auto found = std::ranges::find_if(program.instructions, [&](const Instruction& at) {
    return at.attributes.has(attribute) &&
           (std::ranges::count(at.operands, filled) > 0 || std::ranges::count(at.results, filled) > 0);
  });
  LANCET_CHECK(found != program.instructions.end(), "nothing reads the filled slots {} with {}",
               program.display(filled), attribute);
  return *found;
}

// Dynamic programme over prefixes: best[n] is the shortest time T(n) of the first n groups with the range that ends at
// n. Following the last ranges back from n = groups gives the ranges. Strict comparison, with i and the parts in
// ascending order, breaks ties for the longest range first and then for the fewest parts.
Ranges choose_ranges(int groups, int max_range, std::span<const int> parts, const RangeCost& cost) {
  struct Best {
    double ms = std::numeric_limits<double>::infinity();
    Range last;
  };
  std::vector<Best> best(std::size_t(groups) + 1);
  best[0].ms = 0;
  for (int n = 1; n <= groups; ++n)
    for (int i = std::max(0, n - max_range); i < n; ++i)
      for (int k : parts) {
        const double ms = best[std::size_t(i)].ms + cost(i, n, k);
        if (ms < best[std::size_t(n)].ms) best[std::size_t(n)] = {ms, {i, n, k}};
      }
  Ranges result{{}, best[std::size_t(groups)].ms};
  for (int n = groups; n > 0; n = best[std::size_t(n)].last.begin) result.ranges.push_back(best[std::size_t(n)].last);
  std::reverse(result.ranges.begin(), result.ranges.end());
  return result;
}

}  // namespace lancet::schedule
