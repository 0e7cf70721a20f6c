// The choice between windows and messages for all-to-alls between GPUs, with made-up profiles.
#include "lancet/schedule/all_to_all_choice.h"

#include <catch2/catch.hpp>

#include "lancet/cost/hardware.h"
#include "lancet/cost/profile.h"
#include "lancet/ir/print.h"
#include "lancet/ops/catalogue.h"

using namespace lancet;
using namespace lancet::cost;
using namespace lancet::schedule;

namespace {

// Two ranks, four experts; rows of 512 f32. Half of 16 tokens leave the rank: 16384 bytes in dispatch, a quarter of it
// in return.
ir::Program moe() {
  auto program = ir::parse(R"(program moe {ranks=2}
input @route : route[16,4]
input @slots : f32[4,6,512]
%0 : i32[2,3] = all_to_all_counts(@route) {ranks=2}  # expert forward counts
%1 : f32[2,12,512] = all_to_all(@slots, @route, %0) {tokens=16}  # expert forward there
%2 : f32[4,6,512] = all_to_all_back(%1, @route, %0) {tokens=4}  # expert forward back
%3 : f32[2,12,512] = all_to_all(%2, @route, %0) {tokens=16}  # expert dx back
)");
  INFO((program.ok() ? "" : program.error().message));
  REQUIRE(program.ok());
  return *program;
}

// Messages start slowly and windows transfer slowly: their times are equal at 8192 bytes.
Profile measured(double counts_wait_ms) {
  Profile profile({{"GPU", "sm_90", 1, 1, "build"}, {"nccl", 2, 1}});
  profile.network.all_to_all = {{1024, 1}, {1 << 20, 1}};
  profile.network.all_reduce = {{1024, 1}};
  profile.network.all_to_all_core = {0.5, 0};
  profile.network.windows = WindowTimes{{{4096, 0.5}, {8192, 1}, {16384, 2}}, {0.25, 0}, counts_wait_ms};
  return profile;
}

std::vector<bool> by_windows(const Costs& costs) {
  const ir::Program program = moe();
  std::vector<bool> found;
  for (const ir::Instruction& at : program.instructions) found.push_back(takes_window(costs, program, at));
  return found;
}

OpCost load_of(const Costs& costs, std::size_t i) {
  const ir::Program program = moe();
  return costs.all_to_all(program, program.instructions[i], 0);
}

}  // namespace

TEST_CASE("small all-to-alls use windows, large ones messages, and counts always messages") {
  const Profile profile = measured(0);
  CHECK(by_windows(profile) == std::vector<bool>{false, false, true, false});
  CHECK(load_of(profile, 0).ms == 1);
  CHECK(load_of(profile, 1).ms == 1);
  CHECK(load_of(profile, 1).core_ms == 0.5);
  CHECK(load_of(profile, 2).ms == 0.5);
  CHECK(load_of(profile, 2).core_ms == 0.25);
}

TEST_CASE("a layer's first messages wait for the counts, so windows may be faster") {
  const Profile profile = measured(1.5);  // 1 + 1.5 against 2
  CHECK(by_windows(profile) == std::vector<bool>{false, true, true, false});
  CHECK(load_of(profile, 1).ms == 2);
  CHECK(load_of(profile, 3).ms == 1);  // the counts have arrived
  Profile counted = profile;
  counted.asked = AllToAllWays::counted;
  CHECK(load_of(counted, 1).ms == 2.5);
}

TEST_CASE("a requested transport takes precedence over the faster one") {
  Profile profile = measured(0);
  const std::string identity = profile.identity();
  profile.asked = AllToAllWays::counted;
  CHECK(by_windows(profile) == std::vector<bool>(4, false));
  CHECK(profile.identity() != identity);
  profile.asked = AllToAllWays::windows;
  CHECK(by_windows(profile) == std::vector<bool>{false, true, true, true});
  CHECK(load_of(profile, 1).ms == 2);
  CHECK(profile.identity() != identity);
}

TEST_CASE("a profile without windows allows only messages") {
  Profile profile = measured(1);
  profile.network.windows.emplace();  // measured, and there are none
  for (int turn = 0; turn < 2; ++turn) {
    CHECK(by_windows(profile) == std::vector<bool>(4, false));
    CHECK(load_of(profile, 1).ms == 1);
    CHECK(all_to_all_choice(profile, moe()).known == 0);
    CHECK(to_string(all_to_all_choice(profile, moe())).empty());
    ir::Program program = moe();
    choose_all_to_alls(profile, program);
    CHECK(ir::print(program) == ir::print(moe()));
    profile.network.windows.reset();
  }
}

TEST_CASE("the choice appears in the program's text") {
  ir::Program program = moe();
  CHECK(wants_window(program));
  choose_all_to_alls(measured(0), program);
  const std::string text = ir::print(program);
  CHECK(text.find("all_to_all(@slots, @route, %0) {tokens=16, by=counts}") != std::string::npos);
  CHECK(text.find("all_to_all_back(%1, @route, %0) {tokens=4}") != std::string::npos);
  CHECK(wants_window(program));
  const auto again = ir::parse(text);
  REQUIRE(again.ok());
  CHECK(ir::print(*again) == text);
  CHECK(ops::verify(*again).ok());
  Profile counted = measured(0);
  counted.asked = AllToAllWays::counted;
  choose_all_to_alls(counted, program);
  CHECK_FALSE(wants_window(program));
  const AllToAllChoice choice = all_to_all_choice(measured(0), program);
  CHECK(choice.known == 3);
  CHECK(choice.windows == 1);
  CHECK(choice.ms == 2.5);
  CHECK(choice.windows_ms == 4.5);
  CHECK(choice.counted_ms == 3);
  CHECK(to_string(choice) == "1 of 3 all-to-alls through windows: 2.5 ms a step, all 4.5 ms, none 3 ms");
}

TEST_CASE("an unknown choice is refused") {
  ir::Program program = moe();
  program.instructions[1].attributes.set("by", std::string("pigeon"));
  const Status status = ops::verify(program);
  REQUIRE_FALSE(status.ok());
  CHECK(status.error().message.find("by=counts") != std::string::npos);
  program.instructions[1].attributes.set("by", std::int64_t{3});
  CHECK_FALSE(ops::verify(program).ok());
}

TEST_CASE("a declared machine uses the window times that were measured") {
  const auto hardware = read_hardware(LANCET_SOURCE_DIR "/configs/hardware/dgx-h100.json");
  REQUIRE(hardware.ok());
  CHECK(by_windows(HardwareCosts(*hardware, {2, 1})) == std::vector<bool>(4, false));
  CHECK(by_windows(HardwareCosts(*hardware, {2, 1}, measured(0))) == std::vector<bool>{false, false, true, false});
  CHECK(by_windows(HardwareCosts(*hardware, {4, 1}, Profile(Machine{}))) == std::vector<bool>(4, false));
}
