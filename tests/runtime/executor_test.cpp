// The executor on plans written by hand: values, concurrent streams, errors that stop all of them.
#include "lancet/runtime/executor.h"
#include "doubles/inproc.h"

#include <atomic>
#include <cmath>

#include "good.h"
#include "support.h"

using namespace lancet;
using namespace lancet::test;
using Values = std::vector<float>;

namespace {

Values values(std::span<const float> span) { return {span.begin(), span.end()}; }

void fill(std::span<float> to, const Values& from) {
  REQUIRE(to.size() == from.size());
  std::copy(from.begin(), from.end(), to.begin());
}

// GELU in its tanh form, in double.
double gelu(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
}

}  // namespace

TEST_CASE("a plan computes the right values") {
  Run run(R"(plan {policy=test}
arena 128
input @x : f32[4]
parameter @w : f32[4]
[0] %0 : f32[4] = add(@x, @w)  # compute forward a | at 0
[1] %1 : f32[4] = gelu(%0)  # compute forward b | at 64
[2] %2 : f32[4] = add(%1, %1)  # compute forward c | at 0
output y = %2
output w = @w
)");
  fill(run.state("w"), {1, 2, 3, -4});
  fill(run.input("x"), {-1, -1, 0.5, 3});
  require_done(run.executor->run());
  for (std::size_t i = 0; i < 4; ++i) {
    const double x = double(run.input("x")[i]) + run.state("w")[i];
    CHECK(run.output("y")[i] == Approx(2 * gelu(x)).epsilon(1e-6).margin(1e-7));
  }
  REQUIRE(values(run.output("w")) == Values{1, 2, 3, -4});
  REQUIRE(run.executor->has_output("y"));
  REQUIRE_FALSE(run.executor->has_output("z"));

  fill(run.input("x"), {0, 0, 0, 0});  // the next step reads the new input
  require_done(run.executor->run());
  CHECK(run.output("y")[0] == Approx(2 * gelu(1)).epsilon(1e-6));
}

TEST_CASE("a run before the last of a step leaves out what closes it, and the sums of the records it makes") {
  FakeCommunicator reduce(doubled);
  Run run(R"(plan {policy=test}
arena 128
input @x : f32[4]
state @s.grad : f32[4]
[0] %0 : f32[4] = add(@x, @x)  # compute forward a | at 0
[1] %1 : f32[4] in %0 = all_reduce(%0)  # reduce sync metrics | wait 0 | at -
[2] %2 : f32[4] in @s.grad = add_to(@s.grad, @x)  # compute dw b | at -
[3] %3 : f32[4] in %2 = all_reduce(%2)  # reduce sync bucket.0 | wait 2 | at -
[4] %4 : f32[4] = add(%3, %3)  # compute update c | wait 3 | at 64
[5] zero(&@s.grad)  # compute update c
output loss = %1
output y = %4
)",
          streams(nullptr, &reduce));
  for (int step = 0; step < 2; ++step) {
    for (const float x : {1.f, 2.f}) {
      fill(run.input("x"), {x, 0, x, 0});
      require_done(run.executor->run(runtime::Executor::Run::earlier));
      CHECK(values(run.output("loss")) == Values{4 * x, 0, 4 * x, 0});
    }
    CHECK(values(run.state("s.grad")) == Values{3, 0, 3, 0});
    fill(run.input("x"), {4, 4, 4, 4});
    require_done(run.executor->run());
    CHECK(values(run.output("y")) == Values{28, 16, 28, 16});  // twice the doubled sum
    CHECK(values(run.state("s.grad")) == Values{0, 0, 0, 0});
  }
}

TEST_CASE("values in other values' memory, and updates in place") {
  Run run(R"(plan {policy=test}
arena 64
input @x : f32[3]
state @s : f32[3]
state @t : f32[3]
[0] %0 : f32[3] in @s = all_reduce(@s)  # reduce sync a | at -
[1] %1 : f32[3] = add(%0, @x)  # compute forward b | wait 0 | at 0
[2] zero(&@t)  # compute update c
output s = %0
output y = %1
)");
  fill(run.state("s"), {1, 2, 3});
  fill(run.state("t"), {4, 5, 6});
  fill(run.input("x"), {10, 20, 30});
  require_done(run.executor->run());  // no communicator: one rank
  REQUIRE(values(run.output("y")) == Values{11, 22, 33});
  REQUIRE(run.output("s").data() == run.state("s").data());
  REQUIRE(values(run.state("t")) == Values{0, 0, 0});
}

