// Plans whose instructions go over groups of ranks: on the CPU, on a device, and on an emulated device, which sends
// messages of the right number and size, and no values.
#include <catch2/catch.hpp>
#include <cstring>
#include <thread>

#include "declared_hardware.h"
#include "doubles/inproc.h"
#include "good.h"
#include "host_accelerator.h"
#include "lancet/base/clock.h"
#include "lancet/ir/groups.h"
#include "lancet/ir/plan.h"
#include "runtime/emulated_kernels.h"
#include "support.h"

namespace lancet {

using namespace test;

namespace {

// Counts the bytes and the calls that go to a group.
class SentBytes final : public comm::Communicator {
 public:
  SentBytes(std::unique_ptr<comm::Communicator> group, std::size_t& bytes, int& calls)
      : group_(std::move(group)), bytes_(bytes), calls_(calls) {}
  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  std::string transport() const override { return group_->transport(); }
  Status send_receive(std::span<const comm::Segment> sends, std::span<const comm::Segment> receives) override {
    ++calls_;
    for (const comm::Segment& segment : sends) bytes_ += segment.bytes;
    return group_->send_receive(sends, receives);
  }
  Status all_reduce_sum(std::span<float> values) override { return group_->all_reduce_sum(values); }
  Status broadcast(std::span<std::byte> bytes, int root) override { return group_->broadcast(bytes, root); }
  Status barrier() override { return group_->barrier(); }
  Result<std::unique_ptr<comm::Communicator>> split(std::span<const int> members) override {
    return group_->split(members);
  }
  void abort(const std::string& why) override { group_->abort(why); }
  void set_timeout(std::chrono::milliseconds timeout) override { group_->set_timeout(timeout); }

 private:
  std::unique_ptr<comm::Communicator> group_;
  std::size_t& bytes_;
  int& calls_;
};

constexpr std::string_view collectives = R"(plan {policy=test}
arena 22528
input @x : f32[64,32]
[0] %0 : f32[64,16] = take_shard(@x) {axes=data, shards=2, axis=1}  # compute forward a | at 0
[1] %1 : f32[64,32] = all_gather(%0) {axes=data, shards=2, axis=1}  # expert forward b | wait 0 | at 4096
[2] %2 : f32[64,32] = sum_shards(%1) {axes=expert, shards=2}  # expert forward c | at 12288
[3] %3 : f32[16,32] = reduce_scatter(%2) {axes="data,expert", shards=4, axis=0}  # expert forward d | at 20480
output y = %3
)";

}  // namespace

TEST_CASE("an emulated device sends the messages of groups, scaled, and touches no tensor") {
  const auto hardware = test::good(cost::parse_hardware(declared_hardware(), "test"));
  test::good(comm::run_inproc(4, [&](comm::Communicator& world) -> Status {
    const int rank = world.rank();
    std::size_t bytes = 0;
    int calls = 0;
    const auto counted = [&](std::vector<int> members) -> Result<std::unique_ptr<comm::Communicator>> {
      LANCET_ASSIGN(auto group, world.split(members));
      return std::unique_ptr<comm::Communicator>(std::make_unique<SentBytes>(std::move(group), bytes, calls));
    };
    LANCET_ASSIGN(const auto data, counted({rank % 2, rank % 2 + 2}));
    LANCET_ASSIGN(const auto expert, counted({rank / 2 * 2, rank / 2 * 2 + 1}));
    LANCET_ASSIGN(const auto all, counted({0, 1, 2, 3}));
    const auto device = std::make_unique<runtime::EmulatedDevice>(runtime::EmulatedDevice::Options{
        .hosts = {*hardware}, .layout = {4, 1, ir::Mesh{{1, 2, 2, 1}}}, .rank = rank, .scale = 4});
    LANCET_ASSIGN(const ir::Plan plan, ir::parse_plan(collectives));
    LANCET_TRY(ops::verify(plan.program));
    LANCET_TRY(device->calibrate(world, {&plan.program}));
    std::vector<std::byte> arena(std::size_t(plan.arena_bytes), std::byte{0x5a});
    runtime::ExecutorOptions options{.arena = {arena.data(), arena.size()}, .emulated = device.get()};
    options.groups[0]["data"] = {rank / 2, 2};
    options.groups[1] = comm::all_ranks(all.get());
    options.groups[1]["data,expert"] = comm::group_of(*all);
    options.groups[1]["data"] = comm::group_of(*data);
    options.groups[1]["expert"] = comm::group_of(*expert);
    runtime::TensorStore store;
    store.add(plan.program);
    LANCET_ASSIGN(const auto executor, runtime::Executor::create(plan, store, options));
    for (int step = 1; step <= 2; ++step) {
      LANCET_TRY(executor->run());
      // A quarter of: two pieces of 4 KB; two, and one of the sum to the other rank; four of 2 KB.
      if (bytes != std::size_t(step) * (2048 + 3072 + 2048) || calls != step * 4)
        return internal_error(fmt::format("rank {}, step {}: {} bytes, {} calls", rank, step, bytes, calls));
    }
    if (std::ranges::count(arena, std::byte{0x5a}) != std::ssize(arena)) return internal_error("a tensor was touched");
    return {};
  }));
}

