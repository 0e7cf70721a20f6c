// The executor over device streams, on a host queue: values, concurrent streams, flags, recording, errors.
#include <atomic>
#include <set>
#include <thread>

#include "good.h"
#include "host_accelerator.h"
#include "support.h"

using namespace lancet;
using namespace lancet::test;
using Values = std::vector<float>;

namespace {

// A plan on an accelerator, and the communicators of its streams.
struct StreamRun {
  ir::Plan plan;
  HostAccelerator& accelerator;
  runtime::TensorStore store;
  std::vector<std::unique_ptr<HostQueueCommunicator>> streams;
  std::unique_ptr<runtime::Executor> executor;

  StreamRun(HostAccelerator& on, std::string_view text, comm::Communicator* expert = nullptr,
            comm::Communicator* reduce = nullptr)
      : accelerator(on) {
    auto parsed = test::good(ir::parse_plan(text));
    plan = *parsed;
    if (const Status sound = ir::verify(plan); !sound.ok()) FAIL(sound.error().message);
    store.place_on(accelerator.device());
    store.add(plan.program);
    runtime::ExecutorOptions options{.accelerator = &accelerator};
    std::size_t stream = 1;
    for (comm::Communicator* comm : {expert, reduce}) {
      if (comm)
        options.groups[stream] =
            comm::all_ranks(streams.emplace_back(std::make_unique<HostQueueCommunicator>(*comm)).get());
      ++stream;
    }
    auto made = test::good(runtime::Executor::create(plan, store, options));
    executor = std::move(*made);
  }
  void input(std::string_view name, const Values& values) {
    const std::span<float> to = Run::span(executor->input(name));
    REQUIRE(to.size() == values.size());
    std::copy(values.begin(), values.end(), to.begin());
  }
  Values output(std::string_view name) const {
    const std::span<float> span = Run::span(executor->output(name));
    return {span.begin(), span.end()};
  }
  void set(std::string_view name, const Values& values) {
    require_done(store.write(store[name], 0, std::as_bytes(std::span(values))));
  }
  Values get(std::string_view name) {
    auto values = test::good(store.read<float>(name));
    return *values;
  }
};

constexpr std::string_view two_steps = R"(plan {policy=test}
arena 128
input @x : f32[4]
parameter @w : f32[4]
state @t : f32[4]
[0] %0 : f32[4] = add(@x, @w)  # compute forward a | at 0
[1] %1 : f32[4] = add(%0, %0)  # compute forward b | at 64
[2] zero(&@t)  # compute update c
output y = %1
output w = @w
)";

}  // namespace

TEST_CASE("streams: a plan computes the right values, run by run and recorded from the second on") {
  HostAccelerator accelerator;
  StreamRun run(accelerator, two_steps);
  run.set("w", {1, 2, 3, 4});
  for (float x : {0.f, 1.f, 2.f, 3.f}) {
    run.set("t", {5, 6, 7, 8});
    run.input("x", {x, x, 2 * x, 0});
    require_done(run.executor->run());
    CHECK(run.output("y") == Values{2 * (x + 1), 2 * (x + 2), 2 * (2 * x + 3), 8});
    CHECK(run.output("w") == Values{1, 2, 3, 4});
    CHECK(run.get("t") == Values{0, 0, 0, 0});
  }
  CHECK(run.executor->has_output("y"));
  CHECK_FALSE(run.executor->has_output("z"));
  CHECK_THROWS_AS(run.executor->input("w"), InternalError);
  CHECK_THROWS_AS(run.executor->input("nothing"), InternalError);
  CHECK_THROWS_AS(run.executor->output("x"), InternalError);
}

TEST_CASE("streams: a run before the last of a step leaves out what closes it, recorded or not") {
  using Which = runtime::Executor::Run;
  HostAccelerator accelerator;
  StreamRun run(accelerator, two_steps);
  run.set("w", {1, 2, 3, 4});
  for (const Which which : {Which::earlier, Which::last, Which::earlier, Which::earlier, Which::last}) {
    run.set("t", {5, 6, 7, 8});
    run.input("x", {1, 0, 0, 0});
    require_done(run.executor->run(which));
    CHECK(run.output("y") == Values{4, 4, 6, 8});
    CHECK(run.get("t") == (which.closing ? Values{0, 0, 0, 0} : Values{5, 6, 7, 8}));
  }
}

