// Every device kernel on every sample of its op, emulated on the host: values against the references in double, memory
// that it may touch, equal bits for any order of blocks and threads, and the CPU's routes.
#include <fmt/ranges.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>

#include "lancet/ops/schedule_layout.h"
#include "ops/device/launch.h"
#include "ops/device/library_doubles.h"
#include "ops/device/partial_sums.h"
#include "ops/nn/linear/column_sums.h"
#include "ops/references/harness.h"
#include "routers.h"
#include "run_emulated.h"

using namespace lancet;
using namespace lancet::test;

namespace {

// Not run on samples here, since they need a communicator.
const std::set<std::string_view> elsewhere{"all_reduce", "all_to_all", "all_to_all_back", "all_to_all_counts",
                                           "all_to_all_counts_windows",
                                           // run by executors
                                           "repeat", "round"};

void check_sample(const ops::OpDef& op, const ops::Sample& sample) {
  const auto operands = make_operands(sample, SampleRoute(sample, seed), seed);
  const Outcome outcome = run_emulated(op, operands, sample.attributes, 1);
  const auto faults = faults_of(op, outcome, operands, run_reference(op, operands, sample.attributes));
  INFO(fmt::format("{}", fmt::join(faults, "\n")));
  CHECK(faults.empty());

  const Outcome again = run_emulated(op, operands, sample.attributes, 2);
  CHECK(again.faults.empty());
  for (std::size_t r = 0; r < outcome.results.size(); ++r) CHECK(again.results[r].same_bytes(outcome.results[r]));
  for (std::size_t i = 0; i < operands.size(); ++i) CHECK(again.operands[i].same_bytes(outcome.operands[i]));
}

}  // namespace

TEST_CASE("every op has a device kernel or is on a list of exceptions") {
  std::vector<std::string_view> without;
  for (const ops::OpDef* op : ops::all_ops()) {
    if (!find_emulated_kernel(op->name) && !elsewhere.contains(op->name)) without.push_back(op->name);
  }
  INFO(fmt::format("no kernel: {}", without));
  CHECK(without.empty());
  for (std::string_view name : elsewhere) CHECK(ops::find_op(name));
}

TEST_CASE("emulated device kernels against references in double on every sample") {
  int checked = 0;
  for (const ops::OpDef* op : ops::all_ops()) {
    if (!find_emulated_kernel(op->name)) continue;  // the case above reports it
    const auto samples = samples_of(*op);
    for (std::size_t s = 0; s < samples.size(); ++s) {
      INFO(op->name << ", sample " << s);
      check_sample(*op, samples[s]);
      ++checked;
    }
  }
  CHECK(checked > 0);
}