TEST_CASE("views: parts of a whole, made on two streams and read as one") {
  Run run(R"(plan {policy=test}
arena 256
input @x : f32[8]
state @s : f32[6]
[0] %0 : f32[8] = add(@x, @x)  # compute forward a | at 0
view %1 : f32[4] in %0 + 0
view %3 : f32[8] | at 64
[1] %4 : f32[4] in %3 + 0 = add(%1, %1)  # compute forward b/0 | at -
view %2 : f32[4] in %0 + 16
view %5 : f32[4] in @x + 8
[2] %6 : f32[4] in %3 + 16 = add(%2, %5)  # expert forward b/1 | wait 0 | at -
[3] %7 : f32[8] = add(%3, %0)  # compute forward c | wait 2 | at 128
view %8 : f32[3] in @s + 4
view %9 : f32[2] in %8 + 4
[4] zero(&%9)  # compute update d
view %10 : f32[2] in %7 + 24
output whole = %3
output y = %7
output tail = %10
)");
  for (int step = 1; step < 4; ++step) {
    const float x = float(step);
    fill(run.input("x"), {x, 2 * x, 3 * x, 4 * x, 5 * x, 6 * x, 7 * x, 8 * x});
    fill(run.state("s"), {1, 2, 3, 4, 5, 6});
    require_done(run.executor->run());
    // 4x of the first half; 2x of the second and x from the third on.
    REQUIRE(values(run.output("whole")) == Values{4 * x, 8 * x, 12 * x, 16 * x, 13 * x, 16 * x, 19 * x, 22 * x});
    REQUIRE(values(run.output("y")) == Values{6 * x, 12 * x, 18 * x, 24 * x, 23 * x, 28 * x, 33 * x, 38 * x});
    REQUIRE(values(run.output("tail")) == Values{33 * x, 38 * x});
    REQUIRE(values(run.state("s")) == Values{1, 2, 0, 0, 5, 6});
  }
  REQUIRE(run.output("tail").data() == run.output("y").data() + 6);
}

