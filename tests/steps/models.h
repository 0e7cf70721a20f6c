// Forward Programs for the passes' tests.
#pragma once
#include <fmt/format.h>

#include <map>
#include <string>
#include <vector>

#include "golden/golden.h"
#include "steps/support.h"

namespace lancet::test {

// One matrix is both embedding and head: two dWs add to one gradient.
inline constexpr std::string_view tied = R"(program tied
input @tokens : i32[2,3]
parameter @wte : f32[11,4]
parameter @wpe : f32[5,4]
input @targets : i32[2,3]
%0 : f32[2,3,4] = embedding(@tokens, @wte, @wpe)  # compute forward wte
%1 : f32[2,3,11] = linear(%0, @wte)  # compute forward head
%2 : f32[1], %3 : f32[2,3,11] in %1 = cross_entropy_train(%1, @targets) {vocabulary=11, total_tokens=6}  # compute forward loss
output loss = %2
)";

// The same with a batch that ranks split.
inline ir::Program tied_batch(std::int64_t batch) {
  std::string text(tied);
  for (const auto& [from, to] : {std::pair{"i32[2,", fmt::format("i32[{}{{data,expert}},", batch)},
                                 std::pair{"f32[2,", fmt::format("f32[{},", batch)}})
    for (std::size_t at = 0; (at = text.find(from, at)) != text.npos; at += to.size())
      text.replace(at, std::string_view(from).size(), to);
  return program(text);
}

// One MoE layer between an embedding and a head, with the batch of two ranks.
inline constexpr std::string_view moe = R"(program moe
input @tokens : i32[4{data,expert},4]
parameter @wte.weight : bf16[11,8]
parameter @wpe.weight : bf16[5,8]
parameter @gate.weight : f32[4,8]
parameter @fc.weight : bf16[4{expert},16,8]
parameter @fc.bias : f32[4{expert},16]
parameter @proj.weight : bf16[4{expert},8,16]
parameter @proj.bias : f32[4{expert},8]
input @targets : i32[4{data,expert},4]
%0 : bf16[4,4,8] = embedding(@tokens, @wte.weight, @wpe.weight)  # compute forward wte
%1 : f32[4,4,4] = router(%0, @gate.weight)  # compute forward gate
%2 : i32[16,1], %18 : f32[16,1], %3 : f32[4,4,4] = top_k(%1) {k=1}  # compute forward gate
%17 : i32[16,1], %19 : i32[2,4], %20 : i32[4,2], %4 : f32[4,4] = slots(%2) {capacity=3, groups=2, experts=4, load_groups=1}  # compute forward gate
%5 : f32[2] = aux_loss(%3, %4) {load_tokens=8, total_tokens=16, coefficient=0.01}  # compute forward aux
%7 : bf16[4,6,8] = dispatch(%0, %2, %17, %20) {slots=6}  # compute forward dispatch
%9 : bf16[4,6,16] = expert_linear(%7, @fc.weight, @fc.bias, %20)  # compute forward fc
%10 : bf16[4,6,16] = gelu(%9, %20)  # compute forward gelu
%11 : bf16[4,6,8] = expert_linear(%10, @proj.weight, @proj.bias, %20)  # compute forward proj
%13 : bf16[4,4,8] = combine(%11, %2, %17, %18, %20) {batch=4}  # compute forward combine
%14 : bf16[4,4,11] = linear(%13, @wte.weight)  # compute forward head
%15 : f32[1], %16 : bf16[4,4,11] in %14 = cross_entropy_train(%14, @targets) {vocabulary=11, total_tokens=16}  # compute forward loss
output loss = %15
output aux.moe = %5
output load.moe = %4
)";

// The small GPT-2 MoE with the batch of 1 or 2 ranks (tests/model checks that the model makes it).
inline ir::Program model(int ranks) {
  return program(read_golden(ranks == 1 ? "gpt2_moe_1_rank.ir" : "gpt2_moe_2_ranks.ir"));
}

// Appends `extra` copies of blocks 2 and 3 (one MoE, one dense); each reads the results of the pair before it.
inline ir::Program grown(const ir::Program& p, int extra) {
  ir::Program result = p;
  std::vector<ir::Instruction> before, pair, after;
  for (const ir::Instruction& i : p.instructions) {
    const bool in_pair = i.label.starts_with("h.2.") || i.label.starts_with("h.3.");
    (in_pair ? pair : pair.empty() ? before : after).push_back(i);
  }
  // Maps values of blocks 0 and 1 to the corresponding values of blocks 2 and 3.
  std::map<std::string, ir::TensorId> in_pair;
  auto key = [](const ir::Instruction& i, std::size_t result, int shift) {
    return std::to_string(i.label[2] - '0' + shift) + i.label.substr(3) + " " + i.op + " " + std::to_string(result);
  };
  for (const ir::Instruction& i : pair)
    for (std::size_t r = 0; r < i.results.size(); ++r) in_pair[key(i, r, 0)] = i.results[r];
  std::map<std::int32_t, ir::TensorId> counterpart;
  for (const ir::Instruction& i : before)
    if (i.label.starts_with("h."))
      for (std::size_t r = 0; r < i.results.size(); ++r)
        if (auto it = in_pair.find(key(i, r, 2)); it != in_pair.end()) counterpart[i.results[r].value] = it->second;

  result.instructions = before;
  result.instructions.insert(result.instructions.end(), pair.begin(), pair.end());
  std::map<std::int32_t, ir::TensorId> now;  // values of blocks 2 and 3 -> of the latest pair
  for (int copy = 1; copy <= extra; ++copy) {
    std::map<std::int32_t, ir::TensorId> next;
    auto rename = [&](std::string name) {
      return name.starts_with("h.2.") || name.starts_with("h.3.")
                 ? "h." + std::to_string(name[2] - '0' + 2 * copy) + name.substr(3)
                 : name;
    };
    auto mapped = [&](ir::TensorId id) -> ir::TensorId {
      const ir::Tensor tensor = p[id];
      if (tensor.kind == ir::TensorKind::parameter) {
        const ir::TensorId found = result.find(rename(tensor.name));
        return found.valid() ? found : result.add_named(tensor.kind, rename(tensor.name), tensor.type, tensor.sharding);
      }
      if (const auto it = next.find(id.value); it != next.end()) return it->second;
      const auto it = counterpart.find(id.value);
      REQUIRE(it != counterpart.end());
      const auto latest = now.find(it->second.value);
      return latest == now.end() ? it->second : latest->second;
    };
    for (const ir::Instruction& i : pair) {
      std::vector<ir::TensorId> operands;
      for (ir::TensorId id : i.operands) operands.push_back(mapped(id));
      const auto results = ops::append(result, i.op, operands, i.attributes, i.role, rename(i.label));
      for (std::size_t r = 0; r < results.size(); ++r) next[i.results[r].value] = results[r];
    }
    now = next;
  }
  for (ir::Instruction i : after) {
    for (ir::TensorId& id : i.operands)
      if (const auto it = now.find(id.value); it != now.end()) id = it->second;
    result.instructions.push_back(i);
  }
  return program(ir::print(result));
}

}  // namespace lancet::test
