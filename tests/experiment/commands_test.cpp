// The commands: lancet bench sweep, and lancet plan --on.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "declared_hardware.h"
#include "declared_profile.h"
#include "lancet/base/atomic_file.h"
#include "small_experiment.h"
#include "text.h"

namespace lancet {
namespace {

using namespace experiment;
using namespace small_experiment;

}  // namespace

TEST_CASE("bench sweep runs an experiment and refuses a bad one in one line") {
  const Files files;
  const std::string experiment = files.experiment(files.grid()), out = files.folder / "out";
  const auto outcome = test::lancet("bench sweep " + experiment + " --out " + out);
  INFO(outcome.output);
  REQUIRE(outcome.code == 0);
  CHECK(lines_of(out + "/points.jsonl").size() == 12);
  CHECK(outcome.lines_with("test 12/12: ") == 1);
  const auto listed = test::lancet("bench sweep " + experiment + " --list");
  CHECK(listed.code == 0);
  CHECK(listed.lines_with(test::json_in(lines_of(out + "/points.jsonl")[11])["id"].get<std::string>()) == 1);
  const auto again = test::lancet("bench sweep " + experiment + " --out " + out);
  CHECK(again.code == 0);
  CHECK(again.lines_with("12 points, 12 recorded before, 0 failed") == 1);
  for (const std::string& bad : {std::string("no-such-file.json"), experiment + " --on pdp-11", files.machine}) {
    const auto refused = test::lancet("bench sweep " + bad + " --out " + out);
    INFO(refused.output);
    CHECK(refused.code == 2);
    CHECK(refused.lines_with("expected") == 1);
  }
  for (const char* timeout : {"0", "nan", "1e30", "-5", "soon"})
    CHECK(test::lancet("bench sweep " + experiment + " --timeout " + timeout + " --out " + out).code == 2);
  CHECK(test::lancet("bench sweep " + experiment + " --out " + files.machine + "/x").code == 3);
}

TEST_CASE("shipped files are found from any folder, of a build and of an installed program") {
  const test::TemporaryFolder folder;
  const std::string prefix = folder / "prefix", program = prefix + "/bin/lancet";
  const auto installed = test::shell("cmake --install $(dirname " LANCET_BINARY ") --prefix " + prefix);
  INFO(installed.output);
  REQUIRE(installed.code == 0);
  auto in = [&](const std::string& command) { return test::shell("cd " + (folder / "") + " && " + command); };
  for (const std::string& lancet : {std::string(LANCET_BINARY), program}) {
    for (const char* file : {"fig15", "configs/experiments/fig15.json"}) {
      const auto listed = in(lancet + " bench sweep " + file + " --list");
      INFO(listed.output);
      CHECK(listed.code == 0);
      CHECK(listed.lines_with("8 ranks, Lancet") > 0);
    }
    CHECK(in(lancet + " bench sweep fig14 --on this --list").lines_with("this, bench, switch, 2 ranks, Lancet") > 0);
    const auto none = in(lancet + " bench sweep fig99 --list");
    INFO(none.output);
    CHECK(none.code == 2);
    const auto beside = std::filesystem::path(lancet).parent_path();
    for (const std::filesystem::path& place :
         {beside / "share/lancet", beside.parent_path() / "share/lancet", std::filesystem::path()})
      CHECK(none.lines_with((place / "configs/experiments/fig99.json").string()) == 1);
  }
  folder.write("small.json", test::small_config_text);
  CHECK(in(program + " plan small.json --ranks 4 --on p4de-a100").lines_with("costs: p4de-a100, declared") == 1);
  const auto none = in(program + " plan small.json --ranks 4 --on pdp-11");
  CHECK(none.code == 2);
  CHECK(none.lines_with("not at configs/hardware/pdp-11.json, " + prefix + "/bin/share/lancet/") == 1);
  CHECK(none.lines_with(" or " + prefix + "/share/lancet/configs/hardware/pdp-11.json") == 1);
}

TEST_CASE("runs use the program's own scripts, in whatever folder the sweep is started") {
  const Files files;
  const std::string own = files.experiment(replaced(files.grid(), "[2, 4]", "[1]"));
  const auto at = files.folder / "elsewhere";
  std::filesystem::create_directories(at);
  const auto ran = test::shell("cd " + at + " && " LANCET_BINARY " bench sweep " + own + " --on this --timeout 60");
  INFO(ran.output);
  CHECK(ran.code == 0);
  const auto lines = lines_of(at + "/runs/sweeps/test-on-this/points.jsonl");
  REQUIRE(lines.size() == 6);
  for (const std::string& line : lines) CHECK(test::json_in(line)["status"] == "ok");
}

TEST_CASE("a fresh sweep also measures costs again") {
  const Files files;
  const std::string out = files.folder / "out";
  std::filesystem::create_directories(out);
  const std::string sweep = LANCET_BINARY " bench sweep " +
                            files.folder.write("one.json", R"({"title": "t", "warmup": 0, "steps": 1, "grids": [{
      "on": "this", "models": ["small"], "gates": ["switch"], "ranks": [1], "policies": ["dW"]}]})") +
                            " --timeout 60 --out " + out;
  REQUIRE(write_file(out + "/profile-1-ranks.json", "{").ok());  // the kept costs cannot be used
  const auto kept = test::shell(sweep);
  CHECK(kept.code == 2);
  CHECK(kept.lines_with("profile-1-ranks.json") == 2);
  const auto fresh = test::shell(sweep + " --fresh");
  INFO(fresh.output);
  CHECK(fresh.code == 0);
}