TEST_CASE("views: the slots of two parts of a batch, in the memory of the whole") {
  Run run(R"(plan {policy=test}
arena 2048
input @x : f32[2,2,3]
input @logits : f32[2,2,2]
[0] %0 : i32[4,1], %12 : f32[4,1], %1 : f32[2,2,2] = top_k(@logits) {k=1}  # compute forward g | at 0 576 64
[1] %11 : i32[4,1], %13 : i32[1,2], %14 : i32[2,2], %2 : f32[2,2] = slots(%0) {capacity=3, groups=1, experts=2}  # compute forward g | at 512 640 704 128
view %15 : i32[2,1] in %0 + 0
view %16 : i32[2,1] in %11 + 0
[2] %3 : i32[2,2] = split_filled(%15, %16) {experts=2}  # compute forward g/0 | at 192
view %17 : i32[2,1] in %0 + 8
view %18 : i32[2,1] in %11 + 8
[3] %4 : i32[2,2] = split_filled(%17, %18, %3) {experts=2}  # compute forward g/1 | at 256
view %5 : f32[1,2,3] in @x + 0
view %7 : f32[2,3,3] | at 320
[4] %8 : f32[2,3,3] in %7 part 0 of 2 = dispatch(%5, %15, %16, %3) {slots=3}  # compute forward d/0 | at -
view %6 : f32[1,2,3] in @x + 24
[5] %9 : f32[2,3,3] in %7 part 1 of 2 = dispatch(%6, %17, %18, %4) {slots=3}  # compute forward d/1 | at -
[6] %10 : f32[2,2,3] = combine(%7, %0, %11, %12, %14) {batch=2}  # compute forward c | at 448
output y = %10
output p = %1
)");
  fill(run.input("x"), {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
  fill(run.input("logits"), {2, 0, 1, 0, 0, 1, 3, 0});  // experts 0, 0, 1, 0: all are kept
  require_done(run.executor->run());
  const std::size_t chosen[] = {0, 0, 1, 0};
  for (std::size_t t = 0; t < 4; ++t)
    for (std::size_t d = 0; d < 3; ++d)
      CHECK(run.output("y")[t * 3 + d] == run.output("p")[t * 2 + chosen[t]] * run.input("x")[t * 3 + d]);
}

TEST_CASE("executors share a given arena") {
  const auto arena = backend::cpu::Buffer::raw(4096);
  runtime::ExecutorOptions options;
  options.arena = {arena.as<std::byte>(), arena.size()};
  Run run(
      "plan {a=1}\narena 128\ninput @x : f32[2]\n[0] %0 : f32[2] = add(@x, @x)  # compute forward | at 64\noutput y = "
      "%0\n",
      options);
  fill(run.input("x"), {1, 2});
  require_done(run.executor->run());
  REQUIRE(run.output("y").data() == arena.as<float>() + 16);
  REQUIRE(arena.as<float>()[17] == 4);
  REQUIRE(run.executor->workspace_bytes() == 0);

  const auto small = backend::cpu::Buffer::raw(64);
  options.arena = {small.as<std::byte>(), small.size()};
  REQUIRE_THROWS_AS(runtime::Executor::create(run.plan, run.store, options), InternalError);
}

TEST_CASE("a name that the plan or the store lacks is an error") {
  Run run(
      "plan {a=1}\narena 64\ninput @x : f32[2]\n[0] %0 : f32[2] = add(@x, @x)  # compute forward | at 0\noutput y = "
      "%0\n");
  REQUIRE_THROWS_AS(run.executor->input("y"), InternalError);
  REQUIRE_THROWS_AS(run.executor->output("x"), InternalError);

  auto plan =
      test::good(ir::parse_plan("plan {a=1}\narena 0\ninput @x : f32[2]\n[0] frobnicate(@x)  # compute forward h.0\n"));
  runtime::TensorStore store;
  const Error unknown = test::refused(runtime::Executor::create(*plan, store, {}));
  REQUIRE(unknown.message == "op frobnicate has no kernel on the CPU");

  plan = ir::parse_plan("plan {a=1}\narena 0\nstate @s : f32[2]\n[0] zero(&@s)  # compute update\n");
  REQUIRE(plan.ok());
  REQUIRE_THROWS_WITH(runtime::Executor::create(*plan, store, {}), Catch::Contains("@s"));
  ir::Program other;
  other.add_named(ir::TensorKind::state, "s", {DType::f32, {1}});
  store.add(other);  // a smaller tensor of the same name
  REQUIRE_THROWS_WITH(runtime::Executor::create(*plan, store, {}),
                      Catch::Contains("@s is f32[1] in the store and f32[2] in the plan"));
}

TEST_CASE("three streams: values of many steps") {
  FakeCommunicator expert(doubled), reduce(doubled);
  Run run(three_streams, streams(&expert, &reduce));
  fill(run.state("s"), {1, 2, 3, 4});
  for (int step = 0; step < 1000; ++step) {
    const float x = float(step);
    fill(run.input("x"), {x, x + 1, x + 2, 0});
    require_done(run.executor->run());
    // 2 * 2x + 2 * 3x + x + s
    REQUIRE(values(run.output("y")) == Values{11 * x + 1, 11 * (x + 1) + 2, 11 * (x + 2) + 3, 4});
  }
}

// The reduce stream's all-reduce returns only after the expert stream's, which needs compute's second result. A stream
// that is blocked by another's call would run into the timeout.
TEST_CASE("streams run concurrently") {
  std::promise<void> reached;
  std::shared_future<void> expert_has_run = reached.get_future().share();
  FakeCommunicator expert([&](std::span<float>) -> Status {
    reached.set_value();
    return {};
  });
  FakeCommunicator reduce([&](std::span<float> data) -> Status {
    if (expert_has_run.wait_for(std::chrono::seconds(30)) != std::future_status::ready)
      return internal_error("the expert stream did not run");
    return doubled(data);
  });
  Run run(R"(plan {policy=test}
arena 192
input @x : f32[2]
[0] %0 : f32[2] = add(@x, @x)  # compute forward a | at 0
[1] %1 : f32[2] in %0 = all_reduce(%0)  # reduce sync b | wait 0 | at -
[2] %2 : f32[2] = add(@x, @x)  # compute forward c | at 64
[3] %3 : f32[2] in %2 = all_reduce(%2)  # expert sync d | wait 2 | at -
[4] %4 : f32[2] = add(%1, %3)  # compute forward e | wait 1 3 | at 128
output y = %4
)",
          streams(&expert, &reduce));
  fill(run.input("x"), {1, 2});
  require_done(within(std::chrono::seconds(60), *run.executor));
  REQUIRE(values(run.output("y")) == Values{6, 12});
  // The spans agree: the all-reduce runs from before to after the whole of the expert stream's.
  const auto spans = run.executor->spans();
  REQUIRE(spans[1].start >= spans[0].end);
  REQUIRE(spans[1].end >= spans[3].start);
  REQUIRE(spans[3].start >= spans[2].end);
  REQUIRE(spans[4].start >= spans[1].end);
  REQUIRE(spans[4].start >= spans[3].end);
  for (const runtime::Span& span : spans) REQUIRE(span.start <= span.end);
  const runtime::StepTimes times = run.executor->times();
  REQUIRE(times.step * 1e6 >= double(spans[4].end));
  REQUIRE(times.all_reduce == Approx(double(spans[1].end - spans[1].start) * 1e-6));
}

TEST_CASE("two ranks sum over the reduce stream while compute continues") {
  constexpr std::string_view text = R"(plan {policy=test}
arena 320
input @x : f32[5]
[0] %0 : f32[5] = add(@x, @x)  # compute forward a | at 0
[1] %1 : f32[5] = gelu(@x)  # compute forward b | at 64
[2] %2 : f32[5] in %0, %3 : f32[5] in %1 = all_reduce(%0, %1)  # reduce sync c | wait 1 | at - -
[3] %4 : f32[5] = add(@x, @x)  # compute forward d | at 128
[4] %5 : f32[5] = add(%4, %4)  # compute forward e | at 192
[5] %6 : f32[5] = add(%5, %2)  # compute forward f | wait 2 | at 256
output y = %6
output g = %3
)";
  const Status status = comm::run_inproc(2, [&](comm::Communicator& world) -> Status {
    LANCET_ASSIGN(const auto reduce, world.duplicate());
    LANCET_ASSIGN(const ir::Plan plan, ir::parse_plan(text));
    LANCET_TRY(ir::verify(plan));
    runtime::TensorStore store;
    LANCET_ASSIGN(const auto executor, runtime::Executor::create(plan, store, streams(nullptr, reduce.get())));
    for (int step = 0; step < 20; ++step) {
      // Ranks hold x and 10 x: both get 2 x + 20 x, to which each adds four times its own.
      const float scale = world.rank() == 0 ? 1.f : 10.f;
      float* x = executor->input("x").as<float>();
      for (int i = 0; i < 5; ++i) x[i] = scale * float(i + step);
      LANCET_TRY(executor->run());
      for (int i = 0; i < 5; ++i) {
        const float base = float(i + step), found = executor->output("y").as<float>()[i];
        if (found != 22 * base + 4 * scale * base)
          return internal_error(fmt::format("step {}: y[{}] is {}", step, i, found));
        const double sum = gelu(base) + gelu(10 * base), g = executor->output("g").as<float>()[i];
        if (std::abs(g - sum) > 1e-5 * (1 + sum))
          return internal_error(fmt::format("step {}: g[{}] is {}, expected {}", step, i, g, sum));
      }
    }
    return {};
  });
  require_done(status);
}

