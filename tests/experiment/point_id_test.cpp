// The identity of a point.
#include <catch2/catch.hpp>

#include "declared_hardware.h"
#include "small_experiment.h"

namespace lancet {
namespace {

using namespace experiment;
using namespace small_experiment;

}  // namespace

TEST_CASE("a point's id depends on its settings, and on the simulator if simulated, else on the machine") {
  const Files files;
  const std::string path = files.experiment(files.grid());
  auto id_on = [&](const std::string& on, const Identity& of) { return read_experiment(path, on, of)->points[0].id; };
  const std::string simulated = id_on("", here), measured = id_on("this", here);
  CHECK(id_on("", {"another", "machine"}) != simulated);
  CHECK(id_on("", {"simulator", "another"}) == simulated);
  CHECK(id_on("this", {"another", "machine"}) == measured);
  CHECK(id_on("this", {"simulator", "another"}) != measured);
  // Equal settings in other words give the same id; another content of the hardware file gives another.
  files.folder.write("small.json", replaced(test::small_config_text, "\"clip_grad\": 1.0", "\"clip_grad\": 1.00"));
  CHECK(id_on("", here) == simulated);
  files.folder.write("small.json", replaced(test::small_config_text, "\"lr\": 1e-3", "\"lr\": 2e-3"));
  CHECK(id_on("", here) != simulated);
  files.folder.write("small.json", test::small_config_text);
  files.folder.write("machine.json", test::declared_hardware({.network = 2}));
  CHECK(id_on("", here) != simulated);
  CHECK(id_on("this", here) == measured);
}

TEST_CASE("settings of saving, evaluation and generation are no part of a measured point") {
  const Files files;
  const std::string path = files.experiment(files.grid());
  auto id_of = [&](const std::string& on) { return read_experiment(path, on, here)->points[0].id; };
  const std::string measured = id_of("this"), simulated = id_of("");
  const std::string saved = "\"save_minutes\": 0";
  for (const std::string& field : {std::string("\"save_minutes\": 7"), saved + ", \"save_interval\": 7",
                                   saved + ", \"keep_last\": 7", saved + ", \"save_buffer_mb\": 2048"}) {
    INFO(field);
    files.folder.write("small.json", replaced(test::small_config_text, saved, field));
    CHECK(id_of("this") == measured);
    CHECK(id_of("") != simulated);
  }
  files.folder.write("small.json", replaced(test::small_config_text, "\"lr\": 1e-3", "\"lr\": 2e-3"));
  CHECK(id_of("this") != measured);
}

TEST_CASE("the simulator's hash covers what ids leave out") {
  const auto list = std::filesystem::path(LANCET_BINARY).parent_path() / "generated/simulator_build.txt";
  const auto files = lines_of(list.string());
  auto has = [&](const std::string& end) {
    return std::any_of(files.begin(), files.end(), [&](const std::string& file) { return file.ends_with(end); });
  };
  for (const char* file :
       {"/include/lancet/config/config.h", "/src/experiment/simulate.cpp", "/src/planning/planned_step.cpp",
        "/src/cost/hardware.cpp", "/src/cost/profile.cpp", "/src/planner/planner.cpp"}) {
    INFO(file);
    CHECK(has(file));
  }
  CHECK_FALSE(has("/src/cli/cli.cpp"));
}

TEST_CASE("the simulator's sources have a hash") {
  CHECK(simulator_build().size() == 16);
  CHECK(Identity::here().simulator == simulator_build());
  CHECK_FALSE(Identity::here().machine.empty());
}

}  // namespace lancet