// Shapes that use other paths of the kernels than the samples: rows wider than the registers of a warp and of a block,
// widths that are not multiples of 16 bytes, more tensors than a launch accepts, repeats of one id across many
// segments.
TEST_CASE("emulated device kernels at the edges of their shapes") {
  using ops::Fill;
  using ops::Sample;
  constexpr DType f32 = DType::f32, bf = DType::bf16, i32 = DType::i32;
  std::vector<std::pair<std::string_view, Sample>> cases;
  for (const DType t : {f32, bf})
    for (const std::int64_t d : {1, 7, 1000, 2049, 9001}) {
      cases.push_back(
          {"layer_norm", {{{{t, {1, 3, d}}}, {{f32, {d}}, Fill::positive}, {{f32, {d}}}}, {{"eps", 1e-5}}}});
      cases.push_back({"rms_norm", {{{{t, {1, 3, d}}}, {{f32, {d}}, Fill::positive}}, {{"eps", 1e-6}}}});
      cases.push_back({"layer_norm_dx",
                       {{{{t, {1, 3, d}}}, {{t, {1, 3, d}}}, {{f32, {d}}}, {{f32, {1, 3, 2}}, Fill::positive}}, {}}});
    }
  for (const DType t : {f32, bf}) {
    cases.push_back({"add_layer_norm",
                     {{{{t, {1, 2, 8200}}}, {{t, {1, 2, 8200}}}, {{f32, {8200}}}, {{f32, {8200}}}}, {{"eps", 1e-5}}}});
    cases.push_back({"add", {{{{t, {3, 1, 1}}}, {{t, {3, 1, 1}}}}, {}}});
    cases.push_back(
        {"cross_entropy_train",
         {{{{t, {1, 3, 20011}}}, {{i32, {1, 3}}, Fill::tokens}}, {{"vocabulary", 20000}, {"total_tokens", 3}}}});
    cases.push_back({"cross_entropy",
                     {{{{t, {1, 2, 9}}}, {{i32, {1, 2}}, Fill::tokens}}, {{"vocabulary", 2}, {"total_tokens", 2}}}});
    cases.push_back({"logit_stats",
                     {{{{t, {1, 3, 20010}}}, {{i32, {1, 3}}, Fill::tokens}}, {{"vocabulary", 20000}, {"blocks", 2}}}});
    cases.push_back({"logit_stats_dx",
                     {{{{f32, {2, 1, 3, 2}}},
                       {{t, {1, 3, 20010}}},
                       {{i32, {1, 3}}, Fill::tokens},
                       {{f32, {2, 1, 3, 2}}, Fill::positive}},
                      {{"vocabulary", 20000}}}});
    for (const std::int64_t vocabulary : {1, 2, 300, 70000})
      cases.push_back(
          {"embedding_dw", {{{{t, {3, 111, 12}}}, {{i32, {3, 111}}, Fill::tokens}}, {{"vocabulary", vocabulary}}}});
    cases.push_back(
        {"embedding_dw",
         {{{{t, {1, 40, 1030}}}, {{i32, {1, 40}}, Fill::tokens}, {{f32, {5, 1030}}}}, {{"vocabulary", 5}}}});
    cases.push_back({"position_dw", {{{{t, {5, 3, 1030}}}}, {{"positions", 4}}}});
    for (const std::int64_t experts : {1, 9, 70}) {
      cases.push_back({"router", {{{{t, {1, 37, 260}}}, {{f32, {experts, 260}}}}, {}}});
      cases.push_back(
          {"router_dx", {{{{f32, {1, 37, experts}}}, {{f32, {experts, 1030}}}}, {{"dtype", std::string(name(t))}}}});
      cases.push_back({"router_dw", {{{{f32, {1, 75, experts}}}, {{t, {1, 75, 1030}}}}, {}}});
    }
    // Keys in several chunks; heads wider than a block.
    cases.push_back({"attention_decode",
                     {{{{t, {1, 300, 24}}}, {{t, {1, 1, 700, 8}}}, {{t, {1, 1, 700, 8}}}, {{i32, {2}}, Fill::tokens}},
                      {{"heads", 1}, {"vocabulary", 300}}}});
    cases.push_back({"attention_decode",
                     {{{{t, {2, 3, 1800}}}, {{t, {2, 2, 40, 300}}}, {{t, {2, 2, 40, 300}}}, {{i32, {2}}, Fill::tokens}},
                      {{"heads", 2}, {"vocabulary", 3}}}});
    cases.push_back({"take_row", {{{{t, {3, 4, 2500}}}, {{i32, {2}}, Fill::tokens}}, {{"vocabulary", 4}}}});
    cases.push_back({"gelu", {{{{t, {5, 40, 7}}}, {{i32, {5, 2}}, Fill::rows}}, {{"capacity", 40}, {"tokens", 150}}}});
    cases.push_back({"combine_dx",
                     {{{{t, {3, 50, 1}}},
                       {{t, {5, 40, 1}}},
                       {{i32, {150, 1}}, Fill::expert},
                       {{i32, {150, 1}}, Fill::slot},
                       {{f32, {150, 1}}, Fill::weight},
                       {{i32, {5, 2}}, Fill::rows}},
                      {{"capacity", 40}}}});
    cases.push_back({"combine",
                     {{{{t, {5, 40, 7}}},
                       {{i32, {150, 4}}, Fill::expert},
                       {{i32, {150, 4}}, Fill::slot},
                       {{f32, {150, 4}}, Fill::weight},
                       {{i32, {5, 2}}, Fill::rows}},
                      {{"capacity", 40}, {"batch", 3}}}});
  }
  cases.push_back(
      {"loss_of_stats",
       {{{{f32, {5, 3, 111, 2}}}, {{i32, {3, 111}}, Fill::tokens}}, {{"vocabulary", 9}, {"total_tokens", 500}}}});
  for (const std::int64_t experts : {1, 8, 33, 300}) {
    const std::int64_t tokens = experts == 300 ? 65 : 333;
    for (const std::int64_t choices : {std::int64_t{1}, (experts + 1) / 2, experts}) {
      if (choices == 300) continue;  // slow, and 150 are as many for every branch
      cases.push_back({"top_k", {{{{f32, {1, tokens, experts}}}}, {{"k", choices}, {"normalize", choices % 2}}}});
      cases.push_back(
          {"sigmoid_top_k", {{{{f32, {1, tokens, experts}}}}, {{"k", choices}, {"normalize", choices % 2}}}});
      cases.push_back({"choice_counts",
                       {{{{i32, {tokens, choices}}, Fill::expert}}, {{"capacity", tokens}, {"experts", experts}}}});
      const ir::Attributes of_gate{
          {"capacity", tokens * choices / experts / 2 + 1}, {"groups", 1}, {"experts", experts}};
      for (const char* gate : gates) {
        Sample sample{{{{i32, {tokens, choices}}, Fill::expert}}, of_gate};
        if (ops::op(gate).required == 2) sample.operands.push_back({{f32, {tokens, choices}}, Fill::weight});
        if (ops::op(gate).name != "slots_by_weight") cases.push_back({gate, sample});
      }
      cases.push_back({"slots_by_weight", {{{{f32, {tokens, experts}}, Fill::weight}}, of_gate}});
    }
    cases.push_back({"every_expert", {{{{f32, {1, tokens, experts}}}}, {}}});
    for (const char* op : {"z_loss", "z_loss_dx"})
      cases.push_back({op, {{{{f32, {1, tokens, experts}}}}, {{"total_tokens", tokens}, {"coefficient", 0.5}}}});
    cases.push_back(
        {"balance_bias",
         {{{{f32, {experts}}}, {{f32, {experts}}, Fill::positive}, {{f32, {4}}, Fill::positive}}, {{"rate", 0.5}}}});
    cases.push_back({"aux_loss",
                     {{{{f32, {1, 40, experts}}, Fill::positive}, {{f32, {2, experts}}, Fill::positive}},
                      {{"load_tokens", 40}, {"total_tokens", 80}, {"coefficient", 0.5}}}});
    cases.push_back(
        {"mean_load", {{{{f32, {2, experts}}, Fill::positive}, {{f32, {2, experts}}, Fill::positive}}, {}}});
  }
  std::vector<ops::SampleOperand> tensors, sums, parts;
  for (int i = 0; i < 100; ++i) {
    tensors.push_back({{f32, {1 + i % 7}}});
    sums.push_back({{f32, {1}}, Fill::positive});
  }
  tensors.push_back({{f32, {40001}}});
  for (int i = 0; i < 33; ++i) parts.push_back({{f32, {3}}});
  cases.push_back({"squared_norm", {tensors, {}}});
  cases.push_back({"clip_scale", {sums, {{"max_norm", 0.0}}}});
  cases.push_back({"sum", {parts, {}}});
  for (const auto& [name, sample] : cases) {
    std::string types;
    for (const auto& operand : sample.operands) types += ir::to_string(operand.type) + " ";
    INFO(name << " of " << types.substr(0, 200));
    check_sample(ops::op(name), sample);
  }
}