TEST_CASE("streams: the end of a step runs in the next run, or alone, recorded or not") {
  HostAccelerator accelerator;
  StreamRun run(accelerator, R"(plan {policy=test}
arena 128
input @x : f32[4]
parameter @w : f32[4]
state @t : f32[4]
carried %1 : f32[4]
[0] %2 : f32[4] in @t = add_to(@t, %1)  # compute update c@-1
[1] %0 : f32[4] = add(@x, @w)  # compute forward a | at 64
[2] %1 : f32[4] = add(%0, %0)  # compute dw b | at 0
output y = %0
)");
  using Which = runtime::Executor::Run;
  run.set("w", {1, 2, 3, 4});
  run.set("t", {0, 0, 0, 0});
  Values sum(4);
  for (int round = 0; round < 3; ++round) {
    for (const bool first : {true, false, false}) {
      run.input("x", {float(round), 1, 0, 0});
      require_done(run.executor->run({.before = !first}));
      CHECK(run.output("y") == Values{float(round + 1), 3, 3, 4});
      CHECK(run.get("t") == sum);
      for (std::size_t i = 0; i < 4; ++i) sum[i] += 2 * run.output("y")[i];
      const bool described = run.executor->spans()[1].end > 0;
      CHECK(described);
    }
    require_done(run.executor->run(Which{.before = true, .body = false, .closing = false}));
    CHECK(run.get("t") == sum);
  }
}

TEST_CASE("streams: all executors of a device share its streams") {
  std::atomic<int> made{0};
  HostAccelerator accelerator({.streams = &made});
  FakeCommunicator expert(doubled), reduce(doubled);
  StreamRun first(accelerator, three_streams, &expert, &reduce);
  const int before = made;
  StreamRun second(accelerator, three_streams, &expert, &reduce);
  CHECK(made == before + 1);  // the second store copies on a stream of its own
  for (const float x : {1.f, 2.f})
    for (StreamRun* run : {&first, &second}) {
      run->input("x", {x, x, x, x});
      require_done(run->executor->run());
      CHECK(run->output("y") == Values{11 * x, 11 * x, 11 * x, 11 * x});
    }
}

TEST_CASE("streams: three streams with late starts, values of many runs") {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    HostAccelerator accelerator({.pause_us = 100, .seed = seed});
    if (seed % 2) accelerator.wait_in("all_reduce");
    FakeCommunicator expert(doubled), reduce(doubled);
    StreamRun run(accelerator, three_streams, &expert, &reduce);
    run.set("s", {1, 2, 3, 4});
    for (int step = 0; step < 20; ++step) {
      const float x = float(step);
      run.input("x", {x, x + 1, x + 2, 0});
      require_done(run.executor->run());
      // 2 * 2x + 2 * 3x + x + s
      REQUIRE(run.output("y") == Values{11 * x + 1, 11 * (x + 1) + 2, 11 * (x + 2) + 3, 4});
    }
  }
}

// From the second run on (the first executes one instruction at a time), expert's sum comes only after compute's second
// addition, which follows reduce's: streams that block each other would hang here.
TEST_CASE("streams: streams run concurrently, and their spans overlap") {
  std::promise<void> reached;
  std::shared_future<void> expert_has_run = reached.get_future().share();
  std::atomic<bool> first_run{true};
  FakeCommunicator expert([&](std::span<float>) -> Status {
    if (!first_run) reached.set_value();
    return {};
  });
  FakeCommunicator reduce([&](std::span<float> data) -> Status {
    if (first_run) return doubled(data);
    if (expert_has_run.wait_for(std::chrono::seconds(30)) != std::future_status::ready)
      return internal_error("the expert stream did not run");
    return doubled(data);
  });
  HostAccelerator accelerator;
  StreamRun run(accelerator, R"(plan {policy=test}
arena 192
input @x : f32[2]
[0] %0 : f32[2] = add(@x, @x)  # compute forward a | at 0
[1] %1 : f32[2] in %0 = all_reduce(%0)  # reduce sync b | wait 0 | at -
[2] %2 : f32[2] = add(@x, @x)  # compute forward c | at 64
[3] %3 : f32[2] in %2 = all_reduce(%2)  # expert sync d | wait 2 | at -
[4] %4 : f32[2] = add(%1, %3)  # compute forward e | wait 1 3 | at 128
output y = %4
)",
                &expert, &reduce);
  run.input("x", {1, 2});
  require_done(within(std::chrono::seconds(60), *run.executor));
  first_run = false;
  require_done(within(std::chrono::seconds(60), *run.executor));
  REQUIRE(run.output("y") == Values{6, 12});
  const auto spans = run.executor->spans();
  CHECK(spans[1].start >= spans[0].end);
  CHECK(spans[1].end >= spans[3].start);
  CHECK(spans[3].start >= spans[2].end);
  CHECK(spans[4].start >= spans[1].end);
  CHECK(spans[4].start >= spans[3].end);
  const runtime::StepTimes times = run.executor->times();
  CHECK(times.step * 1e6 >= double(spans[4].end));
  CHECK(times.all_reduce == Approx(double(spans[1].end - spans[1].start) * 1e-6));
}

