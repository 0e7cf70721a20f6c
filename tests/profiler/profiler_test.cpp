// The profiler measures missing costs and nothing else. Times are measured, so the tests only check that they are sane.
#include <fmt/format.h>
#include <catch2/catch.hpp>
#include <cmath>

#include "doubles/inproc.h"
#include "good.h"
#include "host_accelerator.h"
#include "lancet/comm/communicator.h"
#include "lancet/profiler/profiler.h"

namespace lancet {
namespace {

// Forward and a little backward of one MoE layer on rank 0 of W, as the planner makes it; the arena is ample.
std::string moe_plan(int ranks) {
  const bool two = ranks == 2;
  const std::string rows = two ? "i32[2,3]" : "i32[4,2]", buffer = two ? "2,12" : "4,6", local = two ? "2" : "4";
  std::string text = R"(plan {policy=test, ranks=)" + std::to_string(ranks) + R"(}
arena 40960
input @tokens : i32[2,8]
input @schedule : f32[4]
parameter @wte : f32[11,8]
parameter @wpe : f32[8,8]
parameter @gate : f32[4,8]
parameter @w : f32[LOCAL{expert},16,8]
parameter @b : f32[LOCAL{expert},16]
state @gate.m : f32[4,8]
[0] %0 : f32[2,8,8] = embedding(@tokens, @wte, @wpe)  # compute forward wte | at 0
[1] %1 : f32[2,8,4] = router(%0, @gate)  # compute forward gate | at 512
[2] %2 : i32[16,1], %18 : f32[16,1], %3 : f32[2,8,4] = top_k(%1) {k=1}  # compute forward gate | at 1024 1152 1280
[3] %17 : i32[16,1], %19 : i32[1,4], %20 : i32[4,2], %4 : f32[2,4] = slots(%2) {capacity=6, groups=1, experts=4}  # compute forward gate | at 1088 1216 1664 1536
[4] %5 : ROWS = all_to_all_counts(%20) {ranks=W}  # expert forward counts | wait 3 | at 2048
[5] %6 : f32[4,6,8] = dispatch(%0, %2, %17, %20) {slots=6}  # compute forward dispatch | at 3072
[6] %7 : f32[BUFFER,8] = all_to_all(%6, %20, %5)  # expert forward there | wait 5 | at 4096
[7] %8 : f32[BUFFER,16] = expert_linear(%7, @w, @b, %5)  # compute forward fc | wait 6 | at 8192
[8] %9 : f32[BUFFER,16] = gelu(%8, %5)  # compute forward gelu | at 12288
[9] %10 : f32[BUFFER,16] = gelu(%9, %5)  # compute forward gelu | at 16384
[10] %11 : f32[BUFFER,8] = expert_linear_dx(%10, @w, %5)  # compute dx fc | at 20480
[11] %12 : f32[4,6,8] = all_to_all_back(%11, %20, %5)  # expert forward back | wait 10 | at 24576
[12] %13 : f32[2,8,8] = combine(%12, %2, %17, %18, %20) {batch=2}  # compute forward combine | wait 11 | at 26624
[13] %14 : f32[4,8] = router_dw(%1, %13)  # compute dw gate | at 28672
REDUCE[N] %16 : f32[1] = squared_norm(GRAD)  # compute update norm WAIT| at 32768
output norm = %16
)";
  auto set = [&](const std::string& from, const std::string& to) {
    for (auto at = text.find(from); at != text.npos; at = text.find(from, at + to.size()))
      text.replace(at, from.size(), to);
  };
  set("LOCAL", local), set("ROWS", rows), set("BUFFER", buffer),
      set("{ranks=W}", "{ranks=" + std::to_string(ranks) + "}");
  set("REDUCE", two ? "[14] %15 : f32[4,8] in %14 = all_reduce(%14)  # reduce sync bucket | wait 13 | at -\n" : "");
  set("[N]", two ? "[15]" : "[14]"), set("GRAD", two ? "%15" : "%14"), set("WAIT", two ? "| wait 14 " : "");
  return text;
}

ir::Plan parsed(const std::string& text) {
  auto plan = test::good(ir::parse_plan(text));
  if (const Status sound = ir::verify(*plan); !sound.ok()) FAIL(sound.error().message);
  return *plan;
}

constexpr double no_time = 0;  // the fewest sweeps

void check_sane(const cost::Profile& profile) {
  for (const auto& [key, time] : profile.ops) {
    INFO(key);
    CHECK(std::isfinite(time.ms));
    CHECK(time.ms > 0);
    CHECK(time.ms < 60e3);
    CHECK(time.samples >= 3);
    CHECK(std::isfinite(time.spread));
    CHECK(time.spread >= 0);
  }
}

}  // namespace

