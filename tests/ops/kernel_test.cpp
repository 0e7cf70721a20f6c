// Every CPU kernel on every sample of its op: types, memory that it may touch, values, and equal bits at any number of
// threads.
#include <fmt/ranges.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>
#include <span>

#include "lancet/base/random.h"
#include "ops/nn/gelu/math.h"
#include "ops/nn/swiglu/math.h"
#include "ops/references/harness.h"

using namespace lancet;
using namespace lancet::test;

namespace {

constexpr std::uint64_t kernel_seed = 11;

std::string join_lines(const std::vector<std::string>& lines) { return fmt::format("{}", fmt::join(lines, "\n")); }

void check_sample(const ops::OpDef& op, const ops::Sample& sample) {
  const auto operands = make_operands(sample, SampleRoute(sample, kernel_seed), kernel_seed);
  const Outcome outcome = run(op, operands, sample.attributes);
  INFO(join_lines(outcome.faults));
  CHECK(outcome.faults.empty());

  const ReferenceCall expected = run_reference(op, operands, sample.attributes);
  auto check = [&](const GuardedTensor& got, const DoubleTensor& reference, const GuardedTensor& before,
                   const std::string& what, const std::vector<double>& terms = {}) {
    const auto fault = compare(got, reference, before, expected.length, terms);
    INFO(what << ": " << fault.value_or(""));
    CHECK_FALSE(fault.has_value());
  };
  for (std::size_t r = 0; r < outcome.results.size(); ++r) {
    const int storage = storage_operand(op, int(r), int(operands.size()));
    const GuardedTensor before =
        storage < 0 ? GuardedTensor(outcome.results[r].type()) : operands[std::size_t(storage)];
    check(outcome.results[r], expected.results[r], before, fmt::format("result {}", r),
          r < expected.terms.size() ? expected.terms[r] : std::vector<double>{});
  }
  for (int i : op.writes)
    if (i < int(operands.size()))
      check(outcome.operands[std::size_t(i)], expected.operands[std::size_t(i)], operands[std::size_t(i)],
            fmt::format("operand {}", i));

  const Outcome threaded = run(op, operands, sample.attributes, 2);
  CHECK(threaded.faults.empty());
  for (std::size_t r = 0; r < outcome.results.size(); ++r) CHECK(threaded.results[r].same_bytes(outcome.results[r]));
  for (std::size_t i = 0; i < operands.size(); ++i) CHECK(threaded.operands[i].same_bytes(outcome.operands[i]));
}

}  // namespace

TEST_CASE("every op has a CPU kernel, a reference and samples") {
  std::vector<std::string_view> kernels, references, samples;
  for (const ops::OpDef* op : ops::all_ops()) {
    if (op->kind == ops::Kind::round || op->name == "repeat") continue;  // executors run them
    if (!ops::find_cpu_kernel(op->name)) kernels.push_back(op->name);
    if (!find_reference(op->name)) references.push_back(op->name);
    if (op->samples.empty()) samples.push_back(op->name);
  }
  INFO(fmt::format("no kernel: {}; no reference: {}; no sample: {}", kernels, references, samples));
  CHECK(kernels.empty());
  CHECK(references.empty());
  CHECK(samples.empty());
  CHECK(ops::all_ops().size() > 30);
}

TEST_CASE("gradients of GELU and SwiGLU are finite wherever their inputs are") {
  for (const float x : {1e4f, 1e12f, 1.5e13f, 1e15f, 3e38f}) {
    CHECK(ops::gelu_slope(x) == 1);
    CHECK(ops::gelu_slope(-x) == 0);
    CHECK(ops::swiglu_dgate(1, x, 2) == 2);
    CHECK(ops::swiglu_dgate(1, -x, 2) == 0);
  }
}

TEST_CASE("kernels against references in double on every sample") {
  int checked = 0;
  for (const ops::OpDef* op : ops::all_ops()) {
    if (!ops::find_cpu_kernel(op->name) || !find_reference(op->name)) continue;  // the case above reports it
    const auto samples = samples_of(*op);
    for (std::size_t s = 0; s < samples.size(); ++s) {
      INFO(op->name << ", sample " << s);
      check_sample(*op, samples[s]);
      ++checked;
    }
  }
  CHECK(checked > 0);
}

