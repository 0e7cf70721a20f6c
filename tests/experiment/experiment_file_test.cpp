// Experiment files: their points and their errors.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "lancet/base/atomic_file.h"
#include "lancet/experiment/run.h"
#include "small_experiment.h"
#include "text.h"

namespace lancet {
namespace {

using namespace experiment;
using namespace small_experiment;

}  // namespace

TEST_CASE("an experiment is the product of its lists, in their order") {
  const Files files;
  const Experiment experiment = files.read();
  CHECK(experiment.name == "test");
  REQUIRE(experiment.points.size() == 12);
  CHECK(experiment.points[0].policy == "sequential");
  CHECK(experiment.points[0].ranks == 2);
  CHECK(experiment.points[0].hosts == 1);
  CHECK(experiment.points[11].policy == "Lancet");
  CHECK(experiment.points[11].ranks == 4);
  CHECK(experiment.points[11].config.overlap.policy == "lancet");
  CHECK(experiment.points[0].source == Source::simulated);
  std::set<std::string> ids;
  for (const Point& point : experiment.points) ids.insert(point.id);
  CHECK(ids.size() == 12);
  const auto measured = read_experiment(files.experiment(files.grid()), "this", here);
  REQUIRE(measured.ok());
  CHECK(measured->points[0].source == Source::measured);
  CHECK(measured->points[0].id != experiment.points[0].id);
  CHECK(measured->points[0].hosts == 1);
}

TEST_CASE("a sweep's policies and plans are read before its first point") {
  const Files files;
  const std::string other = files.folder.write("other.ir", "hello\n");
  auto refused = [&](const std::string& dw) {
    files.folder.write("settings.json", replaced(files.settings_text, R"({"set": ["overlap.policy=dw"]})", dw));
    return files.refused(R"({"title": "t", "grids": [{)" + files.grid() + "}]}");
  };
  CHECK(refused(R"({"set": ["overlap.policy=nope"]})")
            .find("grids[0], policy dW: expected a policy of this build, found overlap.policy: expected one of ") !=
        std::string::npos);
  CHECK(refused(R"({"plan": ")" + other + R"("})").find("policies.dW.plan: expected a plan of ") != std::string::npos);
  CHECK(refused(R"({"plan": ")" + other + R"("})").find("plan " + other + ": line 1: expected '[', found 'hello'") !=
        std::string::npos);
}

TEST_CASE("errors of an experiment name the field and the fault") {
  const Files files;
  auto with_grid = [&](const std::string& grid) { return R"({"title": "t", "grids": [{)" + grid + "}]}"; };
  const std::string grid = files.grid();
  CHECK(files.refused(with_grid(replaced(grid, "\"Lancet\"", "\"Lancelot\"")))
            .find("grids[0].policies: expected some of FasterMoE, Lancet, Tutel, dW, partition, sequential, found "
                  "'Lancelot'") != std::string::npos);
  CHECK(files.refused(with_grid(replaced(grid, "\"small\"", "\"huge\"")))
            .find("grids[0].models: expected some of small, found 'huge'") != std::string::npos);
  CHECK(files.refused(with_grid(replaced(grid, files.machine, "pdp-11"))).find("found 'pdp-11'") != std::string::npos);
  CHECK(files.refused(with_grid(replaced(grid, "[2, 4]", R"([2, 3], "set": ["mesh.expert=2"])")))
            .find("grids[0] (3 ranks)") != std::string::npos);
  CHECK(files.refused(with_grid(replaced(grid, "[2, 4]", "[0]"))).find("expected integers from 1 to 65536, found 0") !=
        std::string::npos);
  CHECK(files.refused(with_grid(replaced(grid, "[\"switch\"]", "[\"router\"]"))).find("model.router") !=
        std::string::npos);
  CHECK(files.refused(with_grid(files.grid(R"(, "colour": 1)"))).find("'colour'") != std::string::npos);
  CHECK(files.refused(R"({"title": "t", "grids": []})").find("grids: expected a list of grids") != std::string::npos);
  // Errors that are found before the settings are read.
  CHECK(files.refused(R"({"model": {}, "settings": "no-such-file.json"})")
            .find("the experiment: expected the fields title, settings, ") != std::string::npos);
  CHECK(files.refused("{").find(":1:2: expected JSON: ") != std::string::npos);
  CHECK(files.refused("{\"what\": 1e999}").find("number overflow") != std::string::npos);
  CHECK(files.refused("[]").find("expected an object") != std::string::npos);
  const std::string deep(100'000, '[');
  CHECK(files.refused(deep + std::string(deep.size(), ']')).find("of at most 100 nested brackets") !=
        std::string::npos);
}

TEST_CASE("settings are beside the experiment, in a file of any name, or in the experiment itself") {
  const Files files;
  const std::string grids = ", \"grids\": [{" + files.grid() + "}]}";
  const auto read = [&](const std::string& settings) {
    return read_experiment(files.folder.write("own.json", "{\"title\": \"t\"" + settings + grids), "", here);
  };
  const std::string said = *read_file(files.settings, "settings");
  const std::string id = files.read().points[0].id;
  CHECK(read("")->points[0].id == id);
  CHECK(read(", \"settings\": " + said)->points[0].id == id);
  files.folder.write("other.json", said);
  CHECK(read(", \"settings\": \"other.json\"")->points[0].id == id);
  CHECK(read(", \"settings\": \"" + (files.folder / "other.json") + "\"")->points[0].id == id);
  // A config file beside the settings.
  CHECK(read(", \"settings\": " + replaced(said, files.config, "small.json"))->points[0].id == id);
  const auto refused = [&](const std::string& settings) {
    const auto result = read(settings);
    REQUIRE_FALSE(result.ok());
    CHECK(result.error().code == ExitCode::config);
    CHECK(result.error().message.find('\n') == std::string::npos);
    return result.error().message;
  };
  const std::string own = files.folder / "own.json",
                    how = "\"settings\": {\"models\": {\"NAME\": {\"config\": \"FILE\"}}, ";
  CHECK(
      refused(", \"settings\": 3").starts_with(own + ": settings: expected the name of a file, or an object: " + how));
  CHECK(
      refused(", \"settings\": {\"models\": 3}").starts_with(own + ": settings: models: expected an object, found 3"));
  CHECK(refused(", \"settings\": {}").starts_with(own + ": settings: models: expected an object, found none"));
  CHECK(refused(", \"settings\": " + replaced(said, files.config, "no.json"))
            .starts_with(own + ": settings: models.small.config: expected a config file at no.json, " +
                         (files.folder / "no.json") + ", "));
  CHECK(refused(", \"settings\": \"none.json\"")
            .find("found none at " + (files.folder / "none.json") + ", none.json, ") != std::string::npos);
  std::filesystem::remove(files.settings);
  const std::string missing = refused("");
  INFO(missing);
  CHECK(missing.starts_with(own +
                            ": settings: expected a file settings.json beside it that says what its models and "
                            "policies mean, or, in place of a name, " +
                            how));
  CHECK(missing.ends_with("found none at " + (files.folder / "settings.json")));
}

TEST_CASE("the hardware's numbers are an axis of simulated points") {
  const Files files;
  const auto varied =
      read_experiment(files.experiment(files.grid(R"(, "hardware": ["", "node.latency_us=x2"])")), "", here);
  REQUIRE(varied.ok());
  REQUIRE(varied->points.size() == 24);
  CHECK(varied->points[0].id == files.read().points[0].id);
  const Point& slower = varied->points[12];
  CHECK(slower.id != varied->points[0].id);
  CHECK(slower.hardware() == files.machine + ":node.latency_us=x2");
  CHECK(slower.describe() == files.machine + ":node.latency_us=x2, small, switch, 2 ranks, sequential");
  CHECK(test::json_in(to_line(*varied, slower, {}, "1"))["variation"] == "node.latency_us=x2");
  CHECK_FALSE(test::json_in(to_line(*varied, varied->points[0], {}, "1")).contains("variation"));
  CHECK(simulate(*varied, slower)->times.all_to_all > simulate(*varied, varied->points[0])->times.all_to_all);
  const auto on = read_experiment(files.experiment(files.grid()), files.machine + ":node.latency_us=x2", here);
  REQUIRE(on.ok());
  CHECK(on->points[0].id == slower.id);
  const auto message = [&](const std::string& changes, const std::string& on) {
    const auto refused =
        read_experiment(files.experiment(files.grid(R"(, "hardware": [")" + changes + "\"]")), on, here);
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.error().code == ExitCode::config);
    return refused.error().message;
  };
  CHECK(message("network.speed=2", "").starts_with("hardware: expected changes like slow, device=fast, "));
  CHECK(message("slow", "this").find("hardware: expected no changes to numbers where points are run, found 'slow'") !=
        std::string::npos);
}

TEST_CASE("routing is even or imbalanced, padding belongs to a policy; both only for simulated points") {
  const Files files;
  const auto with = [&](const std::string& routing) { return files.grid(", \"routing\": " + routing); };
  const auto uneven = read_experiment(files.experiment(with("{\"imbalance\": 2}")), "", here);
  REQUIRE(uneven.ok());
  CHECK(uneven->points[0].spread.imbalance == 2);
  CHECK(uneven->points[0].spread.capacity == 4);
  CHECK_FALSE(uneven->points[0].spread.padded);
  CHECK(uneven->points[0].describe().ends_with("sequential, imbalance 2"));
  CHECK(uneven->points[0].id != files.read().points[0].id);
  const auto record = test::json_in(to_line(*uneven, uneven->points[0], {}, "1"));
  CHECK(record["imbalance"] == 2);
  CHECK(record["padded"] == false);
  CHECK(record["routing"].get<std::string>().starts_with("imbalance 2: "));
  for (const char* bad :
       {"\"odd\"", "2", "{\"imbalance\": 0.5}", "{\"imbalance\": \"2\"}", "{}", "{\"imbalance\": 1e300}"}) {
    const auto refused = read_experiment(files.experiment(with(bad)), "", here);
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.error().message.find("grids[0].routing: expected \"even\" or ") != std::string::npos);
  }
  const auto real = read_experiment(files.experiment(with("{\"imbalance\": 2}")), "this", here);
  REQUIRE_FALSE(real.ok());
  CHECK(real.error().message.find("expected even routing and no padding where points are run") != std::string::npos);
}

}  // namespace lancet