TEST_CASE("an error in one stream stops all streams and names the instruction") {
  FakeCommunicator reduce([](std::span<float>) { return Status(communication_error("rank 1 did not arrive")); });
  FakeCommunicator* blocked = nullptr;
  FakeCommunicator expert([&](std::span<float>) { return blocked->block(); });  // until it is aborted
  blocked = &expert;
  Run run(three_streams, streams(&expert, &reduce));
  const Error status = test::refused(within(std::chrono::seconds(50), *run.executor));
  REQUIRE(status.code == ExitCode::communication);
  REQUIRE(status.message == "stream reduce: [3] all_reduce at d: rank 1 did not arrive");
  REQUIRE(expert.aborts() >= 1);
}

TEST_CASE("an exception in a stream is handled like an error") {
  FakeCommunicator expert([](std::span<float>) -> Status { throw InternalError("stream on fire"); }), reduce(doubled);
  Run run(three_streams, streams(&expert, &reduce));
  const Error status = test::refused(within(std::chrono::seconds(50), *run.executor));
  REQUIRE(status.code == ExitCode::internal);
  REQUIRE(status.message == "stream expert: [2] all_reduce at c: stream on fire");
}

TEST_CASE("a run after a failed one starts from scratch") {
  std::atomic<int> failing{0};
  auto sometimes = [&](int stream) {
    return [&failing, stream](std::span<float> data) -> Status {
      if (failing == stream) return communication_error(fmt::format("stream {}", stream));
      return doubled(data);
    };
  };
  FakeCommunicator expert(sometimes(1)), reduce(sometimes(2));
  Run run(three_streams, streams(&expert, &reduce));
  fill(run.input("x"), {1, 1, 1, 1});
  for (int stream : {1, 0, 2, 1, 0}) {
    failing = stream;
    const Status status = within(std::chrono::seconds(50), *run.executor);
    REQUIRE(status.ok() == (stream == 0));
    if (stream) REQUIRE_THAT(status.error().message, Catch::EndsWith(fmt::format(": stream {}", stream)));
    if (!stream) REQUIRE(values(run.output("y")) == Values{11, 11, 11, 11});
  }
}

