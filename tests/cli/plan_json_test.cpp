// lancet plan --json, whose numbers can be computed by hand on a machine of round numbers.
#include <catch2/catch.hpp>

#include "declared_hardware.h"
#include "lancet/base/files.h"
#include "lancet/ir/plan.h"
#include "program.h"
#include "text.h"

namespace lancet {
namespace {

using nlohmann::json;
using test::TemporaryFolder;

// A model of two blocks, one of them MoE.
struct Files {
  TemporaryFolder folder;
  std::string config = folder.write("small.json", test::small_config_text);

  explicit Files(const test::DeclaredMachine& machine = {}) {
    folder.write("machine.json", test::declared_hardware(machine));
  }
  test::Outcome run(const std::string& options) const {
    return test::lancet("plan " + config + " --ranks 4 --on " + (folder / "machine.json") + " --json " + options);
  }
  json plan(const std::string& options) const {
    const auto outcome = run(options);
    INFO(outcome.output);
    REQUIRE(outcome.code == 0);
    return test::json_in(outcome.output);
  }
};

json row_of(const json& plan, const std::string& policy) {
  for (const json& row : plan["policies"])
    if (row["policy"] == policy) return row;
  FAIL("no row of " << policy);
  return {};
}

}  // namespace

TEST_CASE("plan --json holds every policy, none of which is slower than sequential on a slow network") {
  const Files files;
  const json all = files.plan("--set overlap.policy=lancet");
  CHECK(all["chosen"] == "lancet");
  CHECK(all["policies"].size() > 8);
  const double sequential = row_of(all, "sequential")["step_ms"];
  for (const json& row : all["policies"]) {
    INFO(row);
    CHECK(row["step_ms"] <= sequential);
    CHECK(row["exposed_ms"] <= row["communication_ms"]);
    CHECK(row["step_ms"] >= row["compute_ms"]);
    CHECK(row["step_ms"] >= all["bound_ms"].get<double>() * (1 - 1e-9));
  }
  const json lancet = row_of(all, "lancet");
  CHECK(lancet["step_ms"] < 0.95 * sequential);
  CHECK(all["forward_ms"] > 0);
  CHECK(all["forward_ms"] < lancet["step_ms"]);
  CHECK(all["experts_ms"] > 0);
  CHECK(all["memory_bytes"] > lancet["arena_bytes"]);
  CHECK(all["fits"] == true);
  CHECK(all["planning_ms"] > 0);
  CHECK(all["build"].get<std::string>().size() == 16);

  const json alone = files.plan("--alone --set overlap.policy=lancet");
  CHECK(alone["policies"].size() == 2);
  CHECK(row_of(alone, "lancet") == lancet);
}

TEST_CASE("with free communication every policy takes the whole compute time, with every gate") {
  const Files files({.network = 1e9, .latency_us = 0, .core_share = 0});
  for (const char* gate : {"switch", "batch_prioritized"}) {
    const json all = files.plan(std::string("--set overlap.policy=auto --set model.router=") + gate);
    const double compute = row_of(all, "sequential")["compute_ms"];
    CHECK(compute > 1);
    for (const json& row : all["policies"]) {
      INFO(gate << " " << row);
      CHECK(row["step_ms"].get<double>() == Approx(compute).epsilon(1e-6));
      CHECK(row["compute_ms"].get<double>() == Approx(compute).epsilon(1e-6));
      CHECK(row["exposed_ms"] < 1e-6 * compute);
    }
  }
}

TEST_CASE("with infinite links and messages that start at once lancet chooses no parts") {
  for (const double latency_us : {0.0, 5.0}) {
    const Files files({.network = 1e9, .latency_us = latency_us});
    const json plan = files.plan("--alone --set overlap.policy=lancet");
    INFO(latency_us << " us");
    CHECK(row_of(plan, plan["chosen"])["parts"] == 1);
  }
}

TEST_CASE("padding costs the empty share of the capacity, and the fullest expert those of all ranks") {
  const Files files;
  const auto plan = [&](const std::string& factor, const std::string& options) {
    return files.plan("--alone --set overlap.policy=sequential --set model.capacity_factor=" + factor + options);
  };
  const auto step = [](const json& plan) { return plan["policies"][0]["step_ms"].get<double>(); };
  CHECK(step(plan("1", " --padded")) == step(plan("1", "")));
  const json roomy = plan("4", ""), padded = plan("4", " --padded"), uneven = plan("4", " --imbalance 2"),
             both = plan("4", " --imbalance 2 --padded");
  // Four times the bytes (the latency does not grow) and four times the experts.
  CHECK(roomy["policies"][0]["all_to_all_ms"].get<double>() ==
        Approx(plan("1", "")["policies"][0]["all_to_all_ms"].get<double>()));
  CHECK(padded["policies"][0]["all_to_all_ms"] > 2 * roomy["policies"][0]["all_to_all_ms"].get<double>());
  CHECK(padded["experts_ms"] > 2 * roomy["experts_ms"].get<double>());
  // Padded work does not depend on the spread of tokens; unpadded work waits for the fullest rank.
  CHECK(step(both) == step(padded));
  CHECK(step(uneven) > step(roomy));
  CHECK(uneven["experts_ms"] > 1.5 * roomy["experts_ms"].get<double>());
  CHECK(step(uneven) < step(both));
  CHECK(uneven["kept"] == 1);
  CHECK(uneven["fullest"] == 2);
  CHECK(plan("1", " --imbalance 2")["kept"].get<double>() == Approx(0.75));
  CHECK(files.run("--imbalance 0.5").code == 2);
  CHECK(test::lancet("plan " + files.config + " --padded").code == 2);
}

TEST_CASE("plan --json --load: no plan is below the bound where further rounds compute beside all-reduces") {
  const auto outcome = test::lancet("plan " LANCET_SOURCE_DIR
                                    "/configs/gpt2-s-moe.json --ranks 8 --on p3dn-v100 --load zipf:0.5 --json "
                                    "--set model.capacity_factor=null --set overlap.policy=lancet");
  INFO(outcome.output);
  REQUIRE(outcome.code == 0);
  const json plan = test::json_in(outcome.output);
  for (const json& row : plan["policies"]) CHECK(row["step_ms"].get<double>() > plan["bound_ms"].get<double>());
}

TEST_CASE("plan --json --load: all ranks wait for the slowest one of the recorded layers, further rounds included") {
  const Files files({.network = 0.02});
  const std::string options = "--alone --set overlap.policy=sequential --set model.capacity_factor=null --load ";
  const auto recorded = [&](const std::string& counts) {
    return files.plan(options + files.folder.write("metrics.jsonl", "{\"layer_expert_tokens\": [" + counts + "]}\n"));
  };
  const auto ms = [](const json& plan, const char* what) { return row_of(plan, "sequential")[what].get<double>(); };
  const json even = files.plan(options + "even"), balanced = recorded("[4, 4, 4, 4]");
  CHECK(ms(balanced, "step_ms") == Approx(ms(even, "step_ms")));
  CHECK(even["balanced_ms"].is_null());
  CHECK(balanced["balanced_ms"].get<double>() == Approx(ms(even, "step_ms")).epsilon(2e-3));
  // A rank with 1.5 and with 3 times the mean; the buffers have slots for 2, so the latter takes a second round.
  const json once = recorded("[6, 4, 4, 2]"), twice = recorded("[12, 2, 1, 1]");
  CHECK(once["fullest"] == Approx(1.5));
  CHECK(once["kept"] == Approx(1));
  CHECK(twice["fullest"] == Approx(2));
  CHECK(twice["kept"] == Approx(0.75));
  CHECK(twice["costs"].get<std::string>().ends_with(
      "and 25.00% of the choices find no slot; a layer takes 1.00 further rounds"));
  CHECK(ms(once, "all_to_all_ms") > 1.2 * ms(even, "all_to_all_ms"));
  CHECK(ms(twice, "all_to_all_ms") > 1.2 * ms(once, "all_to_all_ms"));
  CHECK(ms(once, "step_ms") > ms(even, "step_ms"));
  CHECK(twice["balanced_ms"].get<double>() == Approx(ms(even, "step_ms")).epsilon(2e-3));
  CHECK(ms(files.plan(options + "zipf:1"), "step_ms") > ms(even, "step_ms"));
  for (const char* wrong : {"zipf:x", "none.jsonl", "even --imbalance 2"}) {
    INFO(wrong);
    CHECK(files.run(options + wrong).code == 2);
  }
}

TEST_CASE("plan --json --load: what balance would save of pipeline stages") {
  const Files files({.network = 0.02});
  const std::string options =
      "--set mesh.stage=2 --set mesh.expert=2 --set train.gradient_accumulation_steps=4 "
      "--set train.pipeline_schedule=1f1b --set overlap.policy=sequential --load ";
  const json even = files.plan(options + "even"), uneven = files.plan(options + "zipf:2");
  const double even_ms = even["pipeline"]["step_ms"];
  CHECK(even["balanced_ms"].is_null());
  CHECK(uneven["pipeline"]["step_ms"] > 1.01 * even_ms);
  CHECK(uneven["balanced_ms"].get<double>() == Approx(even_ms).epsilon(2e-3));
}

TEST_CASE("plan: a load that changes nothing is said in one line, and checked") {
  const Files files;
  const std::string plan = "plan " + files.config + " --ranks 4 --on " + (files.folder / "machine.json") + " --alone ",
                    dense = plan + "--set model.moe_layer_freq=0 ";
  const auto lines = [](const std::string& arguments) {
    const auto outcome = test::lancet(arguments);
    INFO(outcome.output);
    REQUIRE(outcome.code == 0);
    return outcome.lines_with("changes nothing");
  };
  CHECK(lines(dense) == 0);
  CHECK(lines(dense + "--load zipf:1") == 1);
  CHECK(lines(dense + "--imbalance 2") == 1);
  CHECK(lines(dense + "--padded") == 1);
  CHECK(lines(plan + "--load zipf:1") == 0);
  CHECK(lines(plan + "--load zipf:1 --set model.router=expert_choice") == 1);
  CHECK(test::lancet(dense + "--load none").code == 2);
  const std::string counts = files.folder.write("metrics.jsonl", "{\"layer_expert_tokens\": [[4, 4]]}\n");
  CHECK(test::lancet(dense + "--load " + counts).code == 2);
}

TEST_CASE("plan --json of a step that does not fit the device says so and does not refuse it") {
  const Files files({.memory_gib = 1e-5});
  const json plan = files.plan("--alone --set overlap.policy=sequential");
  CHECK(plan["fits"] == false);
  CHECK(plan["memory_bytes"] > plan["available_bytes"]);
}

TEST_CASE("plan --json --plan predicts the plan of a file as it is") {
  const Files files;
  const std::string path = files.folder / "plan.ir";
  const json made = files.plan("--alone --set overlap.policy=lancet --out " + path);
  const json given = files.plan("--set overlap.policy=sequential --plan " + path);
  CHECK(given["chosen"] == "lancet");
  CHECK(given["policies"][0]["step_ms"].get<double>() == Approx(row_of(made, "lancet")["step_ms"].get<double>()));
  CHECK(given["policies"][0]["parts"] == row_of(made, "lancet")["parts"]);
  CHECK(given["forward_ms"] == made["forward_ms"]);
}

TEST_CASE("plan --json of several stages holds each of them") {
  const Files files;
  const json plan = files.plan("--set mesh.stage=2 --set mesh.expert=2 --set train.gradient_accumulation_steps=4");
  REQUIRE(plan["pipeline"]["stages"].size() == 2);
  for (const json& stage : plan["pipeline"]["stages"])
    CHECK(stage["compute_ms"].get<double>() + stage["bubble_ms"].get<double>() ==
          Approx(plan["pipeline"]["step_ms"].get<double>()));
}

TEST_CASE("plan --json of a step within a memory limit holds what it keeps and what that costs") {
  const Files files;
  const std::string limit =
      "--alone --set overlap.policy=sequential --set train.micro_batch_size=512 --set train.memory_limit_mb=";
  const json free = files.plan(limit + "10000");
  const json tight = files.plan(limit + std::to_string(free["memory"]["bytes"].get<std::int64_t>() / 1'000'000 - 2));
  CHECK(free["memory"]["activations_kept_bytes"] == free["memory"]["activations_bytes"]);
  CHECK(free["recomputed_ms"] == 0);
  CHECK(tight["memory"]["bytes"] <= tight["memory"]["limit_bytes"]);
  CHECK(tight["memory"]["all_kept_bytes"] == free["memory"]["bytes"]);
  CHECK(tight["memory"]["activations_kept_bytes"] < free["memory"]["activations_kept_bytes"].get<std::int64_t>());
  CHECK(tight["recomputed_ms"] > 0);
  CHECK(tight["recomputed_beside_ms"] <= tight["recomputed_ms"]);
}

TEST_CASE("the build of plan --json covers the sources that decide its numbers") {
  const auto list = std::filesystem::path(LANCET_BINARY).parent_path() / "generated/simulator_build.txt";
  const std::string files = *read_file(list, "the list of sources");
  for (const char* file :
       {"/include/lancet/config/config.h\n", "/src/cli/plan_json.cpp\n", "/src/run/planned_step.cpp\n",
        "/src/cost/hardware.cpp\n", "/src/cost/profile.cpp\n", "/src/planner/make_plan.cpp\n"}) {
    INFO(file);
    CHECK(files.find(file) != files.npos);
  }
  CHECK(files.find("/src/cli/cli.cpp") == files.npos);
}

}  // namespace lancet
