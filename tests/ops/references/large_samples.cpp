// Samples that are too large to describe an op, for tests of its parts, threads and blocks.
#include <map>

#include "ops/references/harness.h"

namespace lancet::test {
namespace {

using ops::Fill;
using ops::Sample;

constexpr DType f32 = DType::f32, i32 = DType::i32;

const ir::Attributes routed{{"capacity", 40}, {"slots", 40}, {"tokens", 150}, {"batch", 3}, {"experts", 5}};

// The operands that describe a decision about `tokens` tokens: their experts, slots and weights, and the rows of 5
// experts.
ops::SampleOperand expert(std::int64_t tokens, std::int64_t choices = 1) {
  return {{i32, {tokens, choices}}, Fill::expert};
}
const ops::SampleOperand slot{{i32, {150, 1}}, Fill::slot}, weight{{f32, {150, 1}}, Fill::weight},
    rows{{i32, {5, 2}}, Fill::rows}, three_slots{{i32, {150, 3}}, Fill::slot},
    three_weights{{f32, {150, 3}}, Fill::weight};

void add_dense(std::multimap<std::string_view, Sample>& table, DType t) {
  table.insert({
      {"add_layer_norm", {{{{t, {4, 50, 257}}}, {{t, {4, 50, 257}}}, {{f32, {257}}}, {{f32, {257}}}}, {{"eps", 1e-5}}}},
      {"attention", {{{{t, {2, 70, 192}}}}, {{"heads", 2}}}},
      {"attention", {{{{t, {2, 70, 384}}}}, {{"heads", 2}, {"group", 4}}}},
      {"attention", {{{{t, {2, 35, 384}}}, {{t, {2, 105, 384}}}}, {{"heads", 2}, {"group", 4}}}},
      {"attention", {{{{t, {1, 64, 192}}}, {{t, {1, 64, 192}}}}, {{"heads", 2}}}},
      {"attention_dx",
       {{{{t, {3, 70, 64}}}, {{t, {3, 70, 192}}}, {{t, {3, 70, 64}}}, {{f32, {3, 2, 70}}, Fill::positive}},
        {{"heads", 2}}}},
      {"attention_dx",
       {{{{t, {2, 35, 64}}},
         {{t, {2, 35, 128}}},
         {{t, {2, 35, 64}}},
         {{f32, {2, 2, 35}}, Fill::positive},
         {{t, {2, 105, 128}}},
         {{f32, {2, 105, 64}}}},
        {{"heads", 1}, {"group", 2}}}},
      {"attention_dx",
       {{{{t, {2, 70, 64}}}, {{t, {2, 70, 128}}}, {{t, {2, 70, 64}}}, {{f32, {2, 2, 70}}, Fill::positive}},
        {{"heads", 1}, {"group", 2}}}},
      {"attention_dx",
       {{{{t, {3, 70, 64}}}, {{t, {3, 70, 192}}}, {{t, {3, 70, 64}}}, {{f32, {3, 2, 70}}, Fill::positive}},
        {{"heads", 2}, {"deterministic", 0}}}},
      {"cross_entropy_train",
       {{{{t, {4, 40, 300}}}, {{i32, {4, 40}}, Fill::tokens}}, {{"vocabulary", 290}, {"total_tokens", 160}}}},
      {"embedding", {{{{i32, {4, 50}}, Fill::tokens}, {{t, {90, 64}}}, {{t, {64, 64}}}}, {{"vocabulary", 90}}}},
      {"embedding",
       {{{{i32, {1, 50}}, Fill::tokens}, {{t, {90, 64}}}, {{t, {64, 64}}}}, {{"vocabulary", 90}, {"before", 14}}}},
      {"embedding_dw", {{{{t, {4, 50, 64}}}, {{i32, {4, 50}}, Fill::tokens}}, {{"vocabulary", 90}}}},
      {"gelu", {{{{t, {4, 60, 333}}}}, {}}},
      {"layer_norm", {{{{t, {4, 51, 256}}}, {{f32, {256}}, Fill::positive}, {{f32, {256}}}}, {{"eps", 1e-5}}}},
      {"layer_norm_dw", {{{{t, {4, 51, 256}}}, {{t, {4, 51, 256}}}, {{f32, {4, 51, 2}}, Fill::positive}}, {}}},
      {"layer_norm_dx",
       {{{{t, {4, 51, 256}}}, {{t, {4, 51, 256}}}, {{f32, {256}}}, {{f32, {4, 51, 2}}, Fill::positive}}, {}}},
      {"linear", {{{{t, {4, 60, 300}}}, {{t, {130, 300}}}, {{f32, {130}}}}, {}}},
      {"linear_gelu", {{{{t, {4, 60, 300}}}, {{t, {136, 300}}}, {{f32, {136}}}}, {}}},
      {"linear_dx_gelu", {{{{t, {4, 60, 300}}}, {{t, {300, 136}}}, {{t, {4, 60, 136}}}}, {}}},
      {"logit_stats", {{{{t, {4, 40, 300}}}, {{i32, {4, 40}}, Fill::tokens}}, {{"vocabulary", 290}, {"blocks", 3}}}},
      {"logit_stats_dx",
       {{{{f32, {3, 4, 40, 2}}}, {{t, {4, 40, 300}}}, {{i32, {4, 40}}, Fill::tokens}, {{f32, {3, 4, 40, 2}}}},
        {{"vocabulary", 290}}}},
      {"linear_dw", {{{{t, {4, 90, 130}}}, {{t, {4, 90, 75}}}}, {{"bias", 1}}}},
      {"linear_dx", {{{{t, {4, 60, 300}}}, {{t, {300, 130}}}}, {}}},
      {"one_summand", {{{{t, {4, 90, 137}}}}, {{"axes", "tensor"}}}},
      {"take_shard", {{{{t, {6, 90, 138}}}}, {{"axes", "tensor"}, {"shards", 3}, {"axis", 2}, {"blocks", 2}}}},
      {"take_shard", {{{{t, {12, 90, 48}}}}, {{"axes", "tensor"}, {"shards", 4}, {"axis", 0}}}},
      {"add_rms_norm", {{{{t, {4, 50, 257}}}, {{t, {4, 50, 257}}}, {{f32, {257}}}}, {{"eps", 1e-6}}}},
      {"rms_norm", {{{{t, {4, 51, 256}}}, {{f32, {256}}, Fill::positive}}, {{"eps", 1e-6}}}},
      {"rms_norm_dw", {{{{t, {4, 51, 256}}}, {{t, {4, 51, 256}}}, {{f32, {4, 51, 1}}, Fill::positive}}, {}}},
      {"rms_norm_dx",
       {{{{t, {4, 51, 256}}}, {{t, {4, 51, 256}}}, {{f32, {256}}}, {{f32, {4, 51, 1}}, Fill::positive}}, {}}},
      {"sigmoid_gate", {{{{t, {4, 60, 1333}}}, {{t, {4, 60, 1}}}}, {}}},
      {"sigmoid_gate_dgate", {{{{t, {4, 60, 1333}}}, {{t, {4, 60, 1333}}}, {{t, {4, 60, 1}}}}, {}}},
      {"swiglu", {{{{t, {4, 60, 666}}}}, {}}},
      {"swiglu_dx", {{{{t, {4, 60, 333}}}, {{t, {4, 60, 666}}}}, {}}},
      {"rotate", {{{{t, {2, 70, 448}}}}, {{"heads", 1}, {"group", 5}, {"head_dim", 64}, {"theta", 10000}}}},
      {"rotate",
       {{{{t, {2, 70, 320}}}, {{f32, {80}}}, {{f32, {80}}}},
        {{"heads", 1}, {"group", 2}, {"head_dim", 80}, {"theta", 1e6}, {"eps", 1e-6}}}},
      {"rotate_dx",
       {{{{t, {2, 70, 320}}}, {{t, {2, 70, 320}}}, {{f32, {80}}}, {{f32, {80}}}},
        {{"heads", 1}, {"group", 2}, {"head_dim", 80}, {"theta", 1e6}, {"eps", 1e-6}}}},
      {"rotate_dw",
       {{{{t, {3, 70, 384}}}, {{t, {3, 70, 384}}}},
        {{"heads", 1}, {"group", 4}, {"head_dim", 64}, {"theta", 1e6}, {"eps", 1e-6}}}},
      {"wide_norm_squares", {{{{t, {2, 70, 1200}}}}, {{"heads", 5}, {"head_dim", 80}}}},
      {"wide_norm_squares_dx", {{{{f32, {2, 70, 2}}}, {{t, {2, 70, 1200}}}}, {{"heads", 5}, {"head_dim", 80}}}},
      {"wide_norm",
       {{{{t, {2, 70, 1200}}}, {{f32, {400}}}, {{f32, {400}}}, {{f32, {2, 70, 2}}, Fill::positive}},
        {{"heads", 5}, {"head_dim", 80}, {"all_heads", 5}, {"eps", 1e-5}}}},
      {"wide_norm_dx",
       {{{{t, {2, 70, 1200}}},
         {{t, {2, 70, 1200}}},
         {{f32, {400}}},
         {{f32, {400}}},
         {{f32, {2, 70, 2}}, Fill::positive}},
        {{"heads", 5}, {"head_dim", 80}, {"all_heads", 5}, {"eps", 1e-5}}}},
      {"wide_norm_dw",
       {{{{t, {2, 70, 1200}}},
         {{t, {2, 70, 1200}}},
         {{f32, {400}}},
         {{f32, {400}}},
         {{f32, {2, 70, 2}}, Fill::positive}},
        {{"heads", 5}, {"head_dim", 80}, {"all_heads", 5}, {"eps", 1e-5}}}},
      {"router", {{{{t, {4, 70, 200}}}, {{f32, {8, 200}}}}, {}}},
      {"router_dw", {{{{f32, {4, 70, 8}}}, {{t, {4, 70, 200}}}}, {}}},
  });
}

void add_moe(std::multimap<std::string_view, Sample>& table, DType t) {
  table.insert({
      {"all_to_all", {{{{t, {5, 40, 96}}}, rows, rows}, routed}},
      {"combine", {{{{t, {5, 40, 203}}}, expert(150), slot, weight, rows}, routed}},
      {"combine_dx", {{{{t, {3, 50, 203}}}, {{t, {5, 40, 203}}}, expert(150), slot, weight, rows}, routed}},
      {"combine", {{{{t, {5, 40, 1203}}}, expert(150, 3), three_slots, three_weights, rows}, routed}},
      {"combine_dx",
       {{{{t, {3, 50, 203}}}, {{t, {5, 40, 203}}}, expert(150, 3), three_slots, three_weights, rows}, routed}},
      {"dispatch", {{{{t, {3, 50, 203}}}, expert(150, 3), three_slots, rows}, routed}},
      {"dispatch_dx", {{{{t, {5, 40, 1203}}}, expert(150, 3), three_slots}, routed}},
      {"dispatch", {{{{t, {3, 50, 203}}}, expert(150), slot, rows}, routed}},
      {"dispatch_dx", {{{{t, {5, 40, 203}}}, expert(150), slot}, routed}},
      {"expert_linear", {{{{t, {5, 40, 70}}}, {{t, {5, 130, 70}}}, {{f32, {5, 130}}}, rows}, routed}},
      {"expert_linear_dw", {{{{t, {5, 40, 130}}}, {{t, {5, 40, 70}}}, rows}, routed}},
      {"expert_linear_dx", {{{{t, {5, 40, 70}}}, {{t, {5, 70, 130}}}, rows}, routed}},
      {"expert_linear_gelu", {{{{t, {5, 40, 72}}}, {{t, {5, 136, 72}}}, {{f32, {5, 136}}}, rows}, routed}},
      {"expert_linear_dx_gelu", {{{{t, {5, 40, 72}}}, {{t, {5, 72, 136}}}, {{t, {5, 40, 136}}}, rows}, routed}},
      {"gelu", {{{{t, {5, 40, 96}}}, rows}, routed}},
      {"swiglu", {{{{t, {5, 40, 192}}}, rows}, routed}},
      {"swiglu_dx", {{{{t, {5, 40, 96}}}, {{t, {5, 40, 192}}}, rows}, routed}},
      {"gelu_dx", {{{{t, {5, 40, 96}}}, {{t, {5, 40, 96}}}, rows}, routed}},
  });
}

void add_draws(std::multimap<std::string_view, Sample>& table) {
  const ops::SampleOperand sequences{{i32, {4, 1}}, Fill::tokens};
  const ir::Attributes draws{{"seed", 99}, {"eps", 0.5}, {"vocabulary", 1 << 30}, {"experts", 12}};
  ir::Attributes second = draws, dealt = draws, counted = draws, of_bf16 = draws;
  second.set("keep", std::int64_t(1)), second.set("capacity", std::int64_t(2000));
  of_bf16.set("dtype", std::string("bf16"));
  dealt.set("positions", std::int64_t(1000));
  counted.set("load_tokens", std::int64_t(500)), counted.set("capacity", std::int64_t(2000));
  table.insert({
      {"jitter", {{{{f32, {4, 50, 203}}}, sequences}, draws}},
      {"jitter", {{{{DType::bf16, {4, 51, 96}}}, sequences}, draws}},
      {"jitter_dx", {{{{f32, {4, 51, 96}}}, sequences}, of_bf16}},
      {"skip_second", {{expert(2000, 2), {{f32, {2000, 2}}, Fill::weight}, sequences}, second}},
      {"first_choices", {{expert(2000, 2)}, counted}},
      {"hash_choice", {{{{i32, {4, 600}}, Fill::tokens}}, draws}},
      {"random_choice", {{sequences}, dealt}},
      {"slots_by_choice",
       {{{{i32, {2000, 3}}, Fill::skipped}}, {{"capacity", 300}, {"groups", 4}, {"load_groups", 2}, {"experts", 8}}}},
      {"slots_by_choice", {{{{i32, {2000, 2}}, Fill::skipped}}, {{"capacity", 300}, {"groups", 1}, {"experts", 12}}}},
  });
}

std::multimap<std::string_view, Sample> make_large_samples() {
  std::multimap<std::string_view, Sample> table;
  for (DType t : {f32, DType::bf16}) {
    add_dense(table, t);
    add_moe(table, t);
  }
  const std::vector<ops::SampleOperand> moments{
      {{f32, {30000}}}, {{f32, {30000}}}, {{f32, {30000}}, Fill::positive}, {{f32, {30000}}}};
  std::vector<ops::SampleOperand> adamw = moments;
  adamw.push_back({{f32, {4}}, Fill::positive});
  table.insert({
      {"adamw", {adamw, {{"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"weight_decay", 0.1}}}},
      {"squared_norm", {{{{f32, {70000}}}, {{f32, {5}}}, {{f32, {40, 999}}}}, {}}},
      {"top_k", {{{{f32, {4, 500, 8}}}}, {{"k", 1}}}},
      {"top_k", {{{{f32, {4, 500, 40}}}}, {{"k", 8}, {"normalize", 1}}}},
      {"every_expert", {{{{f32, {4, 500, 40}}}}, {}}},
      {"sigmoid_top_k", {{{{f32, {4, 500, 8}}}, {{f32, {8}}}}, {{"k", 2}}}},
      {"sigmoid_top_k",
       {{{{f32, {4, 500, 64}}}},
        {{"k", 6}, {"normalize", 1}, {"expert_groups", 8}, {"top_groups", 3}, {"scale", 2.5}}}},
      {"sigmoid_top_k_dx",
       {{{{f32, {1500, 8}}}, expert(1500, 8), {{f32, {3, 500, 40}}}, {{f32, {40}}}},
        {{"capacity", 200}, {"experts", 40}, {"normalize", 1}, {"scale", 2.5}}}},
      {"choice_counts", {{expert(3000, 3)}, {{"capacity", 1000}, {"experts", 40}}}},
      {"choice_counts", {{expert(40, 2)}, {{"capacity", 40}, {"experts", 5000}}}},   // in windows
      {"first_choices", {{expert(9000, 2)}, {{"capacity", 9000}, {"experts", 3}}}},  // in chunks
      {"first_choices", {{expert(40, 2)}, {{"capacity", 40}, {"experts", 5000}, {"load_tokens", 20}}}},
      {"z_loss", {{{{f32, {4, 500, 40}}}}, {{"total_tokens", 2000}, {"coefficient", 0.5}}}},
      {"z_loss_dx", {{{{f32, {4, 500, 40}}}}, {{"total_tokens", 2000}, {"coefficient", 0.5}}}},
      {"top_k_dx",
       {{{{f32, {1500, 1}}}, expert(1500), {{f32, {3, 500, 6}}, Fill::positive}}, {{"capacity", 200}, {"experts", 6}}}},
      {"top_k_dx",
       {{{{f32, {1500, 8}}}, expert(1500, 8), {{f32, {3, 500, 40}}, Fill::positive}},
        {{"capacity", 200}, {"experts", 40}, {"normalize", 1}}}},
  });
  for (const std::int64_t choices : {1, 2, 5})
    for (const std::int64_t groups : {1, 4}) {
      const ir::Attributes of_gate{{"capacity", 200 * choices / groups}, {"groups", groups}, {"experts", 8}};
      table.insert({"slots", {{expert(2000, choices)}, of_gate}});
      table.insert({"slots_by_choice", {{expert(2000, choices)}, of_gate}});
      table.insert({"slots_by_priority", {{expert(2000, choices), {{f32, {2000, choices}}, Fill::weight}}, of_gate}});
      table.insert({"slots_by_weight", {{{{f32, {2000, 8}}, Fill::weight}}, of_gate}});
    }
  add_draws(table);
  return table;
}

}  // namespace

std::vector<Sample> samples_of(const ops::OpDef& op) {
  static const auto table = make_large_samples();
  std::vector<Sample> samples = op.samples;
  const auto [first, last] = table.equal_range(op.name);
  for (auto it = first; it != last; ++it) samples.push_back(it->second);
  return samples;
}

}  // namespace lancet::test