// The path of rows that shared memory cannot keep, and the longest row that it does.
TEST_CASE("the gradient of a row of logits is the same from shared memory and from device memory") {
  for (const auto& [type, kept] : {std::pair{DType::bf16, 115968}, {DType::f32, 57984}}) {
    for (const std::int64_t vocabulary : {kept, kept + 1}) {
      INFO(name(type) << ", vocabulary " << vocabulary);
      check_sample(ops::op("cross_entropy_train"),
                   {{{{type, {1, 1, vocabulary + 7}}}, {{DType::i32, {1, 1}}, ops::Fill::tokens}},
                    {{"vocabulary", vocabulary}, {"total_tokens", 2}}});
    }
  }
}

// cuBLASLt's double in these tests sums rows itself, so that no op reaches the kernel.
TEST_CASE("sums over rows are those in double, by packs and by elements") {
  const auto check = [](auto element, std::int64_t rows, std::int64_t columns, std::int64_t skipped) {
    using T = decltype(element);
    INFO(sizeof(T) << " bytes, " << rows << " rows of " << columns << ", " << skipped << " elements skipped");
    std::vector<ops::device::Pack<T>> memory(std::size_t(skipped + rows * columns));
    T* x = memory.data()->v + skipped;
    for (std::int64_t i = 0; i < rows * columns; ++i) x[i] = from_f32<T>(float(i * 37 % 101) - 50);
    ops::device::ColumnSums<T> sums{x, nullptr, rows, columns,
                                    ops::device::aligned_rows<T>(columns) && ops::device::aligned(x)};
    std::vector<float> parts(std::size_t(sums.parts() * columns)), out(std::size_t(columns), 1.f);
    sums.out = parts.data();
    HostStream stream;
    REQUIRE(ops::device::launch(stream, sums.blocks(), sums).ok());
    const ops::device::AddParts add{parts.data(), sums.parts(), columns, true, out.data()};
    REQUIRE(ops::device::launch(stream, add.blocks(), add).ok());
    int differ = 0;  // all sums are integers below 2^24
    for (std::int64_t c = 0; c < columns; ++c) {
      double expected = 1;
      for (std::int64_t r = 0; r < rows; ++r) expected += double(to_f32(x[r * columns + c]));
      differ += double(out[std::size_t(c)]) != expected;
    }
    CHECK(differ == 0);
  };
  for (const std::int64_t rows : {1, 9, 600})
    for (const std::int64_t columns : {1, 40, 520}) {
      check(bf16{}, rows, columns, 0);
      check(float{}, rows, columns, 0);
      check(bf16{}, rows, columns, 1);
    }
}