TEST_CASE("the profiler times every op of a plan once") {
  const std::vector<ir::Plan> plans{parsed(moe_plan(1))};
  cost::Profile profile({profiler::this_device(1, 1), {}});
  const auto missing = profiler::missing_ops(plans, profile);
  CHECK(missing.size() == 14);  // gelu twice under one key; the copies of one rank's all-to-alls among them
  const auto report = test::good(profiler::fill_profile(profile, plans, {.seconds = no_time}));
  CHECK(report->ops == 14);
  CHECK_FALSE(report->network);
  CHECK(profile.ops.size() == 14);
  CHECK(profile.ops.at("gelu(f32[4,6,16], i32[4,2])").samples ==
        2 * profile.ops.at("router(f32[2,8,8], f32[4,8])").samples);
  check_sane(profile);
  CHECK(cost::op_costs(profile, plans[0].program).ok());
}

TEST_CASE("ops that the profile holds are not timed again") {
  const std::vector<ir::Plan> plans{parsed(moe_plan(1))};
  cost::Profile profile({profiler::this_device(1, 1), {}});
  const std::string known = "gelu(f32[4,6,16], i32[4,2])";
  profile.ops[known] = {1234, 1, 0};
  const auto report = test::good(profiler::fill_profile(profile, plans, {.seconds = no_time}));
  CHECK(report->ops == 13);
  CHECK(profile.ops.at(known) == cost::OpTime{1234, 1, 0});
  CHECK(profiler::missing_ops(plans, profile).empty());
  const auto before = profile.ops;
  const auto again = test::good(profiler::fill_profile(profile, plans, {.seconds = no_time}));
  CHECK(again->ops == 0);
  CHECK(profile.ops == before);
}

TEST_CASE("a key that two plans share is timed in the first") {
  const std::vector<ir::Plan> plans{parsed(moe_plan(1)), parsed(moe_plan(1))};
  cost::Profile profile({profiler::this_device(1, 1), {}});
  const auto report = test::good(profiler::fill_profile(profile, plans, {.seconds = no_time}));
  CHECK(report->ops == 14);
}

