// Overlap by tiles from a program's text to its values: a product works on rows that the ranks push into each other's
// memory while it runs. The ops are those of ops.cpp; kernels, windows and streams are emulated (host_ranks.h), with
// blocks that wait, in several orders.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <limits>
#include <set>
#include <vector>

#include "host_ranks.h"
#include "kernels.h"
#include "lancet/comm/launch.h"
#include "lancet/ir/dependencies.h"
#include "lancet/ir/print.h"
#include "lancet/ops/catalogue.h"
#include "lancet/runtime/executor.h"
#include "lancet/schedule/plan_memory.h"
#include "train/step_speed.h"

using namespace lancet;
using namespace lancet::test;
using Values = std::vector<float>;

namespace {

constexpr int ranks = 3, rows = 12, width = 5, columns = 6;

// Two layers. Tiles of 8 rows span several signals, and two ranks.
constexpr std::string_view step_text = R"(program tiles
input @x : f32[3,12,5]
input @z : f32[3,12,5]
input @rows : i32[1,4]
parameter @w : f32[6,5]
%0 : f32[1,36,5], %1 : signals[9] = push_rows(@x) {readiness=rows/4}  # expert forward a.push
%2 : f32[1,36,6] = arriving_product(%0, %1, @w, @rows)  # compute forward a.product
%3 : f32[1,36,5], %4 : signals[18] = push_rows(@z) {readiness=rows/2}  # expert forward b.push
%5 : f32[1,36,6] = arriving_product(%3, %4, @w, @rows)  # compute forward b.product
output a = %2
output b = %5
)";

// A plan that leaves large numbers in all of the arena.
constexpr std::string_view other_text = R"(plan {policy=other}
arena 4096
program other
input @v : f32[1024]
[0] %0 : f32[1024] = scribble(@v)  # compute forward a | at 0
output v = %0
)";

ir::Program program_of(std::string_view text) {
  auto program = ir::parse(text);
  if (!program.ok()) FAIL(program.error().message);
  return *program;
}
ir::Plan plan_of(std::string_view text) {
  auto plan = ir::parse_plan(text);
  if (!plan.ok()) FAIL(plan.error().message);
  return *plan;
}

// The plan as the executor gets it: through its text. The second layer waits for the first push and product, so that
// the memory of the first buffer, in which peers write, has another use in the same step.
ir::Plan planned(std::string_view text = step_text) {
  const ir::Program program = program_of(text);
  const Status sound = ops::verify(program);
  if (!sound.ok()) FAIL(sound.error().message);
  schedule::Dependencies needed = ir::dependencies(program);
  needed[2] = {{1}};
  needed[3] = {{0}};
  const ir::Plan plan = schedule::plan_memory(program, needed);
  const Status verified = ir::verify(plan);
  if (!verified.ok()) FAIL(verified.error().message);
  CHECK(ir::print(plan_of(ir::print(plan))) == ir::print(plan));
  return plan_of(ir::print(plan));
}

// The window of a rank: its arena, and the words by which launches meet.
class Windows final : public comm::DeviceCommunicator {
 public:
  Windows(HostRanks& host, HostWindows& windows, int rank, std::span<std::byte> arena)
      : host_(host), windows_(windows), rank_(rank) {
    window_ = arena;
    peers_ = windows.peers(rank);
  }
  int rank() const override { return rank_; }
  int size() const override { return ranks; }
  std::string transport() const override { return "windows"; }
  Status send_receive(backend::Stream&, std::span<const comm::Segment>, std::span<const comm::Segment>) override {
    return internal_error("a call that the test does not expect");
  }
  Status all_reduce_sum(backend::Stream&, std::span<float>) override {
    return internal_error("a call that the test does not expect");
  }
  Status in_windows(backend::Stream& stream, const WindowLaunch& launch) override {
    return launch(stream, windows_.of(rank_, ++generation_));
  }
  Status check() override { return {}; }
  void abort(const std::string&) override {}
  void stop_pushes() override {
    host_.between_turns([&] { windows_.stop(rank_) = 1; });
  }

