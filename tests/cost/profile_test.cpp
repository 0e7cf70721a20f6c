#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <optional>
#include <thread>

#include "cost/file_lock.h"
#include "lancet/base/atomic_file.h"
#include "lancet/cost/profile.h"
#include "program.h"

using namespace lancet;
using namespace lancet::cost;

namespace {

const Machine here{{"CPU A \"x\"", "avx2", 2, 1, "0123456789abcdef"}, {"mpi", 2, 1}};

Profile sample() {
  Profile profile(here);
  profile.ops["linear(f32[2,4,8], f32[12,8])"] = {0.125, 7, 0.01};
  profile.ops["attention(f32[2,4,24]) {heads=2}"] = {1.0 / 3, 5, 0};
  profile.products["bf16[8,16] = bf16[8,4] bf16[4,16] on a \"GPU\", aligned to 256"] = "0000000000000001 ffff";
  profile.network = {{{1024, 0.1}, {2048, 0.15}, {4096, 0.35}}, {{1024, 0.2}}, {0.1, 0.3}, {0.2, 0.4}, 0.004, {0.9, 0.45}};
  return profile;
}

ProfileFile file_of(const Profile& profile) {
  ProfileFile file;
  file.put(profile);
  return file;
}

std::string fault(std::string_view text) {
  const auto file = ProfileFile::parse(text, "p.json");
  REQUIRE_FALSE(file.ok());
  CHECK(file.error().code == ExitCode::config);
  CHECK(file.error().message.starts_with("p.json:"));
  return file.error().message;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const auto at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
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

TEST_CASE("the file returns the profile that was stored") {
  const ProfileFile file = file_of(sample());
  const auto again = ProfileFile::parse(file.print(), "p.json");
  INFO((again.ok() ? "" : again.error().message));
  REQUIRE(again.ok());
  CHECK(again->print() == file.print());
  const Profile found = again->find(here), expected = sample();
  CHECK(found.machine == here);
  CHECK(found.ops == expected.ops);
  CHECK(found.network.all_to_all == expected.network.all_to_all);
  CHECK(found.network.all_reduce == expected.network.all_reduce);
  CHECK(found.network.interference.network_beside_network == 0.45);
  CHECK((found.network.all_reduce_core == CoreCost{0.2, 0.4}));
}

namespace {

const std::string windows_text =
    ",\n      \"windows\": {\"counts_wait_ms\": 0.03, \"core_ms\": 0.01, \"core_ms_per_mb\": 0.5, \"all_to_all\": [\n"
    "        {\"bytes\": 1024, \"ms\": 0.02},\n        {\"bytes\": 4096, \"ms\": 0.05}\n      ]}";

Profile with_windows() {
  Profile profile = sample();
  profile.network.windows = WindowTimes{{{1024, 0.02}, {4096, 0.05}}, {0.01, 0.5}, 0.03};
  return profile;
}

}  // namespace

TEST_CASE("window times survive a round trip; files without them are read as before") {
  const std::string text = file_of(with_windows()).print();
  const auto at = text.find(windows_text);
  REQUIRE(at != std::string::npos);
  const auto again = ProfileFile::parse(text, "p.json");
  REQUIRE(again.ok());
  CHECK(again->print() == text);
  CHECK(again->find(here).network.windows == with_windows().network.windows);
  const std::string older = std::string(text).erase(at, windows_text.size());
  CHECK(older == file_of(sample()).print());
  const auto read = ProfileFile::parse(older, "p.json");
  REQUIRE(read.ok());
  CHECK_FALSE(read->find(here).network.windows);
  CHECK(read->find(here).network.all_to_all == sample().network.all_to_all);
  Profile none = sample();
  none.network.windows.emplace();  // measured, and there are none
  const auto found = ProfileFile::parse(file_of(none).print(), "p.json");
  REQUIRE(found.ok());
  REQUIRE(found->find(here).network.windows);
  CHECK(found->find(here).network.windows->all_to_all.empty());
  CHECK(with_windows().identity() != sample().identity());
}

TEST_CASE("a damaged window time is reported with its field") {
  const std::string text = file_of(with_windows()).print();
  const std::string where = "clusters[0].windows";
  CHECK(has(fault(replaced(text, windows_text, ", \"windows\": 7")), where + ": expected an object, found number"));
  CHECK(has(fault(replaced(text, "\"counts_wait_ms\": 0.03, ", "")),
            where + ": expected the field counts_wait_ms, found none"));
  CHECK(has(fault(replaced(text, "\"core_ms\": 0.01", "\"core_ms\": -1")),
            where + ".core_ms: expected a number of at least 0, found -1"));
  CHECK(has(fault(replaced(text, "\"ms\": 0.05", "\"ms\": 1e300")), where + ".all_to_all[1].ms: expected a number"));
  CHECK(has(fault(replaced(text, "{\"bytes\": 4096, \"ms\": 0.05}", "{\"bytes\": 1, \"ms\": 1}")),
            where + ".all_to_all[1].bytes: expected more than 1024, found 1"));
  CHECK(has(fault(replaced(text, "\"core_ms\"", "\"speed\": 1, \"core_ms\"")), where + ".speed: expected a known field"));
}

TEST_CASE("profiles of several devices and clusters share a file") {
  ProfileFile file = file_of(sample());
  Profile other = sample();
  other.machine.device.threads = 1;
  other.ops["linear(f32[2,4,8], f32[12,8])"].ms = 9;
  file.put(other);
  Profile again = sample();
  again.ops.clear();
  again.ops["zero(f32[3])"] = {1, 5, 0};
  file.put(again);
  CHECK(file.find(here).ops == again.ops);
  CHECK(file.find(other.machine).compute_ms("linear(f32[2,4,8], f32[12,8])") == 9);
  Machine more_ranks = here;
  more_ranks.cluster.ranks = 4;
  CHECK(file.find(more_ranks).ops == again.ops);  // the same device
  CHECK_FALSE(file.find(more_ranks).network.measured());
  Machine other_build = here;
  other_build.device.build = "another";
  CHECK(file.find(other_build).ops.empty());
}

TEST_CASE("measurements of old builds are removed") {
  ProfileFile file;
  Profile profile = sample();
  for (int build = 0; build < 10; ++build) {
    profile.machine.device.build = std::to_string(build);
    file.put(profile);
  }
  auto holds = [&](int build) {
    Machine machine = here;
    machine.device.build = std::to_string(build);
    return !file.find(machine).ops.empty() && file.find(machine).network.measured();
  };
  CHECK_FALSE(holds(1));
  CHECK(holds(2));
  CHECK(holds(9));
}

TEST_CASE("a damaged file is reported with its field") {
  const std::string good = file_of(sample()).print();
  CHECK(has(fault(good.substr(0, good.size() / 2)), ": expected JSON: "));
  CHECK(has(fault("{\"format\": 1e999}"), "expected JSON: number overflow parsing '1e999'"));
  CHECK(has(fault("[]"), "profile: expected an object, found array"));
  CHECK(has(fault(replaced(good, "\"format\": 1", "\"format\": 2")), "profile.format: expected 1, found 2"));
  CHECK(has(fault(replaced(good, "\"threads\": 2", "\"threads\": 0")), "devices[0].threads: expected an integer"));
  CHECK(
      has(fault(replaced(good, "\"threads\": 2", "\"threads\": 2, \"fans\": 3")), "devices[0].fans: expected a known field"));
  CHECK(has(fault(replaced(good, "\"isa\": \"avx2\", ", "")), "devices[0]: expected the field isa, found none"));
  CHECK(has(fault(replaced(good, "\"ms\": 0.125", "\"ms\": -1")), "linear(f32[2,4,8], f32[12,8])\"].ms: expected"));
  CHECK(has(fault(replaced(good, "\"ms\": 0.125", "\"ms\": 1e300")), "found 1e+300"));
  CHECK(has(fault(replaced(good, "\"samples\": 7", "\"samples\": 1.5")), ".samples: expected an integer"));
  CHECK(has(fault(replaced(good, "\"bytes\": 2048", "\"bytes\": 1024")),
            "clusters[0].all_to_all[1].bytes: expected more than 1024, found 1024"));
  CHECK(has(fault(replaced(good, "\"wire_beside_wire\": 0.45", "\"wire_beside_wire\": 0")),
            "clusters[0].wire_beside_wire"));
  CHECK(has(fault(replaced(good, "\"transport\": \"mpi\"", "\"transport\": 5")),
            "clusters[0].transport: expected a text"));
}

TEST_CASE("the profile of another device is refused with the difference in words") {
  test::TemporaryFolder folder;
  const std::filesystem::path path = folder / "deep/profile.json";
  CHECK(read_profile_or_empty(path, here)->ops.empty());
  const auto none = read_profile(path, here);
  REQUIRE_FALSE(none.ok());
  CHECK(none.error().code == ExitCode::config);
  CHECK(has(none.error().message, "found no such file"));
  REQUIRE(write_profile(path, sample()).ok());
  CHECK(read_profile(path, here)->ops == sample().ops);
  Machine foreign = here;
  foreign.device.cpu = "CPU B";
  const auto refused = read_profile(path, foreign);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ExitCode::config);
  CHECK(has(refused.error().message, "expected the profile of CPU B (avx2), 2 threads, 1 rank a host"));
  CHECK(has(refused.error().message, "found 2 ops of CPU A"));
  CHECK(read_profile_or_empty(path, foreign)->ops.empty());
  Profile more(foreign);
  more.ops["zero(f32[3])"] = {1, 5, 0};
  REQUIRE(write_profile(path, more).ok());
  CHECK(read_profile(path, here)->ops == sample().ops);  // still there
}

TEST_CASE("only one process at a time writes a profile") {
  const test::TemporaryFolder folder;
  const std::filesystem::path path = folder / "profile.json", lock_path = folder / "profile.json.lock";
  Profile theirs = sample();
  theirs.machine.device.cpu = "CPU B";
  ProfileFile file;
  file.put(theirs);
  std::optional<FileLock> lock(FileLock::wait(lock_path, 0));
  REQUIRE(lock->held());
  Status written;
  std::jthread writes([&] { written = write_profile(path, sample()); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // enough for a writer without a lock
  REQUIRE(write_file(path, file.print()).ok());
  lock.reset();
  writes.join();
  CHECK(written.ok());
  CHECK(read_profile(path, here)->ops == sample().ops);
  CHECK(read_profile(path, theirs.machine)->ops == theirs.ops);
}

TEST_CASE("a lock that is held by another or cannot be made does not block") {
  const test::TemporaryFolder folder;
  const FileLock first = FileLock::wait(folder / "lock", 0);
  CHECK(first.held());
  const FileLock second = FileLock::wait(folder / "lock", 0.05);
  CHECK_FALSE(second.held());
  CHECK(second.late());
  const FileLock nowhere = FileLock::wait(folder / "none/lock", 0);
  CHECK_FALSE(nowhere.held());
  CHECK_FALSE(nowhere.late());
}

TEST_CASE("adding to a file keeps other ops of its device and cluster, writing replaces them") {
  const test::TemporaryFolder folder;
  const std::filesystem::path path = folder / "profile.json";
  REQUIRE(write_profile(path, sample()).ok());
  Profile more(here);
  more.ops["zero(f32[3])"] = {1, 5, 0};
  REQUIRE(add_to_profile(path, more).ok());
  const auto both = read_profile(path, here);
  REQUIRE(both.ok());
  CHECK(both->ops.size() == sample().ops.size() + 1);
  CHECK(both->compute_ms("zero(f32[3])") == 1.0);
  CHECK(both->network.measured());
  more.ops["zero(f32[3])"] = {2, 5, 0};
  REQUIRE(add_to_profile(path, more).ok());
  CHECK(read_profile(path, here)->compute_ms("zero(f32[3])") == 2.0);
  REQUIRE(write_profile(path, more).ok());
  CHECK(read_profile(path, here)->ops == more.ops);
}

TEST_CASE("a damaged file is not overwritten") {
  test::TemporaryFolder folder;
  const std::filesystem::path path = folder / "profile.json";
  REQUIRE(write_file(path, "{").ok());
  const Status status = write_profile(path, sample());
  REQUIRE_FALSE(status.ok());
  CHECK(status.error().code == ExitCode::config);
  CHECK(*read_file(path, "it") == "{");
}

TEST_CASE("a file lists the devices and clusters that it can plan for") {
  ProfileFile file = file_of(sample());
  CHECK(file.machines() == std::vector<Machine>{{here.device, {}}, here});
  Profile network_only(here);
  network_only.machine.device.cpu = "B";
  network_only.network = sample().network;
  file.put(network_only);  // communication without ops is not enough
  CHECK(file.machines().size() == 2);
  Profile newer = sample();
  newer.machine.device.build = "ffffffffffffffff";
  file.put(newer);
  CHECK(file.machines() == std::vector<Machine>{{newer.machine.device, {}}, newer.machine});
}

TEST_CASE("costs of any device: this device, else the only one that fits") {
  const test::TemporaryFolder folder;
  const std::string path = folder / "costs.json";
  Profile other = sample();
  other.machine.device.cpu = "B";
  other.ops["add(f32[1])"] = {7, 1, 0};
  REQUIRE(write_profile(path, other).ok());
  auto asked = [&](int ranks, int hosts, int threads) {
    Machine machine = here;
    machine.cluster.ranks = ranks, machine.cluster.hosts = hosts;
    return read_profile_of_any_device(path, machine, threads);
  };
  REQUIRE(asked(2, 1, 0).ok());
  CHECK(asked(2, 1, 0)->machine == other.machine);
  CHECK(asked(2, 1, 2)->compute_ms("add(f32[1])") == 7.0);
  for (const auto& [ranks, hosts, threads] : {std::array{4, 1, 0}, std::array{2, 2, 0}, std::array{2, 1, 3}}) {
    const auto none = asked(ranks, hosts, threads);
    REQUIRE_FALSE(none.ok());
    CHECK(none.error().code == ExitCode::config);
    CHECK(has(none.error().message, "costs.json: expected ops and communication measured with "));
    CHECK(has(none.error().message, "communication of B"));
  }
  REQUIRE(write_profile(path, sample()).ok());
  CHECK(asked(2, 1, 0)->machine == here);
  Machine third = here;
  third.device.cpu = "C";
  const auto several = read_profile_of_any_device(path, third, 0);
  REQUIRE_FALSE(several.ok());
  CHECK(has(several.error().message, "found 2: B (avx2)"));
}

TEST_CASE("a profile's identity depends on all of its content") {
  const std::string identity = sample().identity();
  CHECK(identity.size() == 16);
  CHECK(sample().identity() == identity);
  Profile slower = sample(), elsewhere = sample(), wire = sample();
  slower.ops.begin()->second.ms *= 1.001;
  elsewhere.machine.device.cpu = "B";
  wire.network.launch_ms *= 2;
  for (const Profile& other : {slower, elsewhere, wire}) CHECK(other.identity() != identity);
}

TEST_CASE("a file without product algorithms is read; a wrong algorithm is refused") {
  const std::string text = file_of(sample()).print();
  const auto begin = text.find(",\n      \"products\""), end = text.find('}', begin) + 1;
  REQUIRE(begin != std::string::npos);
  const auto older = ProfileFile::parse(std::string(text).erase(begin, end - begin), "p.json");
  REQUIRE(older.ok());
  CHECK(older->find(here).ops == sample().ops);
  CHECK(older->find(here).products.empty());
  const auto whole = ProfileFile::parse(text, "p.json");
  REQUIRE(whole.ok());
  CHECK(whole->find(here).products == sample().products);
  CHECK(has(fault(replaced(text, "\"0000000000000001 ffff\"", "7")), "expected a text, found 7"));
  CHECK(has(fault(std::string(text).replace(begin, end - begin, ",\n\"products\": []")),
            "expected an object, found array"));
}
