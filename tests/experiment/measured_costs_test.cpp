// Measured costs take precedence over the declared machine's.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "declared_profile.h"
#include "lancet/experiment/run.h"
#include "lancet/planning/from_config.h"
#include "small_experiment.h"
#include "text.h"

namespace lancet {
namespace {

using namespace experiment;
using namespace small_experiment;

}  // namespace

TEST_CASE("a profile takes precedence over the hardware file and is part of the point") {
  const Files files;
  const Experiment plain = files.read();
  const std::string path = files.experiment(files.grid());
  const cost::Profile profile = test::declared_profile(plain.points[0].config, test::declared_machine(2, 1));
  const std::string costs = files.folder / "costs.json";
  REQUIRE(cost::write_profile(costs, profile).ok());
  const auto read = [&](const std::string& on) { return read_experiment(path, on, here, costs); };
  const auto experiment = read("");
  INFO((experiment.ok() ? "" : experiment.error().message));
  REQUIRE(experiment.ok());
  const Point &same = experiment->points[0], &more = experiment->points[6];
  REQUIRE(more.ranks == 4);
  CHECK(same.id != plain.points[0].id);
  // A profile of this layout: the step uses nothing of the hardware file.
  const auto outcome = simulate(*experiment, same);
  REQUIRE(outcome.ok());
  const auto plan = planning::plan_step(same.config, 2, {.costs = &profile});
  REQUIRE(plan.ok());
  CHECK(outcome->times.step == Approx(plan->header.real("predicted_ms", 0)).epsilon(1e-6));
  CHECK(outcome->times.step != Approx(simulate(plain, plain.points[0])->times.step).epsilon(1e-3));
  const auto record = test::json_in(to_line(*experiment, same, *outcome, "1"));
  const auto said = record["profile"].get<std::string>();
  INFO(said);
  CHECK(said.find("ops and communication of Declared CPU") == 0);
  CHECK(said.find(profile.identity()) != std::string::npos);
  // A profile of another layout: its ops are used with the communication of the hardware file.
  const auto wider = simulate(*experiment, more);
  REQUIRE(wider.ok());
  CHECK(wider->profile.find("ops of Declared CPU") == 0);
  CHECK(wider->times.all_to_all == Approx(simulate(plain, plain.points[6])->times.all_to_all));
  // Another profile is another point.
  cost::Profile slower = profile;
  slower.ops.begin()->second.ms *= 2;
  REQUIRE(cost::write_profile(costs, slower).ok());
  CHECK(read("")->points[0].id != same.id);
  const auto refused = [&](const Result<Experiment>& result, const std::string& what) {
    REQUIRE_FALSE(result.ok());
    INFO(result.error().message);
    CHECK(result.error().code == ExitCode::config);
    CHECK(result.error().message.find(what) != std::string::npos);
  };
  refused(read("this"), "expected simulated points of even routing, without padding, where --profile is given, found");
  refused(read_experiment(files.experiment(files.grid(", \"routing\": {\"imbalance\": 2}")), "", here, costs),
          "imbalance 2");
  refused(read_experiment(files.experiment(files.grid()), "", here, files.folder / "none.json"), "none.json");
  refused(read_experiment(files.experiment(files.grid(", \"set\": [\"threads=3\"]")), "", here, costs),
          "costs.json: expected ops measured with threads=3, found ");
}

}  // namespace lancet