TEST_CASE("a router chooses the experts of a product in double wherever logits are apart") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const std::int64_t experts = GENERATE(8, 64, 128), tokens = 512, width = 300, choices = experts == 8 ? 2 : 8;
  const Philox random(kernel_seed, stream_of("rows and weights of a router"));
  std::uint64_t drawn = 0;
  const auto normals = [&](DType of, Shape shape, double deviation) {
    DoubleTensor tensor{{of, shape}, std::vector<double>(std::size_t(shape.elements()))};
    for (double& value : tensor.values) value = deviation * random.normal(drawn++);
    return from_double(tensor);
  };
  const std::vector operands{normals(dtype, {1, tokens, width}, 1), normals(DType::f32, {experts, width}, 0.02)};
  const ops::OpDef& router = *ops::find_op("router");
  const GuardedTensor logits = run(router, operands, {}).results[0];
  const GuardedTensor chosen = run(*ops::find_op("top_k"), {logits}, ops::Attributes{{"k", choices}}).results[0];
  const DoubleTensor exact = run_reference(router, operands, {}).results[0];
  const auto [least, largest] = std::ranges::minmax_element(exact.values);
  const double apart = 1e-5 * std::max(-*least, *largest);
  int decided = 0, equal = 0;
  for (std::int64_t t = 0; t < tokens; ++t) {
    std::vector<std::int32_t> order(static_cast<std::size_t>(experts));
    std::iota(order.begin(), order.end(), 0);
    const auto logit = [&](std::int32_t expert) { return exact[t * experts + expert]; };
    std::ranges::sort(order, std::ranges::greater(), logit);
    if (logit(order[std::size_t(choices - 1)]) - logit(order[std::size_t(choices)]) <= apart) continue;
    ++decided;
    const std::int32_t* of_token = chosen.as<std::int32_t>() + t * choices;
    equal += std::ranges::is_permutation(std::span(order).first(std::size_t(choices)),
                                         std::span(of_token, std::size_t(choices)));
  }
  CHECK(equal == decided);
  CHECK(decided > 500);
}

TEST_CASE("the samples drop tokens and leave slots empty") {
  bool dropped = false, empty = false;
  for (const ops::OpDef* op : ops::all_ops())
    for (const ops::Sample& sample : samples_of(*op)) {
      const SampleRoute route(sample, kernel_seed);
      if (!route.exists()) continue;
      const DoubleTensor load = to_double(route.whole().load);
      for (std::int64_t e = 0; e < route.experts(); ++e) {
        dropped |= load[e] > load[route.experts() + e];
        empty |= load[route.experts() + e] < double(route.slots());
      }
    }
  CHECK(dropped);
  CHECK(empty);
}

TEST_CASE("the comparison notices planted faults") {
  GuardedTensor got({DType::f32, {3}}), before({DType::f32, {3}});
  DoubleTensor expected{got.type(), {1, std::nan(""), -2}};
  got.as<float>()[0] = 1;
  got.as<float>()[2] = -2;
  CHECK_FALSE(compare(got, expected, before, 1).has_value());
  got.as<float>()[1] = 0;  // a write outside of the result
  CHECK(compare(got, expected, before, 1).has_value());
  got = before;
  got.as<float>()[0] = 1;  // the last is still NaN
  CHECK(compare(got, expected, before, 1).has_value());
  got.as<float>()[2] = -2.00002f;
  CHECK(compare(got, expected, before, 1).has_value());
  double largest = 0;  // the tolerance of -2 is 6 * 2^-23 * (2 + the root of 2.5)
  got.as<float>()[0] = 1 + 0x1p-23f;
  CHECK(compare(got, expected, before, 1, {}, &largest).has_value());
  CHECK(largest == Approx((double(2.00002f) - 2) / (6 * 0x1p-23 * (2 + std::sqrt(2.5)))).epsilon(1e-9));
  CHECK(compare(before, expected, before, 1, {}, &largest).has_value());
  CHECK(std::isinf(largest));
  CHECK(got.intact());
  got.data()[got.size()] = std::byte{0};
  CHECK_FALSE(got.intact());
}
