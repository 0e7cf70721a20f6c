// Every device kernel on every sample of its op, emulated on the host: the values against the references in double, the
// memory that it may touch, the same bits whatever the order of blocks and lanes is, and routes as the CPU decides
// them.
#include <fmt/ranges.h>

#include <catch2/catch.hpp>
#include <set>

#include "emulated_kernels.h"
#include "harness.h"
#include "ops/device/emulated.h"

using namespace lancet;
using namespace lancet::test;

namespace {

constexpr std::uint64_t seed = 11;

// Products, attention and messages: not kernels of ours alone.
const std::set<std::string_view> elsewhere{"linear",       "linear_dx",       "linear_dw",        "attention",
                                           "attention_dx", "expert_linear",   "expert_linear_dx", "expert_linear_dw",
                                           "all_reduce",   "exchange_counts", "all_to_all",       "all_to_all_back"};

// Still to be written.
const std::set<std::string_view> pending{"aux_loss",
                                         "aux_loss_dx",
                                         "batch_prioritized_gate",
                                         "combine",
                                         "combine_dx",
                                         "cross_entropy",
                                         "cross_entropy_train",
                                         "dispatch",
                                         "dispatch_dx",
                                         "embedding",
                                         "embedding_dw",
                                         "gate_dx",
                                         "join_route",
                                         "join_rows",
                                         "position_dw",
                                         "router",
                                         "router_dw",
                                         "router_dx",
                                         "split_capacity",
                                         "split_route",
                                         "sum",
                                         "switch_gate"};

Outcome run_emulated(const ops::OpDef& op, const std::vector<GuardedTensor>& operands, const ir::Attributes& attributes,
                     std::uint64_t order) {
  const ops::DeviceKernel* kernel = find_emulated_kernel(op.name);
  HostDevice device;
  HostStream stream;
  ops::device::emulated::order_seed = order;
  Outcome outcome = run(op, operands, attributes, {kernel->bind, kernel->workspace, 1, nullptr, &device, &stream});
  if (stream.synchronized) outcome.faults.push_back("waited for the stream");
  return outcome;
}

void check_values(const ops::OpDef& op, const Outcome& outcome, const std::vector<GuardedTensor>& operands,
                  const ReferenceCall& expected) {
  auto check = [&](const GuardedTensor& got, const DoubleTensor& reference, const GuardedTensor& before,
                   const std::string& what, const std::vector<double>& terms) {
    const auto fault = compare(got, reference, before, expected.length, terms);
    INFO(what << ": " << fault.value_or(""));
    CHECK_FALSE(fault.has_value());
  };
  for (std::size_t r = 0; r < outcome.results.size(); ++r) {
    const int storage = storage_operand(op, int(r), int(operands.size()));
    check(outcome.results[r], expected.results[r],
          storage < 0 ? GuardedTensor(outcome.results[r].type()) : operands[std::size_t(storage)],
          fmt::format("result {}", r), r < expected.terms.size() ? expected.terms[r] : std::vector<double>{});
  }
  for (int i : op.writes)
    if (i < int(operands.size()))
      check(outcome.operands[std::size_t(i)], expected.operands[std::size_t(i)], operands[std::size_t(i)],
            fmt::format("operand {}", i), {});
}

void check_sample(const ops::OpDef& op, const ops::Sample& sample) {
  const auto operands = make_operands(sample, SampleRoute(sample, seed), seed);
  const Outcome outcome = run_emulated(op, operands, sample.attributes, 1);
  INFO(fmt::format("{}", fmt::join(outcome.faults, "\n")));
  CHECK(outcome.faults.empty());
  check_values(op, outcome, operands, run_reference(op, operands, sample.attributes));

  const Outcome again = run_emulated(op, operands, sample.attributes, 2);
  CHECK(again.faults.empty());
  for (std::size_t r = 0; r < outcome.results.size(); ++r) CHECK(again.results[r].same_bytes(outcome.results[r]));
  for (std::size_t i = 0; i < operands.size(); ++i) CHECK(again.operands[i].same_bytes(outcome.operands[i]));
}

}  // namespace

TEST_CASE("every op has a device kernel or is another's") {
  std::vector<std::string_view> without;
  for (const ops::OpDef* op : ops::all_ops()) {
    if (!find_emulated_kernel(op->name) && !elsewhere.contains(op->name) && !pending.contains(op->name))
      without.push_back(op->name);
  }
  INFO(fmt::format("no kernel: {}", without));
  CHECK(without.empty());
  for (std::string_view name : elsewhere) CHECK(ops::find_op(name));
}

TEST_CASE("emulated device kernels against references in double on every sample") {
  int checked = 0;
  for (const ops::OpDef* op : ops::all_ops()) {
    if (!find_emulated_kernel(op->name)) continue;  // the case above fails
    const auto samples = samples_of(*op);
    for (std::size_t s = 0; s < samples.size(); ++s) {
      INFO(op->name << ", sample " << s);
      check_sample(*op, samples[s]);
      ++checked;
    }
  }
  CHECK(checked > 0);
}