 private:
  HostRanks& host_;
  HostWindows& windows_;
  const int rank_;
  std::uint32_t generation_ = 0;
};

class TilesAccelerator final : public runtime::Accelerator {
 public:
  TilesAccelerator(HostRanks& host, int rank) : device_(host, rank) {}
  backend::Device& device() override { return device_; }
  const ops::DeviceKernel* find_kernel(std::string_view op) const override {
    static const ops::DeviceKernel kernels[] = {{"push_rows", bind_push, nullptr, false},
                                                {"push_beside", bind_push, nullptr, false},
                                                {"arriving_product", bind_arriving},
                                                {"scribble", bind_scribble}};
    const auto found = std::ranges::find_if(kernels, [&](const auto& kernel) { return kernel.op == op; });
    return found == std::end(kernels) ? nullptr : found;
  }
  Result<std::unique_ptr<comm::DeviceCommunicator>> make_communicator(const comm::DeviceStream&) override {
    return internal_error("a call that the test does not expect");
  }
  std::string build() const override { return "test"; }

 private:
  HostRankDevice device_;
};

float value(int step, int layer, int source, int target, int row, int k) {
  return float((step * 7 + layer * 5 + source * 3 + target * 11 + row * 13 + k) % 17 - 8);
}
float weight(int n, int k) { return float((n * 5 + k * 3) % 7 - 3); }

Values expected(int step, int layer, int rank) {
  Values y;
  for (int s = 0; s < ranks; ++s)
    for (int r = 0; r < rows; ++r)
      for (int n = 0; n < columns; ++n) {
        float sum = 0;
        for (int k = 0; k < width; ++k) sum += value(step, layer, s, rank, r, k) * weight(n, k);
        y.push_back(sum);
      }
  return y;
}

std::span<float> floats(const ops::TensorView& view) { return {view.as<float>(), std::size_t(view.elements())}; }

// One rank's executors of both plans, in one arena.
struct RankRun {
  TilesAccelerator accelerator;
  Windows windows;
  runtime::TensorStore store;
  std::unique_ptr<runtime::Executor> step, other;
  int number;

  RankRun(HostRanks& host, HostWindows& shared, int rank, std::span<std::byte> arena)
      : accelerator(host, rank), windows(host, shared, rank, arena), number(rank) {
    windows_of[std::size_t(rank)] = &windows;
  }

  Status make(const ir::Plan& plan, std::span<std::byte> arena, std::chrono::milliseconds timeout) {
    store.place_on(accelerator.device());
    store.add(plan.program);
    runtime::ExecutorOptions options{.arena = {arena.data(), arena.size()}, .accelerator = &accelerator};
    options.groups[std::size_t(ir::Stream::expert)] = comm::all_ranks(&windows);
    options.timeout = timeout;
    LANCET_ASSIGN(step, runtime::Executor::create(plan, store, options));
    LANCET_ASSIGN(other, runtime::Executor::create(plan_of(other_text), store, options));
    Values w;
    for (int n = 0; n < columns; ++n)
      for (int k = 0; k < width; ++k) w.push_back(weight(n, k));
    LANCET_TRY(store.write(store["w"], 0, std::as_bytes(std::span(w))));
    auto* ends = step->input("rows").as<std::int32_t>();
    for (int s = 0; s <= ranks; ++s) ends[s] = s * rows;
    return {};
  }
  void fill(int number_of_step) {
    for (int layer = 0; layer < 2; ++layer) {
      float* to = step->input(layer == 0 ? "x" : "z").as<float>();
      for (int p = 0; p < ranks; ++p)
        for (int r = 0; r < rows; ++r)
          for (int k = 0; k < width; ++k) *to++ = value(number_of_step, layer, number, p, r, k);
    }
  }
  Status run(int number_of_step) {
    fill(number_of_step);
    LANCET_TRY(step->run());
    for (int layer = 0; layer < 2; ++layer) {
      const std::span<float> y = floats(step->output(layer == 0 ? "a" : "b"));
      if (Values(y.begin(), y.end()) != expected(number_of_step, layer, number))
        return internal_error(fmt::format("rank {}, step {}, layer {}: other values", number, number_of_step, layer));
    }
    return {};
  }
};