TEST_CASE("a killed sweep leaves no run behind and frees its folder for the next") {
  const Files files;
  const std::string out = files.folder / "out";
  const std::string own = files.folder.write("long.json", R"({"title": "t", "warmup": 1, "steps": 10000, "grids": [{)" +
                                                              replaced(files.grid(), "[2, 4]", "[1]") + "}]}");
  const std::string sweep = LANCET_BINARY " bench sweep " + own + " --out " + out;
  const auto killed =
      test::shell(sweep + " --on this >/dev/null 2>&1 & pid=$!; while ! ls " + out +
                  "/runs/*/metrics.jsonl >/dev/null 2>&1; do kill -0 $pid || exit 9; " + "sleep 0.05; done; " + sweep +
                  "; kill -KILL $pid; wait $pid; while pgrep -f \"train --run-dir " + out +
                  "/run[s]\" >/dev/null; do sleep 0.05; done; " + sweep);
  INFO(killed.output);
  CHECK(killed.lines_with("expected a folder that no other sweep writes to, found one at work there") == 1);
  CHECK(killed.lines_with("6 points, 0 recorded before, 0 failed") == 1);
  CHECK(killed.code == 0);
  CHECK(lines_of(out + "/points.jsonl").size() == 6);
}

TEST_CASE("a second signal ends a long simulation at once") {
  const Files files;
  const std::string out = files.folder / "out";
  const std::string own = files.experiment(files.grid(", \"set\": [\"model.n_layer=4000\"]"));
  const auto stopped =
      test::shell(LANCET_BINARY " bench sweep " + own + " --out " + out + " & pid=$!; while [ ! -e " + out +
                  "/points.jsonl ]; do kill -0 $pid || exit 9; sleep 0.05; done; "
                  "while kill -TERM $pid 2>/dev/null; do sleep 0.05; done; wait $pid");
  INFO(stopped.output);
  CHECK(stopped.code == 75);
  CHECK(stopped.lines_with("stopping: a run is ended, a simulation is finished") == 1);
  CHECK(stopped.lines_with("stopped at once") == 1);
  CHECK(lines_of(out + "/points.jsonl").empty());
}

TEST_CASE("each kind of place has its own default folder") {
  const Files files;
  const std::string sweep =
      "cd " + (files.folder / "") + " && " LANCET_BINARY " bench sweep " + files.experiment(files.grid());
  CHECK(test::shell(sweep).lines_with(": runs/sweeps/test/points.jsonl") == 1);
  const std::string costs = files.folder / "costs.json";
  REQUIRE(
      cost::write_profile(costs, test::declared_profile(files.read().points[0].config, test::declared_machine(2, 1)))
          .ok());
  CHECK(test::shell(sweep + " --profile " + costs).lines_with(": runs/sweeps/test-with-costs/points.jsonl") == 1);
  CHECK(test::shell(sweep + " --profile no-such.json").code == 2);
  CHECK(test::shell(sweep + " --on " + files.machine).lines_with(": runs/sweeps/test-on-machine/points.jsonl") == 1);
}

TEST_CASE("plan --on plans for a declared machine") {
  const Files files;
  const auto outcome = test::lancet("plan " + files.config + " --ranks 4 --on " + files.machine);
  INFO(outcome.output);
  REQUIRE(outcome.code == 0);
  CHECK(outcome.lines_with("costs: machine, declared: 4 ranks on 2 nodes") == 1);
  CHECK(outcome.lines_with("memory: 0.0 GiB of 15.0 GiB") == 1);
  CHECK(test::lancet("plan " + files.config + " --ranks 2 --on pdp-11").code == 2);
  files.folder.write("machine.json", replaced(test::declared_hardware(), "\"nics\"", "\"nicks\""));
  const auto bad = test::lancet("plan " + files.config + " --ranks 2 --on " + files.machine);
  CHECK(bad.code == 2);
  CHECK(bad.lines_with("network") == 1);
}

}  // namespace lancet