// Routing consists of integers and exactly specified exponentials, so that nothing may differ.
TEST_CASE("emulated gates route as the CPU does, bit for bit") {
  const Runner emulated = [](const ops::OpDef& op, std::vector<GuardedTensor> operands, const ir::Attributes& of) {
    const Outcome outcome = run_emulated(op, operands, of, 5);
    CHECK(outcome.faults.empty());
    return outcome;
  };
  for (const auto& [experts, choices] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {1, 1}, {3, 1}, {3, 3}, {8, 2}, {16, 1}, {31, 5}, {32, 1}, {64, 8}, {257, 3}})
    for (const char* name : gates)
      for (const std::int64_t tokens : {1, 63, 64, 65, 700}) {
        // Many blocks and several groups of tokens take long; one number of experts within a warp shows them.
        if ((tokens == 700 && experts != 16) || (tokens != 65 && experts > 64)) continue;
        INFO(name << ", " << choices << " of " << experts << " experts, " << tokens << " tokens");
        GuardedTensor logits({DType::f32, {1, tokens, experts}});
        fill_normal(logits, 3, std::uint64_t(tokens));
        for (std::int64_t t = 0; t < tokens; ++t) {
          float* row = logits.as<float>() + t * experts;
          if (t % 5 == 1) std::fill_n(row, experts, 0.25f);  // ties
          if (t % 5 == 2) row[0] = 3.f;                      // one popular expert
          if (t % 50 == 3) row[t % experts] = std::nanf("");
          if (t % 50 == 4) row[experts - 1] = -std::numeric_limits<float>::infinity();
          if (t % 50 == 6) row[0] = -0.f, row[experts - 1] = 0.f;
        }
        for (const std::int64_t groups : {1, 7}) {
          if (tokens % groups != 0) continue;
          const std::int64_t capacity = std::max<std::int64_t>(1, tokens * choices / experts / 2 / groups);
          const ir::Attributes attributes{{"capacity", capacity}, {"groups", groups}};
          const Decision a = decide(logits, choices, name, attributes),
                         b = decide(logits, choices, name, attributes, nullptr, emulated);
          CHECK(b.expert.same_bytes(a.expert));
          CHECK(b.slot.same_bytes(a.slot));
          CHECK(b.counts.same_bytes(a.counts));
          CHECK(b.filled.same_bytes(a.filled));
          CHECK(b.load.same_bytes(a.load));
          int differ = 0;
          for (std::int64_t i = 0; i < tokens * experts; ++i) {
            const float p = a.scores.as<float>()[i], q = b.scores.as<float>()[i];
            differ += !(std::memcmp(&p, &q, 4) == 0 || (std::isnan(p) && std::isnan(q)));
          }
          CHECK(differ == 0);
        }
      }
}