// Runs f(rank) on all ranks together. Returns the error of each.
template <class F>
std::vector<std::string> on_ranks(std::uint64_t order, std::chrono::milliseconds timeout, const F& f,
                                  const ir::Plan& plan = planned()) {
  constexpr int blocks = 2;  // of a push; with the 3 of a product they take all places
  const std::size_t arena_bytes = 4096, words = blocks * ranks * sizeof(std::uint32_t);
  REQUIRE(std::size_t(plan.arena_bytes) <= arena_bytes);
  std::vector<std::vector<std::uint64_t>> memory(
      ranks, std::vector<std::uint64_t>((arena_bytes + words) / 8, 0x7f0000007f000000u));  // signals that were set
  std::vector<std::byte*> starts;
  for (auto& one : memory) {
    starts.push_back(reinterpret_cast<std::byte*>(one.data()));
    std::memset(starts.back() + arena_bytes, 0, words);
  }
  HostWindows windows(starts, arena_bytes, blocks);
  HostRanks host(ranks, 5, order);
  std::vector<std::string> errors(ranks);
  const Status all = comm::run_inproc(ranks, [&](comm::Communicator& world) -> Status {
    const auto rank = std::size_t(world.rank());
    const std::span<std::byte> arena(starts[rank], arena_bytes);
    RankRun run(host, windows, world.rank(), arena);
    Status status = run.make(plan, arena, timeout);
    if (status.ok()) status = f(run);
    if (!status.ok()) errors[rank] = status.error().message;
    return world.barrier();  // before the memory that others may write goes
  });
  if (!all.ok()) FAIL(all.error().message);
  return errors;
}

const std::vector<std::string> none(ranks);

}  // namespace

TEST_CASE("a plan keeps signals apart, and joins a maker and its taker by no wait") {
  const ir::Plan plan = planned();
  CHECK(plan.waits[1].empty());
  CHECK(plan.waits[2] == std::vector<ir::InstructionId>{{1}});
  CHECK(plan.waits[3] == std::vector<ir::InstructionId>{{0}});
  auto offset = [&](int instruction, int result) {
    return plan.offsets[plan.program.instructions[std::size_t(instruction)].results[std::size_t(result)].index()];
  };
  CHECK(offset(3, 0) == offset(0, 0));       // the first buffer is free for the second product
  CHECK(offset(2, 1) == offset(0, 1) + 64);  // one command zeroes all signals
  CHECK(std::set<std::int64_t>{offset(0, 1), offset(2, 1), offset(0, 0), offset(1, 0), offset(2, 0)}.size() == 5);
  std::string text(step_text);
  const auto at = text.find("signals[9]");
  const Status status = ops::verify(program_of(text.replace(at, 10, "signals[8]")));
  REQUIRE_FALSE(status.ok());
  CHECK(status.error().message.find("expected signals[9], one for 4 rows of f32[1,36,5], found signals[8], in: ") !=
        std::string::npos);
}

TEST_CASE("a product takes rows as the ranks push them, step after step") {
  for (std::uint64_t order = 1; order <= 6; ++order) {
    INFO("order " << order);
    CHECK(on_ranks(order, std::chrono::seconds(60), [](RankRun& run) -> Status {
            for (int step = 0; step < 4; ++step) LANCET_TRY(run.run(step));
            return {};
          }) == none);
  }
}