TEST_CASE("an emulated device runs the rounds of a repeat, and of its body computes windows alone") {
  const auto hardware = test::good(cost::parse_hardware(declared_hardware(), "test"));
  const auto plan = ir::parse_plan(R"(plan {policy=test}
arena 2048
input @slot : i32[4,1]
input @filled : i32[2,2]
input @count : i32[1]
input @x : f32[4,8]
[0] %0 : f32[4,8] = gelu(@x)  # compute forward a | at 0
[1] %1 : i32[1], %2 : i32[128], %3 : f32[4,8] in %0 = repeat(@count, @slot, @filled, @x, %0))"
                                   R"(  # expert forward a | wait 0 | at 512 1024 -
body %4 : i32[4,1] in %2 + 0, %5 : i32[2,2] in %2 + 64 = window(@slot, @filled, %1) {slots=2}  # compute forward a
body %6 : f32[4,8] in %2 + 128 = gelu(@x)  # compute forward a
body %7 : f32[4,8] in %2 + 256 = gelu(%6)  # compute forward a
body %3 = add_to(%0, %7)  # compute forward a
output y = %3
)");
  if (!plan.ok()) FAIL(plan.error().message);
  runtime::EmulatedDevice device({.hosts = {*hardware}, .layout = {1, 1, ir::Mesh{{1, 1, 1, 1}}}});
  std::vector<std::byte> arena(std::size_t(plan->arena_bytes), std::byte{0x5a});
  runtime::TensorStore store;
  store.add(plan->program);
  const auto executor =
      runtime::Executor::create(*plan, store, {.arena = {arena.data(), arena.size()}, .emulated = &device});
  if (!executor.ok()) FAIL(executor.error().message);
  for (const int rounds : {1, 3}) {
    *(*executor)->input("count").as<std::int32_t>() = rounds;
    test::good((*executor)->run());
    std::int32_t round = 0;
    std::memcpy(&round, &arena[512], sizeof round);
    if (rounds > 1) CHECK(round == rounds - 1);
    const auto untouched = std::size_t(std::ranges::count(arena, std::byte{0x5a}));
    CHECK(untouched == arena.size() - (rounds > 1 ? 4 + 16 + 16 : 0));  // the round, and slots and counts of a window
  }
}