TEST_CASE("emulated sigmoid scores choose and weigh as the CPU's do, bit for bit") {
  struct Case {
    std::int64_t experts, choices, groups, open;
  };
  for (const auto& [experts, choices, groups, open] :
       {Case{1, 1, 1, 1}, {3, 2, 1, 1}, {8, 2, 4, 2}, {32, 4, 32, 5}, {64, 6, 8, 3}, {260, 8, 52, 7}})
    for (const std::int64_t tokens : {1, 65, 300}) {
      INFO(choices << " of " << experts << " experts in " << open << " of " << groups << " groups, " << tokens);
      GuardedTensor logits({DType::f32, {1, tokens, experts}}), bias({DType::f32, {experts}});
      fill_normal(logits, 3, std::uint64_t(tokens));
      fill_normal(bias, 4, std::uint64_t(tokens));
      for (std::int64_t t = 0; t < tokens; ++t) {
        float* row = logits.as<float>() + t * experts;
        if (t % 5 == 1) std::fill_n(row, experts, 0.25f);  // ties, but for the bias
        if (t % 50 == 3) row[t % experts] = std::nanf("");
        if (t % 50 == 4) row[experts - 1] = -200.f;  // score 0
      }
      for (std::int64_t e = 0; e < experts; e += 2) bias.as<float>()[e] = 0.f;
      const ir::Attributes of{
          {"k", choices}, {"expert_groups", groups}, {"top_groups", open}, {"normalize", 1}, {"scale", 2.5}};
      const Outcome expected = run(ops::op("sigmoid_top_k"), {logits, bias}, of),
                    found = run_emulated(ops::op("sigmoid_top_k"), {logits, bias}, of, 5);
      CHECK(found.faults.empty());
      CHECK(found.results[0].same_bytes(expected.results[0]));
      for (const std::size_t result : {1, 2}) {
        int differ = 0;
        for (std::int64_t i = 0; i < expected.results[result].shape().elements(); ++i) {
          const float p = expected.results[result].as<float>()[i], q = found.results[result].as<float>()[i];
          differ += !(std::memcmp(&p, &q, 4) == 0 || (std::isnan(p) && std::isnan(q)));
        }
        CHECK(differ == 0);
      }
    }
}

TEST_CASE("an emulated gate's part continues from the end of the part before") {
  GuardedTensor logits({DType::f32, {1, 300, 5}});
  fill_normal(logits, 9, 1);
  const Runner emulated = [](const ops::OpDef& op, std::vector<GuardedTensor> operands, const ir::Attributes& of) {
    return run_emulated(op, operands, of, 1);
  };
  struct Case {
    std::int64_t choices, groups, parts;
  };
  for (const auto& [choices, groups, parts] :
       {Case{1, 1, 2}, {1, 2, 3}, {1, 3, 2}, {1, 2, 6}, {1, 6, 2}, {2, 1, 2}, {3, 2, 3}, {2, 6, 2}}) {
    INFO(choices << " choices, " << groups << " groups in " << parts << " parts");
    ir::Attributes attributes{{"capacity", 40 * choices / groups}, {"groups", groups}};
    const Decision whole = decide(logits, choices, "slots", attributes, nullptr, emulated);
    std::vector<GuardedTensor> slots, before;
    std::int32_t ends[5] = {};
    for (std::int64_t p = 0; p < parts; ++p) {
      attributes.set("part", p);
      attributes.set("parts", parts);
      const Decision part = decide(slice(logits, 1, 300 * p / parts, 300 * (p + 1) / parts), choices, "slots",
                                   attributes, p > 0 ? &before.back() : nullptr, emulated);
      slots.push_back(part.slot);
      before.push_back(part.counts);
      for (int e = 0; e < 5; ++e) {
        CHECK(part.filled.as<std::int32_t>()[2 * e] == ends[e]);
        ends[e] = part.filled.as<std::int32_t>()[2 * e + 1];
      }
    }
    CHECK(join(slots, 0).same_bytes(whole.slot));
    CHECK(before.back().same_bytes(whole.counts));
  }
}

TEST_CASE("tokens and targets outside of the vocabulary give NaN, without invalid reads or writes") {
  const GuardedTensor table = [] {
    GuardedTensor t({DType::f32, {4, 8}});
    fill_normal(t, 1, 1);
    return t;
  }();
  GuardedTensor tokens({DType::i32, {1, 3}}), dx({DType::f32, {1, 3, 8}}), logits({DType::f32, {1, 3, 8}});
  const std::int32_t ids[] = {1, 4, -7};
  std::copy_n(ids, 3, tokens.as<std::int32_t>());
  fill_normal(dx, 2, 2);
  fill_normal(logits, 2, 3);
  const Outcome x = run_emulated(ops::op("embedding"), {tokens, table, table}, {{"vocabulary", 4}}, 1);
  CHECK(x.faults.empty());
  for (int i = 0; i < 24; ++i) CHECK(std::isnan(x.results[0].as<float>()[i]) == (i >= 8));
  const Outcome dw = run_emulated(ops::op("embedding_dw"), {dx, tokens}, {{"vocabulary", 4}}, 1);
  CHECK(dw.faults.empty());
  for (int i = 0; i < 32; ++i) CHECK(dw.results[0].as<float>()[i] == (i / 8 == 1 ? dx.as<float>()[i % 8] : 0.f));
  const Outcome loss =
      run_emulated(ops::op("cross_entropy"), {logits, tokens}, {{"vocabulary", 4}, {"total_tokens", 3}}, 1);
  CHECK(loss.faults.empty());
  CHECK(std::isnan(loss.results[0].as<float>()[0]));
}

