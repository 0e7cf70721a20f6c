// A config's costs: measured at their first use, read from the file afterwards.
#include "lancet/run/step_costs.h"

#include <catch2/catch.hpp>

#include "doubles/inproc.h"
#include "good.h"
#include "host_accelerator.h"
#include "lancet/base/files.h"
#include "lancet/planner/from_config.h"
#include "lancet/run/run_plans.h"
#include "log_capture.h"
#include "program.h"

using namespace lancet;

namespace {

config::Config small() {
  auto config = test::good(config::parse(test::small_config_text, "small.json"));
  return *config;
}

constexpr double no_time = 0;

}  // namespace

TEST_CASE("the programs of a run") {
  config::Config config = small();
  const auto programs = planner::programs_to_profile({config, 1}, 1).value();
  REQUIRE_FALSE(programs.empty());
  config.train.gradient_accumulation_steps = 2;
  const auto accumulating = planner::programs_to_profile({config, 1}, 1).value();
  CHECK(accumulating.size() == programs.size());
  // One micro batch has the ops of all, and zeroes the sums of gradients after their use.
  CHECK(accumulating.front().instructions.size() > programs.front().instructions.size());
  CHECK(accumulating.front().instructions.size() < 2 * programs.front().instructions.size());
}

TEST_CASE("costs are measured once and then read") {
  const test::TemporaryFolder folder;
  config::Config config = small();
  config.overlap.profile = folder / "costs.json";
  const auto world = comm::make_self();
  const auto programs = planner::programs_to_profile({config, 1}, 1).value();
  const auto first = test::good(run::ensure_profile(config, *world, programs, {.seconds = no_time}));
  CHECK(cost::op_costs(*first, programs[0]).ok());
  const std::string text = *read_file(config.overlap.profile, "it");
  const auto second = test::good(run::ensure_profile(config, *world, programs, {.seconds = no_time}));
  CHECK(second->ops == first->ops);
  CHECK(*read_file(config.overlap.profile, "it") == text);
  CHECK(cost::read_profile(config.overlap.profile, first->machine)->ops == first->ops);

  const auto renewed = test::good(
      run::ensure_profile(config, *world, programs, {.renew = run::ProfileRequest::Renew::all, .seconds = no_time}));
  CHECK(renewed->ops.size() == first->ops.size());
  CHECK(renewed->ops != first->ops);  // some of a hundred measured doubles differ
}

TEST_CASE("measuring again keeps the peak") {
  const test::TemporaryFolder folder;
  config::Config config = small();
  config.overlap.profile = folder / "costs.json";
  const auto world = comm::make_self();
  cost::Profile old(run::machine_of(config, *world, 1));
  old.peak_tflops["f32"] = 9;
  old.ops["gone"] = {1, 1, 0};
  REQUIRE(cost::write_profile(config.overlap.profile, old).ok());
  const auto programs = planner::programs_to_profile({config, 1}, 1).value();
  REQUIRE(run::ensure_profile(config, *world, programs, {.renew = run::ProfileRequest::Renew::all, .seconds = no_time})
              .ok());
  const auto held = cost::read_profile(config.overlap.profile);
  CHECK(held->peak_tflops == old.peak_tflops);
  CHECK_FALSE(held->ops.contains("gone"));
  CHECK_FALSE(held->ops.empty());
}

TEST_CASE("a damaged file of costs is replaced where all are measured again, and nowhere else") {
  const test::TemporaryFolder folder;
  config::Config config = small();
  config.overlap.profile = folder.write("costs.json", "{\"format\": 2, \"cp");
  const auto world = comm::make_self();
  const auto programs = planner::programs_to_profile({config, 1}, 1).value();
  using Renew = run::ProfileRequest::Renew;
  for (const Renew renew : {Renew::nothing, Renew::communication}) {
    const Error refused =
        test::refused(run::ensure_profile(config, *world, programs, {.renew = renew, .seconds = no_time}));
    CHECK(refused.message.starts_with(config.overlap.profile + ":"));
    CHECK(refused.message.ends_with("replace it with lancet profile --renew all"));
  }
  const auto measured =
      test::good(run::ensure_profile(config, *world, programs, {.renew = Renew::all, .seconds = no_time}));
  CHECK(cost::read_profile(config.overlap.profile)->ops == measured->ops);
}

