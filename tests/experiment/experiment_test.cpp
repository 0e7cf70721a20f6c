// Experiment files, sweeps that are interrupted, and what simulation must come to where it can be told by hand.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "declared_hardware.h"
#include "declared_profile.h"
#include "lancet/base/atomic_file.h"
#include "lancet/experiment/run.h"
#include "lancet/train/plan.h"
#include "program.h"

namespace lancet {
namespace {

using namespace experiment;
using test::TemporaryFolder;

const Identity here{"simulator", "machine"};

// A model of two blocks, one of them MoE, on a machine of round numbers, with every policy.
struct Files {
  TemporaryFolder folder;
  std::string config = folder.write("small.json", test::small_config);
  std::string machine = folder.write("machine.json", test::declared_hardware());
  std::string settings = folder.write("settings.json", R"({"models": {"small": {"config": ")" + config + R"("}},
    "policies": {"sequential": {"set": ["overlap.policy=sequential"]}, "Tutel": {"set": ["overlap.policy=expert_pipeline"]},
                 "FasterMoE": {"set": ["overlap.policy=peer_groups"]}, "dW": {"set": ["overlap.policy=dw"]},
                 "partition": {"set": ["overlap.policy=partition"]}, "Lancet": {"set": ["overlap.policy=lancet"]}}})");

  std::string grid(const std::string& changes = "") const {
    return R"("on": ")" + machine + R"(", "models": ["small"], "gates": ["switch"], "ranks": [2, 4],
      "policies": ["sequential", "Tutel", "FasterMoE", "dW", "partition", "Lancet"])" +
           changes;
  }
  std::string experiment(const std::string& grid) const {
    return folder.write("test.json", R"({"title": "a test", "grids": [{)" + grid + "}]}");
  }
  // 24 points: both gates, 2 and 4 ranks, six policies.
  Experiment read_with_both_gates() const {
    std::string both = grid();
    both.replace(both.find("[\"switch\"]"), std::string("[\"switch\"]").size(), "[\"switch\", \"batch_prioritized\"]");
    auto result = read_experiment(experiment(both), "", here);
    REQUIRE(result.ok());
    return *result;
  }
  Experiment read() const {
    auto result = read_experiment(experiment(grid()), "", here);
    INFO((result.ok() ? "" : result.error().message));
    REQUIRE(result.ok());
    return *result;
  }
  std::string refused(const std::string& text) const {
    const auto result = read_experiment(folder.write("bad.json", text), "", here);
    REQUIRE_FALSE(result.ok());
    CHECK(result.error().code == ExitCode::config);
    return result.error().message;
  }
};

const SweepOptions options{"0123456789"};
void silent(const std::string&) {}

Outcome made_up(const Point& point) {
  Outcome outcome;
  outcome.runs = point.policy;
  outcome.times.step = double(point.ranks);
  return outcome;
}