TEST_CASE("streams: a stream that fails ends all, with its name") {
  const bool waits = GENERATE(false, true);
  HostAccelerator accelerator({.pause_us = 50, .seed = 1});
  if (waits) accelerator.wait_in("all_reduce");
  FakeCommunicator* blocked = nullptr;
  std::atomic<bool> first_run{true};
  FakeCommunicator expert([&](std::span<float> data) -> Status {
    if (first_run) return doubled(data);
    return communication_error("rank 1 is gone");
  });
  FakeCommunicator reduce([&](std::span<float> data) { return first_run ? doubled(data) : blocked->block(); });
  blocked = &reduce;
  StreamRun run(accelerator, three_streams, &expert, &reduce);
  require_done(within(std::chrono::seconds(60), *run.executor));
  first_run = false;
  const Error status = test::refused(within(std::chrono::seconds(60), *run.executor));
  CHECK(status.code == ExitCode::communication);
  CHECK(status.message == "stream expert: rank 1 is gone");
  CHECK(reduce.aborts() > 0);
}

namespace {

// Ranks of which some never come: queued work ends when it is aborted, and not before.
class Deserted final : public comm::DeviceCommunicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 4; }
  std::string transport() const override { return "test"; }
  Status send_receive(backend::Stream& queue, std::span<const comm::Segment>, std::span<const comm::Segment>) override {
    return all_reduce_sum(queue, {});
  }
  Status all_reduce_sum(backend::Stream& queue, std::span<float>) override {
    return static_cast<HostQueueStream*>(queue.native())->enqueue([this]() -> Status {
      if (deserted) aborted_.wait(false);
      return {};
    });
  }
  Status check() override {
    const std::lock_guard lock(mutex_);
    checked_by.insert(std::this_thread::get_id());
    return failure;
  }
  std::string who_is_missing() override { return "nothing came from rank 3"; }
  Status reserve(std::size_t bytes) override {
    reserved = bytes;
    return {};
  }
  void abort(const std::string& why) override {
    if (before_abort) before_abort();
    aborted_why = why;
    aborted_ = true;
    aborted_.notify_all();
  }
  std::atomic<bool> deserted{true};
  std::function<void()> before_abort;
  std::size_t reserved = 0;
  Status failure;
  std::string aborted_why;
  std::set<std::thread::id> checked_by;

 private:
  std::mutex mutex_;
  std::atomic<bool> aborted_{false};
};

// The sums use that communicator; waits: the kernel's host code waits for the queue, too. Additions take addition_ms.
std::atomic<int> addition_ms{0}, additions{0};
class DesertedAccelerator final : public runtime::Accelerator {
 public:
  explicit DesertedAccelerator(bool waits) {
    reduce_ = {.op = "all_reduce", .bind = waits ? bind<true> : bind<false>, .workspace = nullptr, .recordable = false};
    receive_ = reduce_;
    receive_.op = "receive_next";
    add_ = {.op = "add", .bind = bind_add, .workspace = nullptr, .recordable = false};
  }
  backend::Device& device() override { return host_.device(); }
  const ops::DeviceKernel* find_kernel(std::string_view op) const override {
    if (op == receive_.op) return &receive_;
    return op == "all_reduce" ? &reduce_ : op == "add" ? &add_ : host_.find_kernel(op);
  }
  Result<std::unique_ptr<comm::DeviceCommunicator>> make_communicator(const comm::DeviceStream&) override {
    return internal_error("a call that the test does not expect");
  }
  std::string build() const override { return "test"; }

