// A config's costs: measured at their first use, read from the file afterwards.
#include "lancet/planning/step_costs.h"

#include <catch2/catch.hpp>

#include "lancet/base/atomic_file.h"
#include "program.h"

using namespace lancet;

namespace {

config::Config small() {
  auto config = config::parse(test::small_config, "small.json");
  if (!config.ok()) FAIL(config.error().message);
  return *config;
}

constexpr double no_time = 0;

}  // namespace

TEST_CASE("the programs of a run") {
  config::Config config = small();
  const auto updates = planning::step_programs(config, 1);
  REQUIRE_FALSE(updates.empty());
  config.train.gradient_accumulation_steps = 2;
  const auto programs = planning::step_programs(config, 1);
  CHECK(programs.size() == 2 * updates.size());  // with and without the update
  // Only the first list has the update; each list begins with the program without parts.
  CHECK(programs.front().instructions.size() > programs[updates.size()].instructions.size());
}

TEST_CASE("costs are measured once and then read") {
  const test::TemporaryFolder folder;
  config::Config config = small();
  config.overlap.profile = folder / "costs.json";
  const auto world = comm::make_self();
  const auto programs = planning::step_programs(config, 1);
  const auto first = planning::ensure_profile(config, *world, programs, {.seconds = no_time});
  REQUIRE(first.ok());
  CHECK(cost::op_costs(*first, programs[0]).ok());
  const std::string text = *read_file(config.overlap.profile, "it");
  const auto second = planning::ensure_profile(config, *world, programs, {.seconds = no_time});
  REQUIRE(second.ok());
  CHECK(second->ops == first->ops);
  CHECK(*read_file(config.overlap.profile, "it") == text);
  CHECK(cost::read_profile(config.overlap.profile, first->machine)->ops == first->ops);

  const auto renewed =
      planning::ensure_profile(config, *world, programs, {.renew = planning::ProfileRequest::Renew::all, .seconds = no_time});
  REQUIRE(renewed.ok());
  CHECK(renewed->ops.size() == first->ops.size());
  CHECK(renewed->ops != first->ops);  // some of a hundred measured doubles differ
}

TEST_CASE("without a file nothing is kept; the default path is the caller's") {
  const test::TemporaryFolder folder;
  const config::Config config = small();
  const auto world = comm::make_self();
  const auto programs = planning::step_programs(config, 1);
  REQUIRE(planning::ensure_profile(config, *world, programs, {.seconds = no_time}).ok());
  CHECK(folder.names().empty());
  const std::string path = folder / "deep/profile.json";
  REQUIRE(planning::ensure_profile(config, *world, programs, {.default_path = path, .seconds = no_time}).ok());
  CHECK(cost::ProfileFile::read(path).ok());
}

TEST_CASE("a damaged file of costs stops all ranks before anything is measured") {
  const test::TemporaryFolder folder;
  config::Config config = small();
  config.overlap.profile = folder.write("costs.json", "{\"format\": 1}");
  const auto programs = planning::step_programs(config, 2);
  std::vector<Error> errors(2);
  const Status status = comm::run_inproc(2, [&](comm::Communicator& world) -> Status {
    const auto profile = planning::ensure_profile(config, world, programs, {.local_ranks = 2, .seconds = no_time});
    if (profile.ok()) return internal_error("expected an error");
    errors[std::size_t(world.rank())] = profile.error();
    return {};
  });
  REQUIRE(status.ok());
  for (const Error& error : errors) {
    CHECK(error.code == ExitCode::config);
    CHECK(error.message.find("costs.json: profile: expected the field devices, found none") != std::string::npos);
  }
}