std::vector<std::string> lines_of(const std::string& path) {
  std::vector<std::string> lines;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::string replaced(std::string text, const std::string& what, const std::string& with) {
  const auto at = text.find(what);
  REQUIRE(at != std::string::npos);
  return text.replace(at, what.size(), with);
}

std::vector<Outcome> simulated(const Experiment& experiment) {
  std::vector<Outcome> outcomes;
  for (const Point& point : experiment.points) {
    auto outcome = simulate(experiment, point);
    INFO((outcome.ok() ? "" : outcome.error().message));
    REQUIRE(outcome.ok());
    outcomes.push_back(*outcome);
  }
  return outcomes;
}

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
  CHECK(experiment.points[11].config.overlap.policy == config::Policy::lancet);
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

TEST_CASE("a point's id is of what it asks for, where it is simulated of the simulator, else of the machine") {
  const Files files;
  const std::string path = files.experiment(files.grid());
  auto id_on = [&](const std::string& on, const Identity& of) { return read_experiment(path, on, of)->points[0].id; };
  const std::string simulated = id_on("", here), measured = id_on("this", here);
  CHECK(id_on("", {"another", "machine"}) != simulated);
  CHECK(id_on("", {"simulator", "another"}) == simulated);
  CHECK(id_on("this", {"another", "machine"}) == measured);
  CHECK(id_on("this", {"simulator", "another"}) != measured);
  // What is said in other words is the same; what the hardware file says is not.
  files.folder.write("small.json", replaced(test::small_config, "\"clip_grad\": 1.0", "\"clip_grad\": 1.00"));
  CHECK(id_on("", here) == simulated);
  files.folder.write("small.json", replaced(test::small_config, "\"lr\": 1e-3", "\"lr\": 2e-3"));
  CHECK(id_on("", here) != simulated);
  files.folder.write("small.json", test::small_config);
  files.folder.write("machine.json", test::declared_hardware({.wire = 2}));
  CHECK(id_on("", here) != simulated);
  CHECK(id_on("this", here) == measured);
}

TEST_CASE("how a run would save, evaluate or generate is no part of a measured point, which does neither") {
  const Files files;
  const std::string path = files.experiment(files.grid());
  auto id_of = [&](const std::string& on) { return read_experiment(path, on, here)->points[0].id; };
  const std::string measured = id_of("this"), simulated = id_of("");
  const std::string saved = "\"save_minutes\": 0";
  for (const std::string& field :
       {std::string("\"save_minutes\": 7"), saved + ", \"save_interval\": 7", saved + ", \"keep_last\": 7",
        saved + ", \"save_buffer_mb\": 2048", saved + ", \"keep_every\": 7"}) {
    INFO(field);
    files.folder.write("small.json", replaced(test::small_config, saved, field));
    CHECK(id_of("this") == measured);
    CHECK(id_of("") != simulated);
  }
  files.folder.write("small.json", replaced(test::small_config, "\"lr\": 1e-3", "\"lr\": 2e-3"));
  CHECK(id_of("this") != measured);
}

TEST_CASE("the simulator's hash is of what ids leave out, too") {
  const auto list = std::filesystem::path(LANCET_BINARY).parent_path() / "generated/simulator_build.txt";
  const auto files = lines_of(list.string());
  auto has = [&](const std::string& end) {
    return std::any_of(files.begin(), files.end(), [&](const std::string& file) { return file.ends_with(end); });
  };
  for (const char* file : {"/include/lancet/config/config.h", "/src/experiment/simulate.cpp", "/src/train/plan.cpp",
                           "/src/cost/hardware.cpp", "/src/cost/profile.cpp", "/src/planner/planner.cpp"}) {
    INFO(file);
    CHECK(has(file));
  }
  CHECK_FALSE(has("/src/cli/cli.cpp"));
}

TEST_CASE("a profile goes before the hardware file, and is part of the point") {
  const Files files;
  const Experiment plain = files.read();
  const std::string path = files.experiment(files.grid());
  const cost::Profile profile = test::declared_profile(plain.points[0].config, test::declared_place(2, 1));
  const std::string costs = files.folder / "costs.json";
  REQUIRE(cost::write_profile(costs, profile).ok());
  const auto read = [&](const std::string& on) { return read_experiment(path, on, here, costs); };
  const auto experiment = read("");
  INFO((experiment.ok() ? "" : experiment.error().message));
  REQUIRE(experiment.ok());
  const Point &same = experiment->points[0], &more = experiment->points[6];
  REQUIRE(more.ranks == 4);
  CHECK(same.id != plain.points[0].id);
  // Of its layout: nothing of the hardware file is left in the step.
  const auto outcome = simulate(*experiment, same);
  REQUIRE(outcome.ok());
  const auto plan = train::plan_with(same.config, 2, profile);
  REQUIRE(plan.ok());
  CHECK(outcome->times.step == Approx(plan->header.real("predicted_ms", 0)).epsilon(1e-6));
  CHECK(outcome->times.step != Approx(simulate(plain, plain.points[0])->times.step).epsilon(1e-3));
  const auto record = nlohmann::json::parse(to_line(*experiment, same, *outcome, "1"));
  const auto said = record["profile"].get<std::string>();
  INFO(said);
  CHECK(said.find("ops and communication of Declared CPU") == 0);
  CHECK(said.find(profile.identity()) != std::string::npos);
  // Of another: its ops, with the communication of the hardware file.
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
  REQUIRE(cost::write_profile(
              costs, test::declared_profile(plain.points[0].config,
                                            {{"Another CPU", "none", 1, 2, "0123456789abcdef"}, {"mpi", 2, 1}}))
              .ok());
  refused(read_experiment(files.experiment(files.grid()), "", here, costs), "expected ops of one device");
}

TEST_CASE("the simulator's sources have a hash") {
  CHECK(simulator_build().size() == 16);
  CHECK(Identity::here().simulator == simulator_build());
  CHECK_FALSE(Identity::here().machine.empty());
}

TEST_CASE("an experiment says what is wrong with it, and where") {
  const Files files;
  auto with_grid = [&](const std::string& grid) { return R"({"title": "t", "grids": [{)" + grid + "}]}"; };
  const std::string grid = files.grid();
  CHECK(files.refused(with_grid(replaced(grid, "\"Lancet\"", "\"Lancelot\"")))
            .find("grids[0].policies: expected some of FasterMoE, Lancet, Tutel, dW, partition, sequential, found "
                  "'Lancelot'") != std::string::npos);
  CHECK(files.refused(with_grid(replaced(grid, "\"small\"", "\"huge\"")))
            .find("grids[0].models: expected some of small, found 'huge'") != std::string::npos);
  CHECK(files.refused(with_grid(replaced(grid, files.machine, "pdp-11"))).find("found 'pdp-11'") != std::string::npos);
  CHECK(files.refused(with_grid(replaced(grid, "[2, 4]", "[2, 3]"))).find("grids[0] (3 ranks)") != std::string::npos);
  CHECK(files.refused(with_grid(replaced(grid, "[2, 4]", "[0]"))).find("expected integers from 1 to 65536, found 0") !=
        std::string::npos);
  CHECK(files.refused(with_grid(replaced(grid, "[\"switch\"]", "[\"router\"]"))).find("model.router") !=
        std::string::npos);
  CHECK(files.refused(with_grid(files.grid(R"(, "colour": 1)"))).find("'colour'") != std::string::npos);
  CHECK(files.refused(R"({"title": "t", "grids": []})").find("grids: expected a list of grids") != std::string::npos);
  // Before the settings are asked for.
  CHECK(files.refused(R"({"model": {}, "settings": "no-such-file.json"})")
            .find("the experiment: expected the fields title, settings, ") != std::string::npos);
  CHECK(files.refused("{").find(":1:2: expected JSON: ") != std::string::npos);
  CHECK(files.refused("{\"what\": 1e999}").find("number overflow") != std::string::npos);
  CHECK(files.refused("[]").find("expected an object") != std::string::npos);
  const std::string deep(100'000, '[');
  CHECK(files.refused(deep + std::string(deep.size(), ']')).find("of at most 100 nested brackets") !=
        std::string::npos);
}

TEST_CASE("an interrupted sweep goes on from where it was") {
  const Files files;
  const Experiment experiment = files.read();
  const std::string path = files.folder / "out" + "/points.jsonl";
  int calls = 0;
  auto until_five = [&](const Experiment&, const Point& point) -> Result<Outcome> {
    if (++calls == 6) return internal_error("interrupted");
    return made_up(point);
  };
  REQUIRE_FALSE(sweep(experiment, path, until_five, options, silent).ok());
  REQUIRE(lines_of(path).size() == 5);
  {  // and in the middle of a line
    std::ofstream(path, std::ios::app) << lines_of(path)[0].substr(0, 40);
  }
  calls = 0;
  std::vector<std::string> said;
  const auto report = sweep(
      experiment, path,
      [&](const Experiment&, const Point& point) -> Result<Outcome> { return ++calls, made_up(point); }, options,
      [&](const std::string& line) { said.push_back(line); });
  REQUIRE(report.ok());
  CHECK(calls == 7);
  CHECK(report->done == 7);
  CHECK(report->skipped == 5);
  REQUIRE(said.size() == 7);
  CHECK(said[0].starts_with("test 1/7: "));
  CHECK(said[0].ends_with(" left"));
  CHECK(said[6].ends_with("4 ranks, Lancet: 4.0 ms"));
  const auto lines = lines_of(path);
  REQUIRE(lines.size() == 12);
  for (std::size_t i = 0; i < 12; ++i) {
    const auto record = nlohmann::json::parse(lines[i]);
    CHECK(record["id"] == experiment.points[i].id);
    CHECK(record["network"] == "simulated");
    CHECK(record["commit"] == "0123456789");
    CHECK(record["routing"] == "even: every expert gets the same tokens, none is dropped");
    CHECK(record["step_ms"] == double(experiment.points[i].ranks));
  }
  calls = 0;
  REQUIRE(sweep(experiment, path, until_five, options, silent).ok());
  CHECK(calls == 0);
}

TEST_CASE("points that failed are counted, and run again") {
  const Files files;
  const Experiment experiment = files.read();
  const std::string path = files.folder / "points.jsonl";
  auto some_fail = [](const Experiment&, const Point& point) -> Result<Outcome> {
    Outcome outcome = made_up(point);
    if (point.policy == "dW") outcome.status = "failed", outcome.why = "a rank left", outcome.exit_code = 5;
    if (point.policy == "Tutel") outcome.status = "out of memory";
    return outcome;
  };
  const auto first = sweep(experiment, path, some_fail, options, silent);
  REQUIRE(first.ok());
  CHECK(first->failed == 2);
  CHECK(first->done == 10);
  CHECK(first->out_of_memory == 2);
  CHECK(first->first_exit_code == 5);
  CHECK(first->first_failure.ends_with("2 ranks, dW: a rank left"));
  REQUIRE(lines_of(path).size() == 12);
  std::vector<std::string> again;
  const auto second = sweep(
      experiment, path,
      [&](const Experiment&, const Point& point) -> Result<Outcome> {
        return again.push_back(point.describe()), made_up(point);
      },
      options, silent);
  REQUIRE(second.ok());
  CHECK(second->failed == 0);
  CHECK(second->skipped == 10);
  REQUIRE(again.size() == 2);
  CHECK(again[0].ends_with("2 ranks, dW"));
  CHECK(again[1].ends_with("4 ranks, dW"));
  const auto lines = lines_of(path);
  REQUIRE(lines.size() == 12);
  for (const std::string& line : lines) CHECK(nlohmann::json::parse(line)["status"] != "failed");
}

TEST_CASE("a fresh sweep sets all records aside and runs every point") {
  const Files files;
  const Experiment experiment = files.read();
  const std::string path = files.folder / "points.jsonl";
  int calls = 0;
  auto run = [&](const Experiment&, const Point& point) -> Result<Outcome> { return ++calls, made_up(point); };
  REQUIRE(sweep(experiment, path, run, options, silent).ok());
  REQUIRE(sweep(experiment, path, run, {.commit = "1", .fresh = true, .stop = nullptr}, silent).ok());
  CHECK(calls == 24);
  CHECK(lines_of(path).size() == 12);
  CHECK(lines_of(path + ".1").size() == 12);
}

TEST_CASE("a sweep that a signal stops keeps what is there") {
  const Files files;
  const Experiment experiment = files.read();
  const std::string path = files.folder / "points.jsonl";
  std::atomic<int> stop{0};
  auto run = [&](const Experiment&, const Point& point) -> Result<Outcome> {
    if (point.policy == "dW") stop = 15;
    return made_up(point);
  };
  const auto report = sweep(experiment, path, run, {.commit = "1", .fresh = false, .stop = &stop}, silent);
  REQUIRE_FALSE(report.ok());
  CHECK(report.error().code == ExitCode::saved);
  CHECK(report.error().message.find("stopped: 4 of 12 points are in ") == 0);
  CHECK(lines_of(path).size() == 4);
}

TEST_CASE("records of another simulator are set aside, other lines are refused") {
  const Files files;
  const Experiment experiment = files.read();
  const std::string path = files.folder / "points.jsonl";
  auto run = [](const Experiment&, const Point& point) -> Result<Outcome> { return made_up(point); };
  REQUIRE(sweep(experiment, path, run, options, silent).ok());
  const auto newer = read_experiment(files.experiment(files.grid()), "", {"another simulator", "machine"});
  REQUIRE(sweep(*newer, path, run, options, silent).ok());
  CHECK(lines_of(path).size() == 12);
  CHECK(lines_of(path + ".1").size() == 12);
  std::ofstream(path, std::ios::app) << "not a record\n";
  const auto report = sweep(*newer, path, run, options, silent);
  REQUIRE_FALSE(report.ok());
  CHECK(report.error().code == ExitCode::data);
  CHECK(report.error().message.find("points.jsonl:13: expected a record of a sweep") != std::string::npos);
}

TEST_CASE("two simulations of a point write the same line, for every policy and gate") {
  const Files files;
  const Experiment experiment = files.read_with_both_gates();
  const auto first = simulated(experiment), second = simulated(experiment);
  REQUIRE(first.size() == 24);
  for (std::size_t i = 0; i < first.size(); ++i)
    CHECK(to_line(experiment, experiment.points[i], first[i], options.commit) ==
          to_line(experiment, experiment.points[i], second[i], options.commit));
}

// The time of a point's computation, instruction by instruction, in a plan without any overlap.
double computation_of(const Point& point) {
  const cost::HardwareCosts costs(*cost::read_hardware(point.on), {point.ranks, point.hosts});
  config::Config config = point.config;
  config.overlap.policy = config::Policy::sequential;
  const auto plan = train::plan_with(config, point.ranks, costs);
  REQUIRE(plan.ok());
  double ms = 0;
  for (const ir::Instruction& at : plan->program.instructions)
    if (at.lane == ir::Lane::compute && cost::is_local(plan->program, at)) ms += costs.op_ms(plan->program, at).value();
  return ms;
}

TEST_CASE("where communication costs nothing every policy takes the compute time, whole, with every gate") {
  const Files files;
  files.folder.write("machine.json", test::declared_hardware({.wire = 1e9, .latency_us = 0, .core_share = 0}));
  const Experiment experiment = files.read_with_both_gates();
  const auto outcomes = simulated(experiment);
  REQUIRE(outcomes.size() == 24);
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    INFO(experiment.points[i].describe());
    const double compute = computation_of(experiment.points[i]);
    CHECK(compute > 1);
    CHECK(outcomes[i].times.step == Approx(compute).epsilon(1e-6));
    CHECK(outcomes[i].times.compute == Approx(compute).epsilon(1e-6));
    CHECK(outcomes[i].times.exposed < 1e-6 * compute);
    CHECK(outcomes[i].parts == 1);
  }
}

TEST_CASE("with infinite links lancet chooses no parts, whatever messages cost to start") {
  const Files files;
  for (const double latency_us : {0.0, 5.0, 50.0}) {
    files.folder.write("machine.json", test::declared_hardware({.wire = 1e9, .latency_us = latency_us}));
    const Experiment experiment = files.read_with_both_gates();
    int seen = 0;
    for (const Point& point : experiment.points) {
      if (point.policy != "Lancet") continue;
      const auto outcome = simulate(experiment, point);
      REQUIRE(outcome.ok());
      INFO(point.describe() << ", " << latency_us << " us");
      CHECK(outcome->parts == 1);
      ++seen;
    }
    CHECK(seen == 4);
  }
}

TEST_CASE("routing is even or of an imbalance, and padding belongs to a policy; both only where points are simulated") {
  const Files files;
  const auto with = [&](const std::string& routing) { return files.grid(", \"routing\": " + routing); };
  const auto uneven = read_experiment(files.experiment(with("{\"imbalance\": 2}")), "", here);
  REQUIRE(uneven.ok());
  CHECK(uneven->points[0].spread.imbalance == 2);
  CHECK(uneven->points[0].spread.capacity == 4);
  CHECK_FALSE(uneven->points[0].spread.padded);
  CHECK(uneven->points[0].describe().ends_with("sequential, imbalance 2"));
  CHECK(uneven->points[0].id != files.read().points[0].id);
  const auto record = nlohmann::json::parse(to_line(*uneven, uneven->points[0], {}, "1"));
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

TEST_CASE("padding costs what the capacity leaves empty") {
  const Files files;
  files.folder.write("settings.json", R"({"models": {"small": {"config": ")" + files.config + R"("}},
    "policies": {"sequential": {"set": ["overlap.policy=sequential"]},
                 "padded": {"set": ["overlap.policy=sequential"], "padded": true}}})");
  const auto step = [&](const std::string& factor, const std::string& routing) {
    const std::string grid = R"("on": ")" + files.machine +
                             R"(", "models": ["small"], "gates": ["switch"], "ranks": [4],
      "policies": ["sequential", "padded"], "set": ["model.capacity_factor=)" +
                             factor + R"("], "routing": )" + routing;
    const auto experiment = read_experiment(files.experiment(grid), "", here);
    INFO((experiment.ok() ? "" : experiment.error().message));
    REQUIRE(experiment.ok());
    return simulated(*experiment);
  };
  const auto exact = step("1", "\"even\""), roomy = step("4", "\"even\""), uneven = step("4", "{\"imbalance\": 2}");
  CHECK(exact[1].times.step == exact[0].times.step);
  // Four times the bytes, of which latency is no part, and four times the experts.
  CHECK(roomy[0].times.all_to_all == Approx(exact[0].times.all_to_all));
  CHECK(roomy[1].times.all_to_all > 2 * roomy[0].times.all_to_all);
  CHECK(*roomy[1].experts_ms > 2 * *roomy[0].experts_ms);
  // What is padded is the same however tokens spread; what is not waits for the fullest rank.
  CHECK(uneven[1].times.step == roomy[1].times.step);
  CHECK(uneven[0].times.step > roomy[0].times.step);
  CHECK(*uneven[0].experts_ms > 1.5 * *roomy[0].experts_ms);
  CHECK(uneven[0].times.step < uneven[1].times.step);
}

