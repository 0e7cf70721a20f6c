// The line that says, once and before it, that planning may take minutes.
#include <catch2/catch.hpp>

#include "lancet/cost/profile.h"
#include "lancet/planner/from_config.h"
#include "log_capture.h"
#include "program.h"

using namespace lancet;

namespace {

config::Config with_layers(int layers, const std::string& policy) {
  const std::vector<std::string> overrides{"model.n_layer=" + std::to_string(layers), "overlap.policy=" + policy};
  const auto config = config::parse(test::small_config_text, "small.json", overrides);
  if (!config.ok()) FAIL(config.error().message);
  return *config;
}

// Whether planning logged the line.
bool told(const config::Config& config, const planner::StepOptions& options) {
  const test::LogCapture capture;
  const auto plan = planner::plan_step({config, 2}, options);
  return capture.text().find("this may take minutes") != std::string::npos;
}

}  // namespace

TEST_CASE("a large sequential step is said to take long, with all its micro batches") {
  CHECK_FALSE(told(with_layers(60, "sequential"), {}));
  config::Config accumulating = with_layers(200, "sequential");
  CHECK_FALSE(told(accumulating, {}));
  accumulating.train.gradient_accumulation_steps = 8;
  CHECK(told(accumulating, {}));
}

TEST_CASE("a plan that lacks costs is refused before it is said to take long") {
  const cost::Profile nothing;
  const config::Config large = with_layers(60, "lancet");
  REQUIRE_FALSE(planner::plan_step({large, 2}, {.costs = &nothing}).ok());
  CHECK_FALSE(told(large, {.costs = &nothing}));
}