 private:
  template <bool waits>
  static ops::Kernel bind(const ops::KernelArgs& args) {
    return [comm = args.group.device_comm, queue = args.stream]() -> Status {
      if (!comm) return {};
      LANCET_TRY(comm->all_reduce_sum(*queue, {}));
      return waits ? queue->synchronize() : Status();
    };
  }
  static ops::Kernel bind_add(const ops::KernelArgs& args) {
    return [queue = static_cast<HostQueueStream*>(args.stream->native())] {
      return queue->enqueue([]() -> Status {
        std::this_thread::sleep_for(std::chrono::milliseconds(addition_ms));
        ++additions;
        return {};
      });
    };
  }
  HostAccelerator host_;
  ops::DeviceKernel reduce_, receive_, add_;
};

struct DesertedRun {
  DesertedAccelerator accelerator;
  Deserted reduce;
  runtime::TensorStore store;
  std::unique_ptr<runtime::Executor> executor;

  DesertedRun(bool waits, std::chrono::milliseconds timeout, comm::DeviceCommunicator* expert = nullptr,
              std::string_view text = three_streams)
      : accelerator(waits) {
    auto plan = test::good(ir::parse_plan(text));
    store.place_on(accelerator.device());
    store.add(plan->program);
    runtime::ExecutorOptions options{.groups = {comm::Groups(), comm::all_ranks(expert), comm::all_ranks(&reduce)},
                                     .accelerator = &accelerator,
                                     .timeout = timeout};
    options.groups[std::size_t(ir::Stream::receive_next)] = comm::all_ranks(&reduce);
    auto made = test::good(runtime::Executor::create(*plan, store, options));
    executor = std::move(*made);
  }
};

}  // namespace

TEST_CASE("streams: a missing peer ends the step after the timeout, with the stream and the instruction") {
  constexpr std::string_view of_stage = R"(plan {policy=test}
arena 128
input @x : f32[4]
[0] %0 : f32[4] = receive_next() {dtype=f32, shape="4"}  # receive_next dx h.1 | at 0
[1] %1 : f32[4] = add(@x, %0)  # compute dx h.0 | wait 0 | at 64
output y = %1
)";
  const bool waits = GENERATE(false, true), first = GENERATE(true, false), receives = GENERATE(false, true);
  DesertedRun run(waits, std::chrono::seconds(1), nullptr, receives ? of_stage : three_streams);
  if (!first) {
    run.reduce.deserted = false;
    require_done(within(std::chrono::seconds(60), *run.executor));
    run.reduce.deserted = true;
  }
  const auto start = std::chrono::steady_clock::now();
  const Error status = test::refused(within(std::chrono::seconds(60), *run.executor));
  CHECK(status.code == ExitCode::communication);
  CHECK(status.message ==
        std::string(receives ? "stream receive_next: [0] receive_next at h.1" : "stream reduce: [3] all_reduce at d") +
            ": expected all 4 ranks within 1 s by test, found that it did not end; nothing came from rank 3");
  CHECK(run.reduce.aborted_why == status.message);
  CHECK(std::chrono::steady_clock::now() - start >= std::chrono::seconds(1));
}