TEST_CASE("on a slow wire policies overlap, and none is longer than sequential") {
  const Files files;
  const Experiment experiment = files.read();
  const auto outcomes = simulated(experiment);
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    const Outcome &sequential = outcomes[i / 6 * 6], &outcome = outcomes[i];
    INFO(experiment.points[i].describe());
    CHECK(outcome.status == "ok");
    CHECK(outcome.times.step <= sequential.times.step);
    CHECK(outcome.times.exposed <= outcome.times.communication);
    CHECK(outcome.times.step >= outcome.times.compute);
    CHECK(outcome.forward_ms.value() > 0);
    CHECK(outcome.forward_ms.value() < outcome.times.step);
    CHECK(outcome.experts_ms.value() > 0);
    CHECK(outcome.memory_gib > 0);
  }
  const Outcome &lancet = outcomes[5], &sequential = outcomes[0];
  CHECK(lancet.times.step < 0.95 * sequential.times.step);
  CHECK(lancet.runs == "lancet");
}

TEST_CASE("a model that does not fit the device is marked, not refused") {
  const Files files;
  files.folder.write("machine.json", test::declared_hardware({.memory_gib = 1e-5}));
  const Experiment experiment = files.read();
  const auto outcome = simulate(experiment, experiment.points[0]);
  REQUIRE(outcome.ok());
  CHECK(outcome->status == "out of memory");
  CHECK(outcome->memory_gib > 1e-5);
  const auto record = nlohmann::json::parse(to_line(experiment, experiment.points[0], *outcome, options.commit));
  CHECK(record["status"] == "out of memory");
  CHECK_FALSE(record.contains("step_ms"));
}