TEST_CASE("an emulated device knows the latency of messages between stages, and of sums over some of them") {
  const auto hardware = test::good(cost::parse_hardware(declared_hardware({.latency_us = 50'000}), "test"));
  const auto of_stages = ir::parse(R"(program test
input @x : f32[64,32]
send_next(@x)  # send_next forward a
%0 : f32[64,32] = receive_previous() {dtype=f32, shape="64,32"}  # receive_previous forward a
%1 : f32[64,32] in @x = all_reduce(@x) {axes=stage, stages="0,2"}  # reduce sync b
%2 : f32[64,32] in %1 = all_reduce(%1) {axes=stage}  # reduce sync c
output y = %2
)");
  if (!of_stages.ok()) FAIL(of_stages.error().message);
  // A message to the next host takes 50 ms; a sum over two hosts two hops of 10 ms, over three hosts four.
  test::good(comm::run_inproc(3, [&](comm::Communicator& world) -> Status {
    const auto device = std::make_unique<runtime::EmulatedDevice>(runtime::EmulatedDevice::Options{
        .hosts = {*hardware}, .layout = {3, 3, ir::Mesh{{3, 1, 1, 1}}}, .rank = world.rank()});
    LANCET_TRY(device->calibrate(world, {&*of_stages}));
    const auto& list = of_stages->instructions;
    const auto check = [](const char* what, double found_ns, double declared_ms) -> Status {
      const double ms = found_ns / runtime::ns_per_ms;
      if (ms > declared_ms / 2 && ms <= declared_ms + 0.01) return {};
      return internal_error(fmt::format("{}: {} of {} ms", what, ms, declared_ms));
    };
    LANCET_TRY(check("send", device->message_latency_ns(list[0]), 50));
    LANCET_TRY(check("receive", device->message_latency_ns(list[1]), 50));
    if (world.rank() != 1) LANCET_TRY(check("two stages", device->all_reduce_latency_ns(list[2]), 20));
    return check("all stages", device->all_reduce_latency_ns(list[3]), 40);
  }));
}

TEST_CASE("an emulated device knows the latency of every group of a program, and of messages to some of its ranks") {
  // 50 ms, within a host too, and 20 ms for every message to another host after the first.
  const auto hardware = test::good(cost::parse_hardware(declared_hardware({.latency_us = 50'000}), "test",
                                                        "network.message_us=20000,network.latency_us=50000"));
  const auto program = ir::parse(R"(program test
input @x : f32[64,32]
%0 : f32[64,32] = sum_shards(@x) {axes="data,expert", shards=4}  # expert forward a
%1 : f32[64,32] = sum_shards(%0) {axes=tensor, shards=2}  # expert forward b
%2 : f32[64,32] = sum_shards(%1) {shards=8}  # expert forward c
%3 : f32[64,32] = all_to_all(%2) {peers=2, near=0}  # expert forward d
%4 : f32[64,32] = all_to_all(%2) {peers=1, near=1}  # expert forward e
%5 : f32[64,32] = permute_shards(%2) {shards=8, shift=1}  # expert forward f
output y = %1
)");
  if (!program.ok()) FAIL(program.error().message);
  // Two ranks a host. a: 3 messages; b and e stay on the host; c: in two steps, 3 messages; d: 3/8 of the 6 ranks on
  // other hosts; f: one message.
  const std::vector<double> declared{90, 50, 140, 75, 50, 50};
  test::good(comm::run_inproc(8, [&](comm::Communicator& world) -> Status {
    const auto device = std::make_unique<runtime::EmulatedDevice>(runtime::EmulatedDevice::Options{
        .hosts = {*hardware}, .layout = {8, 4, ir::Mesh{{1, 2, 2, 2}}}, .rank = world.rank()});
    LANCET_TRY(device->calibrate(world, {&*program}));
    for (std::size_t i = 0; i < declared.size(); ++i) {
      // At least half of the declared latency of a message is left to sleep.
      const double found = device->message_latency_ns(program->instructions[i]) / runtime::ns_per_ms;
      if (!(found > declared[i] / 2 && found <= declared[i] + 0.01))
        return internal_error(fmt::format("{}: {} of {} ms", i, found, declared[i]));
    }
    for (const char* group : {"", "data,expert", "tensor"}) {
      ir::Instruction all_reduce;
      if (*group != '\0') all_reduce.attributes.set(ir::axes_attribute, std::string(group));
      if (!(device->all_reduce_latency_ns(all_reduce) > 0)) return internal_error(group);
    }
    return {};
  }));
}

TEST_CASE("collectives over groups compute the same on the CPU and on a device") {
  const bool on_device = GENERATE(false, true);
  const Status status = comm::run_inproc(4, [&](comm::Communicator& world) -> Status {
    const int rank = world.rank();
    const std::vector<int> data{rank % 2, rank % 2 + 2}, expert{rank / 2 * 2, rank / 2 * 2 + 1};
    LANCET_ASSIGN(const auto of_data, world.split(data));
    LANCET_ASSIGN(const auto of_expert, world.split(expert));
    HostQueueCommunicator all_device(world), data_device(*of_data), expert_device(*of_expert);
    const auto group = [&](comm::Communicator& host, HostQueueCommunicator& device) {
      return on_device ? comm::group_of(device) : comm::group_of(host);
    };
    HostAccelerator accelerator;
    runtime::ExecutorOptions options{.accelerator = on_device ? &accelerator : nullptr};
    options.groups[0]["data"] = {rank / 2, 2};
    comm::Groups& groups = options.groups[1];
    groups[""] = groups["data,expert"] = group(world, all_device);
    groups["data"] = group(*of_data, data_device);
    groups["expert"] = group(*of_expert, expert_device);
    LANCET_ASSIGN(const ir::Plan plan, ir::parse_plan(collectives));
    runtime::TensorStore store;
    if (on_device) store.place_on(accelerator.device());
    store.add(plan.program);
    LANCET_ASSIGN(const auto executor, runtime::Executor::create(plan, store, options));
    for (int step = 0; step < 3; ++step) {
      const std::span<float> x = Run::span(executor->input("x"));
      for (std::size_t i = 0; i < x.size(); ++i) x[i] = float(i) + 10'000.f * float(step);
      LANCET_TRY(executor->run());
      // The gathered halves are x again; 2 ranks and then 4 add it up; a rank has 16 of 64 rows.
      const std::span<const float> y = Run::span(executor->output("y"));
      for (std::size_t i = 0; i < y.size(); ++i) {
        const float expected = 8 * (float(16 * 32 * rank) + float(i) + 10'000.f * float(step));
        if (y[i] != expected) return internal_error(fmt::format("rank {}, {}: {} != {}", rank, i, y[i], expected));
      }
    }
    return {};
  });
  INFO((status.ok() ? "" : status.error().message));
  CHECK(status.ok());
}

// The times that Pace gives to instructions. Bounds from above are far from what they exclude, since other processes
// may hold up this one.

namespace {

using namespace std::chrono_literals;
using ir::Stream;

constexpr double ms = 1e6;  // ns

ir::Plan plan_of(std::initializer_list<Stream> streams) {
  ir::Plan plan;
  for (const Stream stream : streams) {
    ir::Instruction at;
    at.stream = stream;
    plan.program.instructions.push_back(at);
  }
  plan.waits.resize(streams.size());
  return plan;
}

class Stopwatch {
 public:
  double passed_ms() const { return seconds_since(start_) * 1e3; }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace

TEST_CASE("delays between computations do not add up, since their ideal ends follow each other") {
  const ir::Plan plan = plan_of({Stream::compute, Stream::compute, Stream::compute, Stream::compute, Stream::compute});
  runtime::Pace pace(plan, 0, 2);
  pace.begin_step();
  const Stopwatch watch;
  for (std::int32_t i = 0; i < 5; ++i) {
    std::this_thread::sleep_for(30ms);
    pace.compute(i, 20 * ms);  // 40 ms of the host each
  }
  CHECK(watch.passed_ms() >= 200);
  CHECK(watch.passed_ms() < 300);  // 350 with the delays
  CHECK(pace.late_ns() == 0);
}

TEST_CASE("an instruction takes no time in a run that leaves it out, though it took some in the run before") {
  const ir::Plan plan = plan_of({Stream::compute, Stream::compute, Stream::compute});
  runtime::Pace pace(plan, 0, 1);
  for (const bool left_out : {false, true}) {
    pace.begin_step();
    const Stopwatch watch;
    pace.compute(0, 20 * ms);
    if (left_out)
      pace.leave_out(1);
    else
      pace.compute(1, 200 * ms);
    pace.compute(2, 20 * ms);
    CHECK(watch.passed_ms() >= (left_out ? 40 : 240));
    if (left_out) CHECK(watch.passed_ms() < 240);
  }
}

TEST_CASE("a message takes its share of the device, for no longer than it takes alone") {
  const ir::Plan plan = plan_of({Stream::expert, Stream::compute});
  const auto computed_ms = [&](double alone_ns) {
    runtime::Pace pace(plan, 0, 1);
    pace.begin_step();
    pace.begin(0);
    pace.begin_message(0, alone_ns, 0.5);
    const Stopwatch watch;
    pace.compute(1, 50 * ms);
    return watch.passed_ms();
  };
  CHECK(computed_ms(1000 * ms) >= 98);  // half of the device until its end
  CHECK(computed_ms(10 * ms) >= 54);
  CHECK(computed_ms(10 * ms) < 90);
}

TEST_CASE("what computes between the messages of a repeat takes its time from the compute stream") {
  const ir::Plan plan = plan_of({Stream::expert, Stream::compute});
  runtime::Pace pace(plan, 0, 1);
  pace.begin_step();
  const Stopwatch watch;
  pace.begin(0);
  pace.compute_beside(0, 20 * ms);
  pace.begin_message(0, 10 * ms, 0);
  pace.end_message(0, 10 * ms);
  pace.compute_beside(0, 20 * ms);
  CHECK(watch.passed_ms() >= 50);
  pace.compute(1, 50 * ms);  // beside 40 ms, of each of which nine tenths are taken
  CHECK(watch.passed_ms() >= 85);
}

TEST_CASE("late is what this machine adds to messages: to their start and to their latency") {
  const ir::Plan plan = plan_of({Stream::expert, Stream::expert});
  runtime::Pace pace(plan, 0, 1);
  pace.begin_step();
  std::this_thread::sleep_for(20ms);
  pace.begin(0);  // its ideal start was 0
  pace.begin_message(0, ms, 0);
  CHECK(pace.late_ns() >= 20 * ms);
  pace.end_message(0, -30 * ms);  // messages take 30 ms longer than they should
  CHECK(pace.late_ns() >= 50 * ms);
  pace.begin(1);  // right after the one before
  pace.begin_message(1, ms, 0);
  pace.end_message(1, 10 * ms);
  CHECK(pace.late_ns() < 100 * ms);
  pace.begin_step();
  CHECK(pace.late_ns() == 0);
}

}  // namespace lancet