TEST_CASE("keys shared by several blocks: any number of them, few rows and many, wide heads") {
  struct Case {
    DType dtype;
    std::int64_t batch, rows, heads, positions, head_dim;
  };
  const ops::OpDef& op = ops::op("attention_decode");
  for (const Case& c : {Case{DType::f32, 1, 1, 2, 1030, 16}, Case{DType::bf16, 2, 3, 3, 1030, 24},
                        Case{DType::f32, 1, 2, 1, 600, 300}, Case{DType::f32, 1, 255, 1, 700, 4}})
    for (const std::int64_t first : {std::int64_t(0), std::int64_t(254), std::int64_t(255), std::int64_t(256),
                                     std::int64_t(400), c.positions - c.rows}) {
      INFO(c.rows << " rows of " << c.heads << " heads of " << c.head_dim << " from " << first << " on");
      std::vector<GuardedTensor> operands;
      operands.emplace_back(ir::TensorType{c.dtype, {c.batch, c.rows, 3 * c.heads * c.head_dim}});
      for (int i = 0; i < 2; ++i)
        operands.emplace_back(ir::TensorType{c.dtype, {c.batch, c.heads, c.positions, c.head_dim}});
      for (std::size_t i = 0; i < 3; ++i) fill_normal(operands[i], 6, i);
      operands.emplace_back(ir::TensorType{DType::i32, {2}});
      operands[3].as<std::int32_t>()[0] = std::int32_t(first);
      operands[3].as<std::int32_t>()[1] = std::int32_t(c.rows == 3 ? 1 : c.rows - 1);  // a padding row
      const ir::Attributes attributes{{"heads", c.heads}, {"vocabulary", std::int64_t{1}}};
      const Outcome outcome = run_emulated(op, operands, attributes, 1);
      const auto faults = faults_of(op, outcome, operands, run_reference(op, operands, attributes));
      INFO(fmt::format("{}", fmt::join(faults, "\n")));
      CHECK(faults.empty());
      CHECK(run_emulated(op, operands, attributes, 2).results[0].same_bytes(outcome.results[0]));
    }
}

