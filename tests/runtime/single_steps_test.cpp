// Instructions that run one at a time: what the search for a non-finite number zeroes, and their watch.
#include <catch2/catch.hpp>
#include <thread>

#include "runtime/bound_plan.h"
#include "runtime/step_failure.h"

namespace lancet::runtime {
namespace {

struct Steps final : SingleSteps {
  std::vector<DType> zeroed;
  Status zero(const ops::TensorView& view) override {
    zeroed.push_back(view.type.dtype);
    return {};
  }
  Status run(std::int32_t) override { return {}; }
  Result<ops::TensorView> host_view(const ops::TensorView& view) override { return view; }
};

struct Silent final : comm::DeviceCommunicator {
  int rank() const override { return 0; }
  int size() const override { return 2; }
  std::string transport() const override { return "test"; }
  Status send_receive(backend::Stream&, std::span<const comm::Segment>, std::span<const comm::Segment>) override {
    return {};
  }
  Status all_reduce_sum(backend::Stream&, std::span<float>) override { return {}; }
  Status check() override { return {}; }
  void abort(const std::string&) override {}
};

}  // namespace

TEST_CASE("a search for a non-finite number zeroes results before they are made") {
  const auto plan = ir::parse_plan(R"(plan {policy=test}
arena 64
input @x : f32[4,1]
[0] %0 : f32[4,1] = send(@x)  # expert forward a | at 0
)");
  REQUIRE(plan.ok());
  std::vector<float> arena(32), inputs(64);
  TensorStore store;
  const Addresses addresses(*plan, store, {reinterpret_cast<std::byte*>(arena.data()), 128},
                            {reinterpret_cast<std::byte*>(inputs.data()), 256});
  Steps steps;
  const auto found = search_non_finite(*plan, addresses, {}, steps, [](std::int32_t) { return false; });
  REQUIRE(found.ok());
  CHECK_FALSE(found->has_value());
  CHECK(steps.zeroed == std::vector<DType>{DType::f32});
}

TEST_CASE("an instruction that ran alone is watched until it has ended") {
  const bool ended = GENERATE(false, true);
  Silent comm;
  backend::Flag done = 0;
  StreamWatch watch({{.instruction = 7, .waits = {}, .done = &done, .comm = &comm}}, {&comm},
                    std::chrono::milliseconds(20));
  watch.start_alone(7);
  if (ended) watch.end_alone();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const Status status = watch.look();
  CHECK(status.ok() == ended);
  if (!ended) CHECK(watch.stuck()->instruction == 7);
}

}  // namespace lancet::runtime