TEST_CASE("parts of equal size share their times") {
  const std::vector<ir::Plan> plans{parsed(R"(plan {policy=test}
arena 12288
input @x : f32[2,8,8]
input @logits : f32[2,8,4]
parameter @w : f32[4{expert},16,8]
parameter @b : f32[4{expert},16]
view %0 : f32[1,8,8] in @x + 0
view %1 : f32[1,8,8] in @x + 256
view %2 : f32[4,6,8] | at 0
view %3 : f32[4,6,16] | at 1024
[0] %4 : i32[16,1], %17 : f32[16,1], %5 : f32[2,8,4] = top_k(@logits) {k=1}  # compute forward gate | at 4096 5376 4352
[1] %16 : i32[16,1], %18 : i32[1,4], %19 : i32[4,2], %6 : f32[2,4] = slots(%4) {capacity=6, groups=1, experts=4}  # compute forward gate | at 5312 5440 5504 4608
view %20 : i32[8,1] in %4 + 0
view %21 : i32[8,1] in %16 + 0
[2] %7 : i32[4,2] = split_filled(%20, %21) {experts=4, part=0, parts=2}  # compute forward gate | at 4672
view %22 : i32[8,1] in %4 + 32
view %23 : i32[8,1] in %16 + 32
[3] %8 : i32[4,2] = split_filled(%22, %23, %7) {experts=4, part=1, parts=2}  # compute forward gate | at 4864
[4] %9 : i32[4,2] = all_to_all_counts(%7) {ranks=1}  # expert forward counts | wait 2 | at 5056
[5] %10 : i32[4,2] = all_to_all_counts(%8, %9) {ranks=1}  # expert forward counts | wait 3 | at 5120
[6] %11 : f32[4,6,8] in %2 part 0 of 2 = dispatch(%0, %20, %21, %7) {slots=6, part=0, parts=2}  # compute forward dispatch | at -
[7] %12 : f32[4,6,8] in %2 part 1 of 2 = dispatch(%1, %22, %23, %8) {slots=6, part=1, parts=2}  # compute forward dispatch | at -
[8] %13 : f32[4,6,16] in %3 part 0 of 2 = expert_linear(%11, @w, @b, %9) {tokens=8, part=0, parts=2}  # compute forward fc | wait 4 | at -
[9] %14 : f32[4,6,16] in %3 part 1 of 2 = expert_linear(%12, @w, @b, %10) {tokens=8, part=1, parts=2}  # compute forward fc | wait 5 | at -
[10] %15 : i32[4,2] = join_rows(%7, %8)  # compute forward join | at 5184
output y = %3
)")};
  cost::Profile profile({profiler::this_device(1, 1), {}});
  const auto report = test::good(profiler::fill_profile(profile, plans, {.seconds = no_time}));
  const int sweeps = profile.ops.at("slots(i32[16,1]) {capacity=6, experts=4, groups=1}").samples;
  CHECK(profile.ops.at("dispatch(f32[1,8,8], i32[8,1], i32[8,1], i32[4,2]) {slots=6}").samples == 2 * sweeps);
  CHECK(profile.ops.at("expert_linear(f32[4,6,8], f32[4,16,8], f32[4,16], i32[4,2]) {tokens=8}").samples == 2 * sweeps);
  CHECK(report->ops == 9);  // top_k, slots, 2 split_filled, 2 all_to_all_counts, dispatch, expert_linear, join_rows
  check_sane(profile);
}

TEST_CASE("ranks measure together and agree on the results") {
  const std::vector<ir::Plan> plans{parsed(moe_plan(2))};
  std::vector<cost::Profile> profiles(2);
  const Status status = comm::run_inproc(2, [&](comm::Communicator& world) -> Status {
    LANCET_ASSIGN(const auto expert, world.duplicate());
    LANCET_ASSIGN(const auto reduce, world.duplicate());
    cost::Profile profile({profiler::this_device(1, 2), {world.transport(), 2, 1}});
    LANCET_ASSIGN(const auto report, profiler::fill_profile(profile, plans,
                                                            {.threads = 1,
                                                             .world = &world,
                                                             .streams = {comm::Groups(), comm::all_ranks(expert.get()),
                                                                         comm::all_ranks(reduce.get())},
                                                             .seconds = no_time}));
    if (report.ops != 11 || !report.network) return internal_error("expected 11 ops and communication");
    LANCET_ASSIGN(const auto again, profiler::fill_profile(profile, plans,
                                                           {.threads = 1,
                                                            .world = &world,
                                                            .streams = {comm::Groups(), comm::all_ranks(expert.get()),
                                                                        comm::all_ranks(reduce.get())},
                                                            .seconds = no_time}));
    if (again.ops != 0 || again.network) return internal_error("expected nothing to be measured twice");
    profiles[std::size_t(world.rank())] = profile;
    return {};
  });
  INFO((status.ok() ? "" : status.error().message));
  REQUIRE(status.ok());
  CHECK(profiles[0].ops == profiles[1].ops);
  check_sane(profiles[0]);
  const cost::NetworkTimes &network = profiles[0].network, &other = profiles[1].network;
  CHECK(network.all_to_all == other.all_to_all);
  CHECK(network.all_reduce == other.all_reduce);
  CHECK(network.launch_ms == other.launch_ms);
  CHECK(network.launch_ms > 0);
  CHECK(network.all_to_all_core == other.all_to_all_core);
  CHECK(network.all_reduce_core.ms(1e6) >= 0);
  for (const auto* points : {&network.all_to_all, &network.all_reduce}) {
    REQUIRE(points->size() == 3);  // at least three sizes
    CHECK((*points)[0].bytes == 1024);
    CHECK((*points)[2].bytes == 4096);
    for (const cost::Point& point : *points) CHECK(point.ms > 0);
  }
  CHECK(cost::op_costs(profiles[0], plans[0].program).ok());
}

TEST_CASE("an interrupted profiler keeps the ops of the plans that it has measured") {
  const std::vector<ir::Plan> plans{parsed(moe_plan(1)), parsed(moe_plan(2))};
  cost::Profile profile({profiler::this_device(1, 1), {}});
  int asked = 0;
  const auto report = profiler::fill_profile(
      profile, plans, {.seconds = no_time, .interrupted = [&] { return ++asked > 9; }});  // 7 for the first plan
  REQUIRE_FALSE(report.ok());
  CHECK(report.error().code == ExitCode::saved);
  CHECK(report.error().agreed);
  CHECK(asked == 10);
  CHECK(profile.ops.size() == 14);
  CHECK(cost::op_costs(profile, plans[0].program).ok());
  CHECK_FALSE(profiler::missing_ops(plans, profile).empty());
}

TEST_CASE("a profiler that one rank interrupts in its communication ends on all, without half of it") {
  const std::vector<ir::Plan> plans{parsed(moe_plan(2))};
  const int most = GENERATE(8, 16);  // of sizes of all-to-alls, of all-reduces, of what slows down what
  std::vector<cost::Profile> profiles(2);
  test::good(comm::run_inproc(2, [&](comm::Communicator& world) -> Status {
    LANCET_ASSIGN(const auto expert, world.duplicate());
    LANCET_ASSIGN(const auto reduce, world.duplicate());
    cost::Profile profile({profiler::this_device(1, 2), {world.transport(), 2, 1}});
    int asked = 0;
    profiler::ProfilerOptions options{
        .threads = 1,
        .world = &world,
        .streams = {comm::Groups(), comm::all_ranks(expert.get()), comm::all_ranks(reduce.get())},
        .seconds = no_time,
        .interrupted = [&] { return ++asked > most && world.rank() == 1; }};
    const auto report = profiler::fill_profile(profile, plans, options);
    if (report.ok() || report.error().code != ExitCode::saved) return internal_error("expected an interruption");
    if (asked != most + 1 || profile.network.measured()) return internal_error("expected no communication");
    options.interrupted = {};
    LANCET_ASSIGN(const auto rest, profiler::fill_profile(profile, plans, options));
    if (rest.ops != 0 || !rest.network) return internal_error("expected that communication alone was missing");
    profiles[std::size_t(world.rank())] = profile;
    return {};
  }));
  CHECK(profiles[0].ops == profiles[1].ops);
  CHECK(profiles[0].network.launch_ms > 0);
  CHECK_FALSE(profiler::lacks_times(plans, profiles[0], 2));
}

TEST_CASE("an error of one rank before the first sweep is returned on all ranks at once") {
  const std::vector<ir::Plan> plans{parsed(moe_plan(2))};
  for (const int failing : {0, 1}) {
    std::vector<std::string> errors(2);
    test::good(comm::run_inproc(2, [&](comm::Communicator& world) -> Status {
      world.set_timeout(std::chrono::seconds(20));
      test::HostAccelerator accelerator({.bytes = world.rank() == failing ? 1 : std::int64_t{1} << 40});
      cost::Profile profile({profiler::device_of(accelerator), {world.transport(), 2, 1}});
      const auto report =
          profiler::fill_profile(profile, plans, {.accelerator = &accelerator, .world = &world, .seconds = no_time});
      if (!report.ok()) errors[std::size_t(world.rank())] = report.error().message;
      return {};
    }));
    INFO(failing);
    CHECK(errors[0].find(fmt::format("rank {}: expected ", failing)) == 0);
    CHECK(errors[0].find("bytes of memory on") != std::string::npos);
    CHECK(errors[1] == errors[0]);
  }
}

TEST_CASE("times are lacking while an op or, with several ranks, a message is") {
  const std::vector<ir::Plan> plans{parsed(moe_plan(2))};
  cost::Profile profile;
  CHECK(profiler::lacks_times(plans, profile, 1));
  for (const std::string& op : profiler::missing_ops(plans, profile)) profile.ops[op] = {1, 1, 0};
  CHECK_FALSE(profiler::lacks_times(plans, profile, 1));
  CHECK(profiler::lacks_times(plans, profile, 2));
  profile.network.all_to_all = profile.network.all_reduce = {{1, 1}, {1e12, 2}};
  CHECK_FALSE(profiler::lacks_times(plans, profile, 2));
  profile.network.all_to_all = {{1, 1}};  // shorter messages than the plan's
  CHECK(profiler::lacks_times(plans, profile, 2));
}

TEST_CASE("this device has a name") {
  const cost::Device device = profiler::this_device(3, 2);
  CHECK_FALSE(device.cpu.empty());
  CHECK_FALSE(device.isa.empty());
  CHECK(device.threads == 3);
  CHECK(device.local_ranks == 2);
  CHECK(device.build == cost::kernel_build());
}

// Ceilings of a device whose events are one millisecond apart.

TEST_CASE("the ceilings of a device count all FLOPs of a product, and the bytes that a copy reads and writes") {
  std::atomic<std::int64_t> events = 0;
  test::HostAccelerator accelerator({.bytes = 1 << 20, .events = &events});
  CHECK(profiler::measure_product_peak(accelerator, DType::f32, 32).value() == Approx(2.0 * 32 * 32 * 32 / 1e-3));
  CHECK(profiler::measure_memory_bandwidth(accelerator.device(), 1 << 16).value() == Approx(2.0 * (1 << 16) / 1e-3));
  // a quarter of what is free
  CHECK(profiler::measure_memory_bandwidth(accelerator.device(), 1 << 30).value() == Approx(2.0 * (1 << 18) / 1e-3));
}

}  // namespace lancet