TEST_CASE("scores up to 1e17: attention gives the value of the largest, and its gradient that value alone") {
  constexpr std::int64_t d = 12, rows = 40, positions = 600;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    INFO(name(dtype));
    std::vector<GuardedTensor> decode;  // qkv, keys, values
    for (const Shape& shape : {Shape{1, rows, 3 * d}, Shape{1, 1, positions, d}, Shape{1, 1, positions, d}})
      fill_normal(decode.emplace_back(ir::TensorType{dtype, shape}), 5, decode.size());
    const auto number = [&](const GuardedTensor& t, std::int64_t i) {
      return double(dtype == DType::f32 ? t.as<float>()[i] : to_f32(t.as<bf16>()[i]));
    };
    const auto enlarge = [&](GuardedTensor& t, std::int64_t i) {
      const float large = float(number(t, i)) * 0x1p27f;
      if (dtype == DType::f32)
        t.as<float>()[i] = large;
      else
        t.as<bf16>()[i] = from_f32<bf16>(large);
    };
    for (std::int64_t i = 0; i < rows * 3 * d; ++i)
      if (i % (3 * d) < 2 * d) enlarge(decode[0], i);
    for (std::int64_t i = 0; i < positions * d; ++i) enlarge(decode[1], i);
    // The first largest of the scores of row i with `count` keys, which start at `at` and are `stride` elements apart.
    const auto largest = [&](std::int64_t i, const GuardedTensor& keys, std::int64_t at, std::int64_t stride,
                             auto count) {
      std::vector<double> scores(std::size_t(count), 0.0);
      for (std::int64_t j = 0; j < count; ++j)
        for (std::int64_t c = 0; c < d; ++c)
          scores[std::size_t(j)] += number(decode[0], i * 3 * d + c) * number(keys, at + j * stride + c);
      return std::max_element(scores.begin(), scores.end()) - scores.begin();
    };

    const Outcome forward = run_emulated(ops::op("attention"), {decode[0]}, {{"heads", 1}}, 1);
    GuardedTensor dout({dtype, {1, rows, d}});
    fill_normal(dout, 5, 4);
    const Outcome backward = run_emulated(ops::op("attention_dx"),
                                          {dout, decode[0], forward.results[0], forward.results[1]}, {{"heads", 1}}, 1);
    std::vector<double> dv(rows * d, 0.0);
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = largest(i, decode[0], d, 3 * d, i + 1), c = 0; c < d; ++c) {
        CHECK(number(forward.results[0], i * d + c) == number(decode[0], j * 3 * d + 2 * d + c));
        dv[std::size_t(j * d + c)] += number(dout, i * d + c);
      }
    for (std::int64_t i = 0; i < rows * 3 * d; ++i) {
      const double gradient = number(backward.results[0], i);
      CHECK(std::isfinite(gradient));
      if (i % (3 * d) >= 2 * d)
        CHECK(gradient == Approx(dv[std::size_t(i / (3 * d) * d + i % d)]).epsilon(1e-2).margin(1e-6));
    }

    decode.emplace_back(ir::TensorType{DType::i32, {2}});
    decode[3].as<std::int32_t>()[0] = positions - rows;
    decode[3].as<std::int32_t>()[1] = rows - 1;
    const Outcome decoded = run_emulated(ops::op("attention_decode"), decode, {{"heads", 1}, {"vocabulary", rows}}, 1);
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = largest(i, decoded.operands[1], 0, d, positions - rows + i + 1), c = 0; c < d; ++c)
        CHECK(number(decoded.results[0], i * d + c) == number(decoded.operands[2], j * d + c));
  }
}

TEST_CASE("rows at an invalid position give NaN, and none of them is kept") {
  const auto normal = [](Shape shape) {
    GuardedTensor t({DType::f32, std::move(shape)});
    fill_normal(t, 4, std::uint64_t(t.type().shape.elements()));
    return t;
  };
  const GuardedTensor qkv = normal({1, 3, 24}), keys = normal({1, 2, 9, 4}), values = normal({1, 2, 9, 4});
  const GuardedTensor many_keys = normal({1, 2, 600, 4}), many_values = normal({1, 2, 600, 4});
  const GuardedTensor x = normal({1, 3, 8}), wte = normal({4, 8}), wpe = normal({9, 8});
  GuardedTensor tokens({DType::i32, {1, 3}});
  std::fill_n(tokens.as<std::int32_t>(), 3, 1);
  for (const auto& [first, last] : {std::pair{-1, 0}, {9, 0}, {7, 2}, {0, -1}, {0, 3}, {2147483647, 2147483647}}) {
    INFO("place " << first << ", " << last);
    GuardedTensor place({DType::i32, {2}});
    place.as<std::int32_t>()[0] = first, place.as<std::int32_t>()[1] = last;
    const auto all_nan = [](const Outcome& outcome) {
      const GuardedTensor& out = outcome.results[0];
      CHECK(outcome.faults.empty());
      return std::all_of(out.as<float>(), out.as<float>() + out.type().shape.elements(),
                         [](float v) { return std::isnan(v); });
    };
    const Outcome attended =
        run_emulated(ops::op("attention_decode"), {qkv, keys, values, place}, {{"heads", 2}, {"vocabulary", 3}}, 1);
    CHECK(all_nan(attended));
    CHECK(attended.operands[1].same_bytes(keys));
    CHECK(attended.operands[2].same_bytes(values));
    if (first != 7 && first != 9) {  // keys that several blocks share
      const Outcome split = run_emulated(ops::op("attention_decode"), {qkv, many_keys, many_values, place},
                                         {{"heads", 2}, {"vocabulary", 3}}, 1);
      CHECK(all_nan(split));
      CHECK(split.operands[1].same_bytes(many_keys));
    }
    const Outcome embedded = run_emulated(ops::op("embedding_at"), {tokens, wte, wpe, place}, {{"vocabulary", 4}}, 1);
    CHECK(all_nan(embedded) == (first < 0 || first >= 9));
    const Outcome taken = run_emulated(ops::op("take_row"), {x, place}, {{"vocabulary", 3}}, 1);
    CHECK(all_nan(taken) == (last < 0 || last >= 3));
  }
}

