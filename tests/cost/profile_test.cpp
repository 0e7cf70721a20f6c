#include <catch2/catch.hpp>
#include <filesystem>

#include "good.h"
#include "lancet/base/files.h"
#include "lancet/cost/profile.h"
#include "program.h"
#include "text.h"

using namespace lancet;
using namespace lancet::cost;
using test::replaced;

namespace {

const Machine here{{"CPU A \"x\"", "avx2", 2, 1, "0123456789abcdef"}, {"mpi", 2, 1}};

Profile sample() {
  Profile profile(here);
  profile.ops["linear(f32[2,4,8], f32[12,8])"] = {0.125, 7, 0.01};
  profile.ops["attention(f32[2,4,24]) {heads=2}"] = {1.0 / 3, 5, 0};
  profile.products["bf16[8,16] = bf16[8,4] bf16[4,16] on a \"GPU\", aligned to 256"] = "0000000000000001 ffff";
  profile.peak_tflops = {{"bf16", 0.2}, {"f32", 0.1}};
  profile.network = {
      {{{1024, 0.1}, {2048, 0.15}, {4096, 0.35}}, {{1024, 0.2}}}, {0.1, 0.3}, {0.2, 0.4}, 0.004, {0.9, 0.45}};
  return profile;
}

// Of four ranks on two hosts, two each, along `expert` or `tensor`.
Profile sample_of_hosts() {
  Profile profile = sample();
  profile.machine.cluster = {"mpi", 4, 2};
  profile.machine.device.local_ranks = 2;
  profile.mesh = ir::of_experts(4);
  profile.network.messages = {{"on_host", {{1024, 0.01}, {2048, 0.02}}}, {"neighbour 1", {{1024, 0.03}}}};
  return profile;
}

// An all-to-all of four ranks that reaches `peers` others.
ir::Instruction tile(std::int64_t peers, bool near) {
  ir::Instruction at;
  at.op = "all_to_all";
  at.stream = ir::Stream::expert;
  at.attributes = {{"peers", peers}, {"near", std::int64_t(near)}};
  return at;
}

ir::Instruction ring_step(std::int64_t shards, std::int64_t shift) {
  ir::Instruction at;
  at.op = "permute_shards";
  at.stream = ir::Stream::expert;
  at.attributes = {{"of", "all_gather"}, {"shards", shards}, {"shift", shift}};
  return at;
}

std::string fault(std::string_view text) {
  const Error file = test::refused(parse_profile(text, "p.json"));
  CHECK(file.code == ExitCode::config);
  CHECK(file.message.starts_with("p.json:"));
  return file.message;
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("times between, before and beyond the measured points") {
  const std::vector<Point> points{{1024, 0.1}, {2048, 0.15}, {4096, 0.35}};
  CHECK(interpolate(points, 0) == 0.1);
  CHECK(interpolate(points, 1024) == 0.1);
  CHECK(interpolate(points, 1536) == Approx(0.125));
  CHECK(interpolate(points, 2048) == Approx(0.15));
  CHECK(interpolate(points, 3072) == Approx(0.25));
  CHECK(interpolate(points, 4096) == Approx(0.35));
  CHECK(interpolate(points, 8192) == Approx(0.75));
  CHECK(interpolate({{1024, 0.1}}, 1 << 20) == 0.1);
  CHECK(interpolate({{1, 2}, {2, 1}}, 9) == 1);  // noise at the last points does not make large messages free
  CHECK_THROWS(interpolate({}, 1));
}

TEST_CASE("a profile answers as Costs") {
  const Profile profile = sample();
  CHECK(profile.compute_ms("linear(f32[2,4,8], f32[12,8])") == 0.125);
  CHECK_FALSE(profile.compute_ms("linear(f32[2,4,8], f32[12,9])"));
  CHECK(profile.all_to_all_ms(1536) == Approx(0.125));
  CHECK(profile.all_reduce_ms(1e6) == 0.2);
  CHECK((profile.all_to_all_core() == CoreCost{0.1, 0.3}));
  CHECK((profile.all_reduce_core() == CoreCost{0.2, 0.4}));
  CHECK(profile.launch_ms() == 0.004);
  CHECK(profile.interference().network_beside_compute == 0.9);
  CHECK(profile.interference().network_beside_network == 0.45);
  CHECK(Profile().all_to_all_ms(4096) == 0);  // one rank
}

TEST_CASE("a profile has times of groups of ranks under their axes and sizes") {
  Profile profile = sample();
  profile.machine.cluster.ranks = 4;
  profile.mesh = ir::Mesh{{1, 2, 2, 1}};
  const ir::Axes data{ir::Axis::data};
  CHECK(profile.knows({}));
  CHECK_FALSE(profile.knows(data));
  profile.network.groups["data 2 / 2"] = {{{1024, 7}}, {{1024, 8}}};
  CHECK(profile.knows(data));
  CHECK_FALSE(profile.knows({ir::Axis::expert}));
  CHECK(profile.all_to_all_ms(1, data) == 7);
  CHECK(profile.all_reduce_ms(1, data) == 8);
  CHECK(profile.all_reduce_ms(1) == 0.2);
  auto stored = test::good(parse_profile(print(profile), "p.json"));
  CHECK(stored->network.groups == profile.network.groups);
  profile.mesh = ir::Mesh{{1, 4, 2, 1}};
  CHECK_FALSE(profile.knows(data));  // another size
  profile.mesh = ir::Mesh{{1, 2, 1, 1}};
  CHECK(profile.knows(data));  // all ranks
  profile.machine.cluster.ranks = 8;
  profile.mesh = ir::Mesh{{1, 2, 4, 1}};
  CHECK_FALSE(profile.knows(data));  // of ranks at another distance
  profile.mesh = ir::Mesh{{1, 4, 1, 1}};
  CHECK(profile.knows(data));  // all ranks
  CHECK(profile.all_reduce_ms(1, data) == 0.2);
}

TEST_CASE("an instruction reaches all ranks, its host or a neighbour of a ring") {
  ir::Instruction whole = tile(0, true);
  whole.attributes = {};
  CHECK(reach_of(whole).all());
  CHECK(reach_of(tile(0, true)).all());  // the own rank's tile, which has no message
  CHECK(reach_of(tile(2, false)).all());
  CHECK(reach_of(tile(1, true)) == Reach{.on_host = true});
  CHECK(reach_of(ring_step(4, 2)) == Reach{.shift = 2});
  CHECK(reach_of(ring_step(2, 1)).all());
  CHECK(to_string(Reach()) == "all_to_all");
  CHECK(to_string({.on_host = true}) == "on_host");
  CHECK(to_string({.shift = 2}) == "neighbour 2");
}

TEST_CASE("a profile knows which ranks share a host in each group, and prices messages by the ranks that they reach") {
  Profile profile = sample_of_hosts();
  CHECK(profile.ranks_on_host({}) == 2);
  CHECK(profile.message_ms(1536, tile(1, true)) == Approx(0.015));
  CHECK(profile.message_ms(4096, ring_step(4, 1)) == 0.03);
  // 1024 bytes to the two ranks of the other host, of whose three the all-to-all of 1536 bytes sends them as many.
  CHECK(profile.message_ms(1024, tile(2, false)) == Approx(profile.all_to_all_ms(1536)));
  CHECK_FALSE(profile.unknown_messages(tile(1, true)));
  CHECK(profile.unknown_messages(ring_step(4, 2)) == "messages 'neighbour 2' over all ranks");
  // Under a load only rows of experts are more.
  const auto loaded = profile.under(test::loads_of_fullest(1.5));
  CHECK(loaded->ranks_on_host({}) == 2);
  CHECK(loaded->message_ms(1536, tile(1, true)) == Approx(0.015));
  CHECK(loaded->unknown_messages(ring_step(4, 2)) == "messages 'neighbour 2' over all ranks");

  profile.machine.cluster.hosts = 4,
  profile.machine.device.local_ranks = 1;  // messages to other hosts are those to all
  CHECK(profile.ranks_on_host({}) == 1);
  CHECK(profile.message_ms(1024, tile(3, false)) == profile.all_to_all_ms(1024));
  profile.machine.cluster.hosts = 1;
  CHECK(profile.ranks_on_host({}) == 1);  // nothing to tell apart
  profile.machine.cluster = {"mpi", 3, 2};
  profile.mesh = ir::of_experts(3);
  CHECK(profile.ranks_on_host({}) == 1);  // unlike numbers of ranks
  profile.machine.cluster = {"mpi", 6, 2};
  profile.machine.device.local_ranks = 3;
  profile.mesh = ir::of_experts(6);
  CHECK(profile.ranks_on_host({}) == 3);
  profile.even_hosts = false;
  CHECK(profile.ranks_on_host({}) == 1);
  profile.even_hosts = true;
  profile.machine.device.local_ranks = 4;
  CHECK(profile.ranks_on_host({}) == 1);  // four and two

  // Eight ranks on two hosts: the ranks along `data` have distance 4, those along `expert` share a host.
  profile.machine.cluster = {"mpi", 8, 2};
  profile.machine.device.local_ranks = 4;
  profile.mesh = ir::Mesh{{1, 2, 4, 1}};
  CHECK(profile.ranks_on_host({}) == 4);
  CHECK(profile.ranks_on_host({ir::Axis::data}) == 1);
  CHECK(profile.ranks_on_host({ir::Axis::expert}) == 1);
  ir::Instruction in_group = ring_step(4, 1);
  in_group.attributes.set("axes", "expert");
  CHECK(profile.unknown_messages(in_group) == "collectives over the mesh's axes expert");
  profile.network.groups["expert 4"] = {{{1024, 7}}, {{1024, 8}}};
  CHECK(profile.unknown_messages(in_group) == "messages 'neighbour 1' over the mesh's axes expert");
  profile.network.groups["expert 4"].messages["neighbour 1"] = {{1024, 9}};
  CHECK_FALSE(profile.unknown_messages(in_group));
  CHECK(profile.message_ms(1, in_group) == 9);
}

TEST_CASE("times of messages to some ranks are kept, added to a file and may be missing") {
  const test::TemporaryFolder folder;
  const std::filesystem::path path = folder / "profile.json";
  Profile profile = sample_of_hosts();
  profile.network.groups["tensor 2"] = {{{1024, 7}}, {{1024, 8}}, {{"neighbour 1", {{1024, 9}}}}};
  const std::string text = print(profile);
  auto stored = test::good(parse_profile(text, "p.json"));
  CHECK(print(*stored) == text);
  CHECK(stored->network.messages == profile.network.messages);
  CHECK(stored->network.groups == profile.network.groups);
  CHECK(has(fault(replaced(text, "\"neighbour 1\": [", "\"neighbour 1\": [], \"more\": [")),
            "network.messages[\"neighbour 1\"]: expected at least one point, found none"));
  CHECK(profile.identity() != sample().identity());
  CHECK(print(sample()).find("messages") == std::string::npos);  // as files were before there were such times

  REQUIRE(write_profile(path, profile).ok());
  Profile measured_elsewhere = profile;
  measured_elsewhere.network.messages = {{"neighbour 2", {{1024, 5}}}};
  measured_elsewhere.network.groups["tensor 2"].messages.clear();
  REQUIRE(add_to_profile(path, measured_elsewhere).ok());
  const auto both = test::good(read_profile(path));
  CHECK(both->network.messages.size() == 3);
  CHECK(both->network.messages.at("neighbour 2") == std::vector<Point>{{1024, 5}});
  CHECK(both->network.groups == profile.network.groups);

  REQUIRE(add_to_profile(path, measured_elsewhere, true).ok());
  const auto renewed = test::good(read_profile(path));
  CHECK(renewed->network.messages == measured_elsewhere.network.messages);
  CHECK(renewed->network.groups == measured_elsewhere.network.groups);
  measured_elsewhere.network = {};  // an interrupted measurement
  REQUIRE(add_to_profile(path, measured_elsewhere, true).ok());
  CHECK(read_profile(path)->network.messages == renewed->network.messages);
}

TEST_CASE("the file returns the profile that was stored") {
  const std::string text = print(sample());
  const auto found = test::good(parse_profile(text, "p.json"));
  CHECK(print(*found) == text);
  const Profile expected = sample();
  CHECK(found->machine == here);
  CHECK(found->ops == expected.ops);
  CHECK(found->products == expected.products);
  CHECK(found->peak_tflops == expected.peak_tflops);
  CHECK(found->network.all_to_all == expected.network.all_to_all);
  CHECK(found->network.all_reduce == expected.network.all_reduce);
  CHECK(found->network.launch_ms == 0.004);
  CHECK(found->network.interference.network_beside_network == 0.45);
  CHECK((found->network.all_reduce_core == CoreCost{0.2, 0.4}));
}

TEST_CASE("a file without communication, products and peaks is read") {
  Profile ops(here);
  ops.ops = sample().ops;
  const auto found = test::good(parse_profile(print(ops), "p.json"));
  CHECK(found->ops == ops.ops);
  CHECK(found->products.empty());
  CHECK(found->peak_tflops.empty());
  CHECK_FALSE(found->network.measured());
}

TEST_CASE("ops hold for the device, communication for the cluster of such devices") {
  const Profile profile = sample();
  CHECK(profile.complete());
  CHECK(profile.on(here).complete());
  Machine more_ranks = here;
  more_ranks.cluster.ranks = 4;
  CHECK(profile.on(more_ranks).ops == profile.ops);
  CHECK(profile.on(more_ranks).peak_tflops == profile.peak_tflops);
  CHECK_FALSE(profile.on(more_ranks).network.measured());
  CHECK_FALSE(profile.on(more_ranks).complete());
  CHECK(profile.on({here.device, {}}).complete());  // one rank needs no communication
  Machine other_build = here;
  other_build.device.build = "another";
  const Profile nothing = profile.on(other_build);
  CHECK(nothing.machine == other_build);
  CHECK(nothing.ops.empty());
  CHECK(nothing.products.empty());
  CHECK(nothing.peak_tflops.empty());
  CHECK_FALSE(nothing.network.measured());
}

TEST_CASE("a damaged file is reported with its field") {
  const std::string good = print(sample());
  CHECK(has(fault(good.substr(0, good.size() / 2)), ": expected JSON: "));
  CHECK(has(fault("{\"format\": 1e999}"), "expected JSON: number overflow parsing '1e999'"));
  CHECK(has(fault("[]"), "profile: expected an object, found array"));
  CHECK(has(fault(replaced(good, "\"format\": 2", "\"format\": 1")), "profile.format: expected 2, found 1"));
  CHECK(has(fault(replaced(good, "\"threads\": 2", "\"threads\": 0")), "profile.threads: expected an integer"));
  CHECK(has(fault(replaced(good, "\"threads\": 2", "\"threads\": 2, \"fans\": 3")),
            "profile.fans: expected a known field"));
  CHECK(has(fault(replaced(good, "\"isa\": \"avx2\",", "")), "profile: expected the field isa, found none"));
  CHECK(has(fault(replaced(good, "\"ms\": 0.125", "\"ms\": -1")), "linear(f32[2,4,8], f32[12,8])\"].ms: expected"));
  CHECK(has(fault(replaced(good, "\"ms\": 0.125", "\"ms\": 1e300")), "found 1e+300"));
  CHECK(has(fault(replaced(good, "\"samples\": 7", "\"samples\": 1.5")), ".samples: expected an integer"));
  CHECK(has(fault(replaced(good, "\"bytes\": 2048.0", "\"bytes\": 1024")),
            "network.all_to_all[1].bytes: expected more than 1024, found 1024"));
  CHECK(has(fault(replaced(good, "\"network_beside_network\": 0.45", "\"network_beside_network\": 0")),
            "network.network_beside_network"));
  CHECK(has(fault(replaced(good, "\"transport\": \"mpi\"", "\"transport\": 5")), "profile.transport: expected a text"));
  CHECK(has(fault(replaced(good, "\"0000000000000001 ffff\"", "7")), "expected a text, found 7"));
  CHECK(has(fault(replaced(good, "\"f32\": 0.1", "\"f32\": -1")), "peak_tflops.f32: expected a number of at least 0"));
  CHECK(has(fault(replaced(good, "\"products\": {", "\"products\": [], \"more\": {")), ": expected"));
}

TEST_CASE("the profile of another machine is refused with the difference in words, and no write replaces it") {
  test::TemporaryFolder folder;
  const std::filesystem::path path = folder / "deep/profile.json";
  CHECK(read_profile_or_empty(path, here)->ops.empty());
  const Error none = test::refused(read_profile(path, here));
  CHECK(none.code == ExitCode::config);
  CHECK(has(none.message, "found no such file"));
  REQUIRE(write_profile(path, sample()).ok());
  CHECK(read_profile(path, here)->ops == sample().ops);
  Machine foreign = here;
  foreign.device.cpu = "CPU B";
  const Error refused = test::refused(read_profile(path, foreign));
  CHECK(refused.code == ExitCode::config);
  CHECK(has(refused.message, "profile.json: expected a profile of CPU B (avx2), found one of CPU A"));
  CHECK(refused.message.ends_with(" (avx2)"));  // the rest is the same
  const Machine alone{here.device, {}};
  const std::string text = *read_file(path, "it");
  for (const Machine& other : {foreign, alone})
    for (const Status& status : {Status(read_profile_or_empty(path, other).error()),
                                 write_profile(path, Profile(other)), add_to_profile(path, Profile(other))}) {
      REQUIRE_FALSE(status.ok());
      CHECK(status.error().code == ExitCode::config);
      CHECK(has(status.error().message, other == alone ? "profile of self, 1 rank, found one of mpi, 2 ranks, whose"
                                                       : "profile of CPU B (avx2), found one of CPU A"));
      CHECK(has(status.error().message, "whose times are kept: name another file"));
    }
  CHECK(*read_file(path, "it") == text);
}

TEST_CASE("times of another build are of no use and give way to those of this one") {
  const test::TemporaryFolder folder;
  const std::filesystem::path path = folder / "profile.json";
  REQUIRE(write_profile(path, sample()).ok());
  Machine rebuilt = here;
  rebuilt.device.build = "another";
  const Error refused = test::refused(read_profile(path, rebuilt));
  CHECK(has(refused.message, "expected a profile of build another, found one of build 0123456789abcdef"));
  CHECK(read_profile_or_empty(path, rebuilt)->ops.empty());
  Profile other(rebuilt);
  other.ops["zero(f32[3])"] = {1, 5, 0};
  REQUIRE(add_to_profile(path, other).ok());
  CHECK(read_profile(path)->machine == rebuilt);
  CHECK(read_profile(path)->ops == other.ops);
}

TEST_CASE("a file without times of the machine says what it lacks") {
  const test::TemporaryFolder folder;
  const std::filesystem::path path = folder / "profile.json";
  Profile peak(here);
  peak.peak_tflops["f32"] = 1;
  REQUIRE(write_profile(path, peak).ok());
  CHECK(read_profile(path, here).error().message ==
        path.string() + ": expected measured ops and communication, found 0 ops");
}

TEST_CASE("adding to a file keeps what it holds for the machine, writing replaces it") {
  const test::TemporaryFolder folder;
  const std::filesystem::path path = folder / "profile.json";
  REQUIRE(write_profile(path, sample()).ok());
  Profile more(here);
  more.ops["zero(f32[3])"] = {1, 5, 0};
  more.peak_tflops = {{"f32", 0.05}, {"bf16", 0.3}};
  REQUIRE(add_to_profile(path, more).ok());
  const auto both = test::good(read_profile(path, here));
  CHECK(both->ops.size() == sample().ops.size() + 1);
  CHECK(both->compute_ms("zero(f32[3])") == 1.0);
  CHECK(both->products == sample().products);
  CHECK(both->peak_tflops == std::map<std::string, double>{{"bf16", 0.3}, {"f32", 0.1}});  // the larger of each
  CHECK(both->network.measured());
  more.ops["zero(f32[3])"] = {2, 5, 0};
  REQUIRE(add_to_profile(path, more).ok());
  CHECK(read_profile(path, here)->compute_ms("zero(f32[3])") == 2.0);
  REQUIRE(write_profile(path, more).ok());
  CHECK(read_profile(path)->ops == more.ops);
  CHECK_FALSE(read_profile(path)->network.measured());
}

TEST_CASE("nothing is added to a damaged file, which can be replaced, and a file of something else stays") {
  test::TemporaryFolder folder;
  const std::filesystem::path path = folder / "profile.json";
  const std::string good = print(sample());
  const std::string advice = "; delete the file, or replace it with lancet profile --renew all";
  for (const std::string& damaged :
       {good.substr(0, good.size() / 2), replaced(good, "\"format\": 2", "\"format\": 1")}) {
    REQUIRE(write_file(path, damaged).ok());
    const Error added = test::refused(add_to_profile(path, sample()));
    CHECK(added.code == ExitCode::config);
    CHECK(added.message.starts_with(path.string() + ":"));
    CHECK(added.message.ends_with(advice));
    CHECK(*read_file(path, "it") == damaged);
    REQUIRE(write_profile(path, sample()).ok());
    CHECK(*read_file(path, "it") == good);
  }
  const std::string config = R"({"model": {}})";
  REQUIRE(write_file(path, config).ok());
  const Error refused = test::refused(write_profile(path, sample()));
  CHECK_FALSE(has(refused.message, advice));
  CHECK(*read_file(path, "it") == config);
}

TEST_CASE("a profile's identity depends on every cost, and not on the peaks") {
  const std::string identity = sample().identity();
  CHECK(identity.size() == 16);
  CHECK(sample().identity() == identity);
  Profile slower = sample(), elsewhere = sample(), network = sample(), peaks = sample();
  slower.ops.begin()->second.ms *= 1.001;
  elsewhere.machine.device.cpu = "B";
  network.network.launch_ms *= 2;
  for (const Profile& other : {slower, elsewhere, network}) CHECK(other.identity() != identity);
  peaks.peak_tflops["f32"] *= 2;
  CHECK(peaks.identity() == identity);
}