TEST_CASE("what other plans leave in the arena, or a search for a non-finite number, sets no signal") {
  for (std::uint64_t order = 1; order <= 2; ++order) {
    INFO("order " << order);
    CHECK(on_ranks(order, std::chrono::seconds(60), [](RankRun& run) -> Status {
            for (int step = 0; step < 4; ++step) {
              if (step != 2) LANCET_TRY(run.other->run());
              LANCET_TRY(run.run(step));
              LANCET_ASSIGN(const auto found, run.step->find_non_finite());
              if (found) return internal_error("found a number that is not finite");
            }
            return {};
          }) == none);
  }
}

TEST_CASE("a product stores tiles before the push has ended") {
  CHECK(on_ranks(1, std::chrono::seconds(20), [](RankRun& run) -> Status {
          LANCET_TRY(run.run(0));  // one instruction at a time
          last_waits = true;
          for (int step = 1; step < 3; ++step) LANCET_TRY(run.run(step));
          return {};
        }) == none);
  last_waits = false;
}

TEST_CASE("a non-finite number from a slow rank is found in the pushed rows, not in their product") {
  slow_rank = 1;
  std::vector<std::int32_t> blamed(ranks, -1);
  CHECK(on_ranks(1, std::chrono::seconds(60), [&](RankRun& run) -> Status {
          run.fill(0);
          if (run.number == 1)
            for (float& x : floats(run.step->input("x"))) x = std::numeric_limits<float>::quiet_NaN();
          LANCET_TRY(run.step->run());
          LANCET_ASSIGN(const auto found, run.step->find_non_finite());
          if (found) blamed[std::size_t(run.number)] = found->instruction.value;
          return {};
        }) == none);
  slow_rank = -1;
  CHECK(blamed == std::vector<std::int32_t>(ranks, 0));
}

TEST_CASE("rows that never come end the step after the timeout, by the name of the push, on any stream") {
  const bool compute = GENERATE(false, true);
  std::string text(step_text);
  const std::string on_expert = "push_rows(@x) {readiness=rows/4}  # expert";
  if (compute) text.replace(text.find(on_expert), on_expert.size(), "push_beside(@x) {readiness=rows/4}  # compute");
  const auto two_steps_then_silence = [](RankRun& run) -> Status {
    for (int step = 0; step < 2; ++step) LANCET_TRY(run.run(step));
    if (run.number == 1) silent_rank = 1;  // by that rank alone: the others may still take its rows of the last step
    return run.run(2);
  };
  const auto errors = on_ranks(1, std::chrono::seconds(2), two_steps_then_silence, planned(text));
  silent_rank = -1;
  const std::string where = compute ? "stream compute: [0] push_beside" : "stream expert: [0] push_rows";
  for (const std::string& error : errors)
    CHECK(error == where + " at a.push: expected all 3 ranks within 2 s by windows, found that it did not end");
}

TEST_CASE("a product that communicates counts for MFU, and has a cost on the network") {
  const ir::Program program = program_of(R"(input @x : f32[100,50]
parameter @w : f32[20,50]
%0 : f32[100,20] = pulling_product(@x, @w)  # compute forward a
output y = %0
)");
  REQUIRE(ops::verify(program).ok());
  CHECK(train::product_flops(program).dense == 2.0 * 100 * 50 * 20);
  struct Fixed final : cost::Costs {
    std::optional<double> compute_ms(std::string_view) const override { return 3.0; }
    double all_to_all_ms(double bytes, mesh::Axes = {}) const override { return 1 + bytes / 1000; }
    double all_reduce_ms(double, mesh::Axes = {}) const override { return 0; }
    cost::CoreCost all_to_all_core() const override { return {}; }
    cost::CoreCost all_reduce_core() const override { return {}; }
    double launch_ms() const override { return 0; }
    cost::Interference interference() const override { return {1, 1}; }
  };
  const auto costs = cost::op_costs(Fixed(), program);
  REQUIRE(costs.ok());
  CHECK((*costs)[0].ms == 3);
  CHECK((*costs)[0].network_ms == 1 + 10.0);  // half of 20,000 bytes
  CHECK(schedule::simulate(program, ir::dependencies(program), *costs, {1, 1}, 0).makespan == 11);
}