TEST_CASE("attention that cuDNN does not support is reported with its shape and the reason") {
  const auto remark_of = [](DType dtype, std::int64_t head_dim) {
    HostDevice device;
    HostStream stream;
    std::set<std::string> remarks;
    const GuardedTensor qkv({dtype, {2, 5, 3 * 2 * head_dim}}), out({dtype, {2, 5, 2 * head_dim}});
    const GuardedTensor lse({DType::f32, {2, 2, 5}});
    const ir::Attributes attributes{{"heads", 2}};
    ops::KernelArgs args{.op = "attention", .operands = {}, .results = {}, .attributes = attributes};
    args.operands = {{const_cast<void*>(static_cast<const void*>(qkv.data())), qkv.type()}};
    args.results = {{const_cast<void*>(static_cast<const void*>(out.data())), out.type()},
                    {const_cast<void*>(static_cast<const void*>(lse.data())), lse.type()}};
    args.device = &device, args.stream = &stream, args.remarks = &remarks;
    find_emulated_kernel("attention")->bind(args);
    return remarks;
  };
  CHECK(remark_of(DType::f32, 8) ==
        std::set<std::string>{"attention over f32[2,5,3,2,8]: by plain kernels, which are slow, since cuDNN's engines "
                              "take bf16, found f32"});
  CHECK(remark_of(DType::bf16, 12) ==
        std::set<std::string>{"attention over bf16[2,5,3,2,12]: by plain kernels, which are slow, since cuDNN's "
                              "engines take heads of 8, 16, ... features, found 12"});
  CHECK(remark_of(DType::bf16, 16) ==
        std::set<std::string>{"attention over bf16[2,5,3,2,16]: by plain kernels, which are slow, since no engine"});
}

TEST_CASE("cuDNN gives the gradients of a part's keys, which are added onto those of later parts") {
  constexpr std::int64_t rows = 3, keys = 5, heads = 2, d = 8, width = 2 * heads * d;
  on_attention() = [&](const backend::cuda::AttentionTensors& t) {
    for (std::int64_t i = 0; i < keys * width; ++i) static_cast<bf16*>(t.dkeys)[i] = from_f32<bf16>(float(i % 7));
    for (std::int64_t i = 0; i < rows * 2 * width; ++i) static_cast<bf16*>(t.dqkv)[i] = from_f32<bf16>(-1);
  };
  const GuardedTensor dout({DType::bf16, {1, rows, width}}), qkv({DType::bf16, {1, rows, 2 * width}});
  const GuardedTensor lse({DType::f32, {1, 2 * heads, rows}}), all({DType::bf16, {1, keys, 2 * width}});
  GuardedTensor later({DType::f32, {1, keys, width}});
  for (std::int64_t i = 0; i < keys * width; ++i) later.as<float>()[i] = 0.25f * float(i % 3);
  const Outcome made = run_emulated(ops::op("attention_dx"), {dout, qkv, dout, lse, all, later},
                                    {{"heads", heads}, {"group", std::int64_t(2)}}, 1);
  on_attention() = nullptr;
  for (std::int64_t i = 0; i < keys * width; ++i) {
    const float sum = float(i % 7) + 0.25f * float(i % 3);
    CHECK(made.results[1].as<float>()[i] == sum);
    if (i < (keys - rows) * width) continue;
    const std::int64_t own = i - (keys - rows) * width;
    CHECK(to_f32(made.results[0].as<bf16>()[own / width * 2 * width + width + own % width]) == sum);
  }
  CHECK(to_f32(made.results[0].as<bf16>()[width - 1]) == -1);  // a query's
}

TEST_CASE("an update by a factor of NaN writes nothing") {
  for (const char* name : {"adamw", "sgd"}) {
    const ops::OpDef& op = ops::op(name);
    const ops::Sample& sample = op.samples[0];
    auto operands = make_operands(sample, SampleRoute(sample, seed), seed);
    operands.back().as<float>()[ops::schedule::factor] = std::nanf("");
    const Outcome outcome = run_emulated(op, operands, sample.attributes, 1);
    for (std::size_t i = 0; i < operands.size(); ++i) CHECK(outcome.operands[i].same_bytes(operands[i]));
  }
}
