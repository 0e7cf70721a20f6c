// Placed rows (ops/op.h) on the device: the share of each rank of a group against the reference of that share, and the
// edges of a split vocabulary on both devices.
#include <fmt/ranges.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>

#include "run_emulated.h"

using namespace lancet;
using namespace lancet::test;

namespace {

bool is_placed(const ops::PartitionRow& row) { return row.placed; }

// The operands of share `place` of n, if n divides what the row splits.
std::optional<std::vector<GuardedTensor>> operands_of_share(const ops::PartitionRow& row,
                                                            const std::vector<GuardedTensor>& whole, int place, int n) {
  std::vector<GuardedTensor> share;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    share.push_back(whole[i]);
    if (row.operands[i] == ops::once && place > 0) std::memset(share[i].data(), 0, share[i].size());
    if (!ops::is_split(row.operands[i])) continue;
    const int axis = ops::index_of(row.operands[i], whole[i].shape().rank());
    const std::int64_t extent = whole[i].shape()[axis] / n;
    if (extent * n != whole[i].shape()[axis]) return std::nullopt;
    share[i] = slice(whole[i], axis, extent * place, extent * (place + 1));
  }
  return share;
}

// The shares of a sample that were compared.
int check_shares(const ops::OpDef& op, const ops::PartitionRow& row, const ops::Sample& sample, int n) {
  const auto whole = make_operands(sample, SampleRoute(sample, seed), seed);
  ir::Attributes attributes = ops::attributes_of_share(row, sample.attributes, n);
  attributes.set("axes", "tensor");
  for (int place = 0; place < n; ++place) {
    const auto operands = operands_of_share(row, whole, place, n);
    const bool is_divided = std::ranges::all_of(
        row.divided, [&](std::string_view name) { return sample.attributes.integer(name) % n == 0; });
    if (!operands || !is_divided) return 0;
    std::vector<DoubleTensor> doubles;
    for (const GuardedTensor& operand : *operands) doubles.push_back(to_double(operand));
    const ReferenceCall expected = run_reference(op, doubles, attributes, {place, n});
    for (const std::uint64_t order : {1, 2}) {
      const Outcome outcome = run_emulated(op, *operands, attributes, order, {place, n});
      const auto faults = faults_of(op, outcome, *operands, expected);
      INFO(op.name << ", share " << place << " of " << n << fmt::format(": {}", fmt::join(faults, "\n")));
      CHECK(faults.empty());
    }
  }
  return n;
}

GuardedTensor filled(const ir::TensorType& type, std::initializer_list<double> values) {
  return from_double({type, values});
}

// Both devices' results of a share.
std::vector<Outcome> run_share(const char* name, const std::vector<GuardedTensor>& operands, ir::Attributes attributes,
                               const comm::Group& group) {
  attributes.set("axes", "tensor");
  const ops::CpuKernel& kernel = *ops::find_cpu_kernel(name);
  std::vector<Outcome> outcomes{run(ops::op(name), operands, attributes, {kernel.bind, kernel.workspace, 1, group}),
                                run_emulated(ops::op(name), operands, attributes, 1, group)};
  for (const Outcome& outcome : outcomes) CHECK(outcome.faults.empty());
  return outcomes;
}

}  // namespace

TEST_CASE("placed rows on the device: every share of every sample") {
  int rows = 0;
  for (const ops::OpDef* op : ops::all_ops())
    for (const ops::PartitionRow& row : op->partition) {
      if (!is_placed(row)) continue;
      int checked = 0;
      for (const ops::Sample& sample : samples_of(*op))
        for (const int n : {2, 3, 4}) checked += check_shares(*op, row, sample, n);
      INFO(op->name);
      CHECK(checked > 0);
      ++rows;
    }
  CHECK(rows >= 4);
}