TEST_CASE("executors are constructed and destroyed without a run") {
  FakeCommunicator expert(doubled), reduce(doubled);
  for (int i = 0; i < 50; ++i) Run run(three_streams, streams(&expert, &reduce));
}

namespace {

// On a mesh of data 2, expert 2: sums over both groups of a rank, on one stream, then over all ranks on the other.
constexpr std::string_view groups_of_ranks = R"(plan {policy=test}
arena 256
input @x : f32[4]
[0] %0 : f32[4] = add(@x, @x)  # compute forward a | at 0
[1] %1 : f32[4] = add(@x, @x)  # compute forward b | at 64
[2] %2 : f32[4] in %0 = all_reduce(%0) {axes=data}  # reduce sync c | wait 0 | at -
[3] %3 : f32[4] in %1 = all_reduce(%1) {axes=expert}  # reduce sync d | wait 1 | at -
[4] %4 : f32[4] = add(%2, %3)  # compute forward e | wait 3 | at 128
[5] %5 : f32[4] in %4 = all_reduce(%4)  # reduce sync f | wait 4 | at -
[6] %6 : f32[4] = add(%2, %3)  # compute forward g | at 192
output all = %5
output mine = %6
)";

}  // namespace

TEST_CASE("instructions go over the groups of ranks that they name") {
  test::good(comm::run_inproc(4, [](comm::Communicator& world) -> Status {
    const int rank = world.rank();
    const std::vector<int> data{rank % 2, rank % 2 + 2}, expert{rank / 2 * 2, rank / 2 * 2 + 1};
    LANCET_ASSIGN(const auto of_data, world.split(data));
    LANCET_ASSIGN(const auto of_expert, world.split(expert));
    runtime::ExecutorOptions options = streams(nullptr, &world);
    comm::Groups& groups = options.groups[std::size_t(ir::Stream::reduce)];
    groups["data"] = comm::group_of(*of_data);
    groups["expert"] = comm::group_of(*of_expert);
    LANCET_ASSIGN(const ir::Plan plan, ir::parse_plan(groups_of_ranks));
    LANCET_TRY(ir::verify(plan));
    runtime::TensorStore store;
    store.add(plan.program);
    LANCET_ASSIGN(const auto executor, runtime::Executor::create(plan, store, options));
    for (int step = 0; step < 3; ++step) {
      std::ranges::fill(Run::span(executor->input("x")), float(1 + rank + step));
      LANCET_TRY(executor->run());
      const auto x = [&](int r) { return 2 * float(1 + r + step); };
      const float mine = x(data[0]) + x(data[1]) + x(expert[0]) + x(expert[1]);
      const float all = 4 * (x(0) + x(1) + x(2) + x(3));
      for (const float value : Run::span(executor->output("mine")))
        if (value != mine) return internal_error(fmt::format("rank {}: {} != {}", rank, value, mine));
      for (const float value : Run::span(executor->output("all")))
        if (value != all) return internal_error(fmt::format("rank {}: {} != {}", rank, value, all));
    }
    groups.erase("data");
    const auto refused = runtime::Executor::create(plan, store, options);
    const std::string why =
        "all_reduce at c goes over the ranks along data, a group that is not open on the stream reduce";
    if (refused.ok() || refused.error().message != why) return internal_error("the missing group");
    groups.erase("");
    const auto alone = runtime::Executor::create(plan, store, options);
    if (alone.ok() || alone.error().message.find("a group that is not open on the stream reduce") == std::string::npos)
      return internal_error("the missing group of all ranks");
    return {};
  }));
}