TEST_CASE("a named file of another machine is refused on all ranks and stays as it is") {
  const test::TemporaryFolder folder;
  config::Config config = small();
  config.overlap.profile = folder / "costs.json";
  cost::Profile alone(run::machine_of(config, *comm::make_self(), 1));
  alone.ops["op"] = {1, 1, 0};
  REQUIRE(cost::write_profile(config.overlap.profile, alone).ok());
  const std::string text = *read_file(config.overlap.profile, "it");
  const auto programs = planner::programs_to_profile({config, 2}, 1).value();
  std::vector<std::string> errors(2);
  test::good(comm::run_inproc(2, [&](comm::Communicator& world) -> Status {
    const auto profile = run::ensure_profile(config, world, programs, {.local_ranks = 2, .seconds = no_time});
    if (profile.ok()) return internal_error("expected an error");
    errors[std::size_t(world.rank())] = profile.error().message;
    return {};
  }));
  for (const std::string& error : errors)
    CHECK(error == config.overlap.profile +
                       ": expected a profile of 2 ranks a host, inproc, 2 ranks, found one of 1 "
                       "rank a host, self, 1 rank, whose times are kept: name another file");
  CHECK(*read_file(config.overlap.profile, "it") == text);
}

TEST_CASE("an old file stays until its times are measured again") {
  const test::TemporaryFolder folder;
  config::Config config = small();
  config.overlap.profile = folder / "costs.json";
  const auto world = comm::make_self();
  test::HostAccelerator accelerator({.bytes = 1});  // too small for the step
  cost::Profile old(run::machine_of(config, *world, 1, &accelerator));
  old.machine.device.build = "an older one";
  old.ops["op"] = {1, 1, 0};
  REQUIRE(cost::write_profile(config.overlap.profile, old).ok());
  const Error profile =
      test::refused(run::ensure_profile(config, *world, planner::programs_to_profile({config, 1}, 1).value(),
                                        {.seconds = no_time, .accelerator = &accelerator}));
  CHECK(profile.message.find("bytes of memory on") != std::string::npos);
  CHECK(cost::read_profile(config.overlap.profile)->ops == old.ops);
}

TEST_CASE("without a file nothing is kept; the folder of default files is the caller's") {
  const test::TemporaryFolder folder;
  const config::Config config = small();
  const auto world = comm::make_self();
  const auto programs = planner::programs_to_profile({config, 1}, 1).value();
  REQUIRE(run::ensure_profile(config, *world, programs, {.seconds = no_time}).ok());
  CHECK(folder.names().empty());
  const std::string deep = folder / "deep";
  const auto profile =
      test::good(run::ensure_profile(config, *world, programs, {.profile_folder = deep, .seconds = no_time}));
  CHECK(cost::read_profile(run::profile_path(config, deep, profile->machine))->ops == profile->ops);
}

TEST_CASE("times that no default file can keep are measured with a warning; a named file is an error") {
  const test::TemporaryFolder folder;
  config::Config config = small();
  const auto world = comm::make_self();
  const auto programs = planner::programs_to_profile({config, 1}, 1).value();
  const std::string file = folder.write("file", "");
  const auto measure = [&](const std::string& cache, std::string& log) {
    test::LogCapture capture;
    auto profile = run::ensure_profile(config, *world, programs, {.profile_folder = cache, .seconds = no_time});
    log = capture.text();
    return profile;
  };
  std::string log;
  CHECK(measure(file + "/lancet", log).ok());
  CHECK(log.find("warning: profile: not kept: " + file + ": expected a folder") != std::string::npos);
  CHECK(log.find(", kept in") == std::string::npos);
  CHECK(measure("", log).ok());
  CHECK(log.find("warning: profile: not kept: HOME is not set") != std::string::npos);
  CHECK(measure(folder / "cache", log).ok());
  CHECK(log.find("warning") == std::string::npos);
  CHECK(log.find(", kept in") != std::string::npos);
  config.overlap.profile = file + "/costs.json";
  const Error refused = test::refused(measure("", log));
  CHECK(refused.code == ExitCode::config);
}

TEST_CASE("a named file that cannot predict the step of one rank is a warning") {
  const test::TemporaryFolder folder;
  config::Config config = small();
  config.overlap.policy = "lancet";
  const auto world = comm::make_self();
  const std::string damaged = folder.write("costs.json", "{\"format\": 2, \"cp");
  for (const std::string& file : {damaged, folder / "none.json", folder / "", std::string()}) {
    config.overlap.profile = file;
    const test::LogCapture capture;
    REQUIRE(run::make_step_plans({config, 1}, *world, {.profile = {.profile_folder = folder / "cache"}}, false).ok());
    const std::string warning = "warning: overlap.profile is not used: " + file;
    CHECK((capture.text().find(warning) != std::string::npos) == !file.empty());
  }
}

TEST_CASE("each machine has a default file of its own, which a new build shares; a named file serves any machine") {
  config::Config config = small();
  const cost::Machine machine{{"CPU", "avx2", 2, 1, "a"}, {"mpi", 2, 1}};
  const auto path = run::profile_path(config, "cache", machine);
  CHECK(path.string().starts_with("cache/profile-"));
  cost::Machine rebuilt = machine, wider = machine, threads = machine;
  rebuilt.device.build = "b";
  wider.cluster.ranks = 4;
  threads.device.threads = 1;
  CHECK(run::profile_path(config, "cache", rebuilt) == path);
  CHECK(run::profile_path(config, "cache", wider) != path);
  CHECK(run::profile_path(config, "cache", threads) != path);
  CHECK(run::profile_path(config, "", machine).empty());
  config.overlap.profile = "costs.json";
  CHECK(run::profile_path(config, "cache", wider) == "costs.json");
  CHECK(run::profile_path(config, "", machine) == "costs.json");
}