TEST_CASE("a share of the vocabulary that is padding alone, with targets elsewhere and targets that are ignored") {
  const ir::Attributes attributes{{"vocabulary", 6}, {"blocks", 1}};
  GuardedTensor logits({DType::f32, {1, 3, 8}});  // share 1 of 2: columns 8 to 15
  fill_normal(logits, 3, 3);
  const GuardedTensor targets = filled({DType::i32, {1, 3}}, {5, -1, 0});
  for (const Outcome& outcome : run_share("logit_stats", {logits, targets}, attributes, {1, 2}))
    for (int t = 0; t < 3; ++t) {
      CHECK(outcome.results[0].as<float>()[2 * t] == -std::numeric_limits<float>::infinity());
      CHECK(outcome.results[0].as<float>()[2 * t + 1] == 0);
    }
  const float none = -std::numeric_limits<float>::infinity();
  const GuardedTensor stats = filled({DType::f32, {2, 1, 3, 2}}, {1, 0.5, 2, 0, 3, 2, none, 0, none, 0, none, 0});
  for (const Outcome& outcome : run_share("loss_of_stats", {stats, targets}, {{"total_tokens", 4}}, {0, 2})) {
    CHECK(outcome.results[0].as<float>()[0] == Approx((0.5 + 1) / 4));
    const std::vector<double> expected{0.25, -0.25, 0, 0, 0.25, -0.25, 0, -0.25, 0, 0, 0, -0.25};
    for (std::size_t i = 0; i < expected.size(); ++i)
      CHECK(outcome.results[1].as<float>()[i] == Approx(expected[i]).margin(1e-7));
  }
  const GuardedTensor dstats = filled({DType::f32, {1, 1, 3, 2}}, {0, -0.25, 0, 0, 0, -0.25}),
                      no_sums = filled({DType::f32, {1, 1, 3, 2}}, {none, 0, none, 0, none, 0});
  for (const Outcome& outcome : run_share("logit_stats_dx", {dstats, logits, targets, no_sums}, attributes, {1, 2}))
    for (int i = 0; i < 24; ++i) CHECK(outcome.results[0].as<float>()[i] == 0);
}

TEST_CASE("a block of logits of -infinity adds nothing to the loss, and its gradient is 0") {
  const float none = -std::numeric_limits<float>::infinity();
  const GuardedTensor logits = filled({DType::f32, {1, 1, 4}}, {none, none, none, none}),
                      targets = filled({DType::i32, {1, 1}}, {6});
  const ir::Attributes attributes{{"vocabulary", 8}, {"blocks", 1}};
  for (const Outcome& outcome : run_share("logit_stats", {logits, targets}, attributes, {0, 2}))
    CHECK(outcome.results[0].as<float>()[0] == none);
  const GuardedTensor dstats = filled({DType::f32, {1, 1, 1, 2}}, {0, -1}),
                      stats = filled({DType::f32, {1, 1, 1, 2}}, {none, 0});
  for (const Outcome& outcome : run_share("logit_stats_dx", {dstats, logits, targets, stats}, attributes, {0, 2}))
    for (int i = 0; i < 4; ++i) CHECK(outcome.results[0].as<float>()[i] == 0);
}

TEST_CASE("tokens and targets outside of a split vocabulary give NaN on the device") {
  const GuardedTensor tokens = filled({DType::i32, {1, 4}}, {1, 5, 8, -7}),
                      table = filled({DType::f32, {4, 1}}, {1, 2, 3, 4}),
                      wpe = filled({DType::f32, {4, 1}}, {0, 0, 0, 0});
  const ir::Attributes attributes{{"axes", "tensor"}, {"vocabulary", 4}};
  const Outcome x = run_emulated(ops::op("embedding"), {tokens, table, wpe}, attributes, 1, {1, 2});
  CHECK(x.results[0].as<float>()[0] == 0);  // of the other share
  CHECK(x.results[0].as<float>()[1] == 2);
  CHECK(std::isnan(x.results[0].as<float>()[2]));
  CHECK(std::isnan(x.results[0].as<float>()[3]));
  const GuardedTensor dx = filled({DType::f32, {1, 4, 1}}, {10, 20, 30, 40});
  const Outcome dw = run_emulated(ops::op("embedding_dw"), {dx, tokens}, attributes, 1, {1, 2});
  for (int row = 0; row < 4; ++row) CHECK(dw.results[0].as<float>()[row] == (row == 1 ? 20 : 0));
  GuardedTensor logits({DType::f32, {1, 4, 4}});
  fill_normal(logits, 4, 4);
  const ir::Attributes blocks{{"axes", "tensor"}, {"vocabulary", 8}, {"blocks", 1}};
  const Outcome stats = run_emulated(ops::op("logit_stats"), {logits, tokens}, blocks, 1, {0, 2});
  for (int t = 0; t < 4; ++t) CHECK(std::isnan(stats.results[0].as<float>()[2 * t + 1]) == (t >= 2));
}