TEST_CASE("bench sweep runs an experiment and refuses a bad one with a line") {
  const Files files;
  const std::string experiment = files.experiment(files.grid()), out = files.folder / "out";
  const auto outcome = test::lancet("bench sweep " + experiment + " --out " + out);
  INFO(outcome.output);
  REQUIRE(outcome.code == 0);
  CHECK(lines_of(out + "/points.jsonl").size() == 12);
  CHECK(outcome.lines_with("test 12/12: ") == 1);
  const auto listed = test::lancet("bench sweep " + experiment + " --list");
  CHECK(listed.code == 0);
  CHECK(listed.lines_with(nlohmann::json::parse(lines_of(out + "/points.jsonl")[11])["id"].get<std::string>()) == 1);
  const auto again = test::lancet("bench sweep " + experiment + " --out " + out);
  CHECK(again.code == 0);
  CHECK(again.lines_with("12 points, 12 were there, 0 failed") == 1);
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

TEST_CASE("each place has a default folder of its own") {
  const Files files;
  const std::string sweep =
      "cd " + (files.folder / "") + " && " LANCET_BINARY " bench sweep " + files.experiment(files.grid());
  CHECK(test::shell(sweep).lines_with(": runs/sweeps/test/points.jsonl") == 1);
  const std::string costs = files.folder / "costs.json";
  REQUIRE(cost::write_profile(costs, test::declared_profile(files.read().points[0].config, test::declared_place(2, 1)))
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