TEST_CASE("a file of another build is measured again and replaced") {
  const test::TemporaryFolder folder;
  config::Config config = small();
  config.overlap.profile = folder / "costs.json";
  const auto world = comm::make_self();
  cost::Machine older = run::machine_of(config, *world, 1);
  older.device.build = "an older one";
  cost::Profile old(older);
  old.ops["gone"] = {1, 1, 0};
  REQUIRE(cost::write_profile(config.overlap.profile, old).ok());
  const auto programs = planner::programs_to_profile({config, 1}, 1).value();
  const auto measured = test::good(run::ensure_profile(config, *world, programs, {.seconds = no_time}));
  const auto held = test::good(cost::read_profile(config.overlap.profile));
  CHECK(held->machine == run::machine_of(config, *world, 1));
  CHECK(held->ops == measured->ops);
  CHECK_FALSE(held->ops.contains("gone"));
}

TEST_CASE("the largest peak that was measured on a machine counts, beside its costs") {
  const test::TemporaryFolder folder;
  config::Config config = small();
  const auto world = comm::make_self();
  const cost::Machine machine = run::machine_of(config, *world, 1);
  const auto peak = [&](double measured) { return run::largest_peak_tflops(config, machine, folder / "", measured); };
  CHECK(peak(0.5) == 0.5);
  CHECK(peak(0.4) == 0.5);  // a busy moment
  CHECK(peak(0.6) == 0.6);
  const auto path = run::profile_path(config, folder / "", machine);
  cost::Profile costs(machine);
  costs.ops["op"] = {1, 1, 0};
  REQUIRE(cost::add_to_profile(path, costs).ok());
  CHECK(peak(0.1) == 0.6);
  CHECK(peak(0.7) == 0.7);
  CHECK(cost::read_profile(path)->ops == costs.ops);
  CHECK(cost::read_profile(path)->peak_tflops == std::map<std::string, double>{{"f32", 0.7}});
  config.train.dtype = DType::bf16;
  CHECK(peak(0.3) == 0.3);
  CHECK(run::largest_peak_tflops(config, machine, "", 0.2) == 0.2);  // nothing is kept
}

TEST_CASE("a peak of another build counts; a damaged file and one that the user names stay as they are") {
  const test::TemporaryFolder folder;
  config::Config config = small();
  const cost::Machine machine = run::machine_of(config, *comm::make_self(), 1);
  const auto path = run::default_profile_path(folder / "cache", machine);
  const auto peak = [&](double measured) {
    return run::largest_peak_tflops(config, machine, folder / "cache", measured);
  };
  cost::Profile theirs(machine);
  theirs.machine.device.build = "another";
  theirs.peak_tflops["f32"] = 9;
  theirs.ops["op"] = {1, 1, 0};
  REQUIRE(cost::write_profile(path, theirs).ok());
  CHECK(peak(0.2) == 9);
  CHECK(cost::read_profile(path)->machine == theirs.machine);
  CHECK(peak(10) == 10);
  CHECK(peak(0.2) == 10);
  CHECK(cost::read_profile(path)->machine == machine);
  CHECK(cost::read_profile(path)->ops.empty());  // the times of another build's kernels do not hold
  REQUIRE(write_file(path, "{").ok());
  CHECK(peak(0.2) == 0.2);
  CHECK(*read_file(path, "it") == "{");
  std::filesystem::remove(path);
  config.overlap.profile = folder / "costs.json";
  CHECK(peak(0.2) == 0.2);
  CHECK_FALSE(std::filesystem::exists(config.overlap.profile));
  CHECK(cost::read_profile(path)->peak_tflops == std::map<std::string, double>{{"f32", 0.2}});
}

TEST_CASE("a damaged file of costs stops all ranks before anything is measured") {
  const test::TemporaryFolder folder;
  config::Config config = small();
  config.overlap.profile = folder.write("costs.json", "{\"format\": 2}");
  const auto programs = planner::programs_to_profile({config, 2}, 1).value();
  std::vector<Error> errors(2);
  test::good(comm::run_inproc(2, [&](comm::Communicator& world) -> Status {
    const auto profile = run::ensure_profile(config, world, programs, {.local_ranks = 2, .seconds = no_time});
    if (profile.ok()) return internal_error("expected an error");
    errors[std::size_t(world.rank())] = profile.error();
    return {};
  }));
  for (const Error& error : errors) {
    CHECK(error.code == ExitCode::config);
    CHECK(error.message.find("costs.json: profile: expected the field cpu, found none") != std::string::npos);
  }
}