// Communicators end as in a driver: only when all streams have finished their work, also streams that wait for a flag
// of the lost stream, and one only when the other is ended as well.
TEST_CASE("streams: communicators whose destruction waits for all streams and for each other are ended") {
  Deserted expert;
  expert.deserted = false;
  DesertedRun run(false, std::chrono::seconds(1), &expert);
  run.reduce.deserted = false;
  const int before = additions;
  require_done(within(std::chrono::seconds(60), *run.executor));
  const int a_run = additions - before, all = additions + a_run;
  REQUIRE(a_run > 0);
  std::atomic<int> begun{0}, met{0};
  const auto meet = [&] {
    ++begun;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while ((begun < 2 || additions < all) && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    met += begun == 2 && additions >= all;
  };
  expert.before_abort = run.reduce.before_abort = meet;
  run.reduce.deserted = true;
  const Error status = test::refused(within(std::chrono::seconds(60), *run.executor));
  CHECK(status.message.starts_with("stream reduce: [3] all_reduce at d: "));
  CHECK(met == 2);
}

TEST_CASE("streams: a stream's communicator reserves the maximum of its calls") {
  DesertedRun run(false, std::chrono::milliseconds(200));
  CHECK(run.reduce.reserved == 2 * 4 * sizeof(float));  // sent and received
}

TEST_CASE("streams: a transport's own error ends the step long before the timeout") {
  DesertedRun run(false, std::chrono::hours(1));
  run.reduce.failure = communication_error("a connection broke");
  const Error status = test::refused(within(std::chrono::seconds(60), *run.executor));
  CHECK(status.message == "stream reduce: [3] all_reduce at d: a connection broke");
}

TEST_CASE("streams: only the stream of a transport's calls asks for their errors") {
  DesertedRun run(false, std::chrono::seconds(1));
  run.reduce.deserted = false;
  require_done(within(std::chrono::seconds(60), *run.executor));
  run.reduce.deserted = true;
  run.reduce.checked_by.clear();
  const Error status = test::refused(within(std::chrono::seconds(60), *run.executor));
  CHECK(status.message.starts_with("stream reduce: [3] all_reduce at d: expected all 4 ranks within 1 s"));
  CHECK(run.reduce.checked_by.size() == 1);
}

TEST_CASE("streams: a stream that waits for computation is not reported as one with missing peers") {
  DesertedRun run(false, std::chrono::seconds(2));
  run.reduce.deserted = false;
  require_done(within(std::chrono::seconds(60), *run.executor));
  addition_ms = 1200;  // two additions before the sum
  const Status status = within(std::chrono::seconds(60), *run.executor);
  addition_ms = 0;
  require_done(status);
}

TEST_CASE("streams: a failure in the first run is named with its instruction") {
  HostAccelerator accelerator;
  FakeCommunicator expert([](std::span<float>) -> Status { return communication_error("rank 1 is gone"); });
  FakeCommunicator reduce(doubled);
  StreamRun run(accelerator, three_streams, &expert, &reduce);
  const Error status = test::refused(within(std::chrono::seconds(60), *run.executor));
  CHECK(status.message == "stream expert: [2] all_reduce at c: rank 1 is gone");
  CHECK(reduce.aborts() > 0);
}

TEST_CASE("streams: a number that is not finite is found at the instruction that made it") {
  HostAccelerator accelerator;
  StreamRun run(accelerator, two_steps);
  run.set("w", {1, 2e38f, 3, 4});
  run.input("x", {0, 1e38f, 0, 0});
  require_done(run.executor->run());
  const auto found = test::good(run.executor->find_non_finite());
  REQUIRE(found->has_value());
  CHECK(runtime::to_string(run.plan.program, **found) == "%1 : f32[4] = add at b (forward), element 1 is inf");
}

TEST_CASE("streams: every instruction has its own time on request") {
  HostAccelerator accelerator;
  StreamRun run(accelerator, two_steps);
  for (int i = 0; i < 3; ++i) require_done(run.executor->run());
  run.executor->time_next_run();
  require_done(run.executor->run());
  const auto spans = run.executor->spans();
  for (std::size_t i = 0; i < spans.size(); ++i) {
    CHECK(spans[i].end >= spans[i].start);
    if (i > 0) CHECK(spans[i].start >= spans[i - 1].end);
  }
}

TEST_CASE("streams: an unsupported feature of an accelerator is an error") {
  HostAccelerator small({.bytes = 100});
  runtime::TensorStore store;
  auto plan = test::good(ir::parse_plan(
      "plan {a=1}\narena 128\ninput @x : f32[2]\n[0] %0 : f32[2] = add(@x, @x)  # compute forward | at 64\noutput y = "
      "%0\n"));
  auto made = runtime::Executor::create(*plan, store, {.accelerator = &small});
  REQUIRE_FALSE(made.ok());
  CHECK(made.error().message == "expected 128 bytes of memory on host queue, found 100 free");

  HostAccelerator accelerator;
  plan = ir::parse_plan("plan {a=1}\narena 0\ninput @x : f32[2]\n[0] frobnicate(@x)  # compute forward h.0\n");
  REQUIRE(plan.ok());
  made = runtime::Executor::create(*plan, store, {.accelerator = &accelerator});
  REQUIRE_FALSE(made.ok());
  CHECK(made.error().message == "op frobnicate has no kernel on host queue");
}

TEST_CASE("streams: a missing or invalid plugin is a config error") {
  const Error missing = test::refused(runtime::load_module("/nowhere/liblancet_cuda.so"));
  CHECK(missing.code == ExitCode::config);
  CHECK(missing.message.find("/nowhere/liblancet_cuda.so") != std::string::npos);
  const Error other = test::refused(runtime::load_module(LANCET_SOURCE_DIR "/README.md"));
  CHECK(other.message.find("cannot load the module") != std::string::npos);
}
