// Plan files: round trips, and refusal of plans that do not fit or that an edit broke.
#include "lancet/planner/from_config.h"
#include "lancet/run/planned_step.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <map>
#include <nlohmann/json.hpp>

#include "declared_profile.h"
#include "good.h"
#include "lancet/base/files.h"
#include "lancet/ir/dependencies.h"
#include "lancet/ops/catalogue.h"
#include "temporary_folder.h"
#include "text.h"
#include "train/support.h"

namespace lancet {
namespace {

config::Config config_with(const char* policy) {
  config::Config config = test::small_config();
  config.overlap.policy = policy;
  return config;
}

// A plan for two ranks, as text, in a folder that is removed with it.
struct PlanFile {
  explicit PlanFile(const config::Config& config, int ranks = 2) {
    const std::string profile = test::write_declared_profile(folder / "costs.json", config, ranks, ranks);
    auto made = test::good(run::plan_offline(config, {.ranks = ranks, .hosts = ranks, .profile = profile}));
    planned = *std::move(made);
    text = ir::print(planned.plan);
  }
  std::string error_of(const std::string& edited, const config::Config& config, int ranks = 2) const {
    const Error read = test::refused(planner::read_plan(folder.write("edited.ir", edited), {config, ranks}));
    CHECK(read.code == ExitCode::config);
    CHECK(read.message.starts_with("plan " + (folder / "edited.ir") + ": "));
    CHECK(read.message.find('\n') == std::string::npos);
    return read.message;
  }
  test::TemporaryFolder folder;
  run::PlannedStep planned;
  std::string text;
};

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("a plan file survives a round trip") {
  const auto policy = GENERATE("sequential", "dw", "partition", "lancet");
  const config::Config config = config_with(policy);
  const PlanFile file(config);
  const auto read = test::good(planner::read_plan(file.folder.write("plan.ir", file.text), {config, 2}));
  CHECK(ir::print(*read) == file.text);
  CHECK(read->header.text("policy") == policy);
  auto other_way = config;  // the config's policy does not restrict a plan file
  other_way.overlap.policy = "auto";
  other_way.overlap.bucket_bytes = 1000;
  other_way.train.lr = 3;
  const auto again = test::good(planner::read_plan(file.folder / "plan.ir", {other_way, 2}));
}

TEST_CASE("the report covers every policy") {
  const PlanFile file(config_with("auto"));
  const planner::PlanReport& report = file.planned.report;
  REQUIRE(report.policies.size() == planner::compared_policies().size());
  CHECK(report.requested == "lancet");  // which has that name, too
  for (const planner::PolicyResult& result : report.policies) {
    INFO(result.policy);
    if (result.policy == "partition") CHECK(result.parts > 1);  // on a slow network
    CHECK(result.timeline.makespan >= report.lower_bound.ms() * (1 - 1e-9));
    CHECK(result.arena_bytes > 0);
    if (result.policy != report.chosen) continue;
    CHECK(result.arena_bytes == file.planned.plan.arena_bytes);
    CHECK(result.timeline.makespan == file.planned.plan.header.real("predicted_ms"));
    CHECK(result.timeline.exposed == file.planned.plan.header.real("exposed_ms"));
  }
  CHECK(report.policies[0].parts == 1);
}

TEST_CASE("a plan for another configuration is refused with the difference") {
  const config::Config config = config_with("dw");
  const PlanFile file(config);
  auto other = config;
  SECTION("model") {
    other.model.n_embd = 64;
    const std::string error = file.error_of(file.text, other);
    CHECK(has(error, "header: model: expected a plan of the model with the hash "));
    CHECK(has(error, ": expected parameter @wte.weight : f32["));
    CHECK(has(error, ",64], found parameter @wte.weight : f32["));
    other = config;
    other.model.n_layer += 1;
    const std::string block = fmt::format("h.{}", config.model.n_layer);
    CHECK(has(file.error_of(file.text, other), ": expected parameter @" + block + ".ln_1.weight : f32["));
    other = config;
    other.model.n_head *= 2;
    CHECK(has(file.error_of(file.text, other), ": expected the model's \"attention at h.0.attn"));
    other = config;
    other.train.micro_batch_size = 4;
    CHECK(
        has(file.error_of(file.text, other), ": expected input @tokens : i32[4,16], found input @tokens : i32[8,16]"));
  }
  SECTION("optimizer") {
    other.train.weight_decay = 0.5;
    CHECK(has(file.error_of(file.text, other), "weight_decay=0.5 clip_grad=1, found adamw beta1=0.9"));
  }
  SECTION("ranks") { CHECK(has(file.error_of(file.text, config, 4), "header: ")); }
  SECTION("only the number of ranks") {
    const std::string edited = test::match_replaced(file.text, "ranks=2, build", "ranks=4, build");
    CHECK(has(file.error_of(edited, config), "header: ranks: expected a plan whose number of ranks is 2, found 4"));
  }
  SECTION("build") {
    const std::string edited = test::match_replaced(file.text, "build=\"?[0-9a-f]+\"?", "build=feedfeedfeedfeed");
    CHECK(has(file.error_of(edited, config), "header: build: expected a plan made by the build " +
                                                 std::string(cost::kernel_build()) + ", found feedfeedfeedfeed"));
  }
  SECTION("no header") {
    CHECK(has(file.error_of(test::match_replaced(file.text, "plan \\{[^\n]*", "plan {policy=dw}"), config),
              "found none"));
  }
  SECTION("accumulation") {
    other.train.gradient_accumulation_steps = 2;  // the loss is the mean over both micro batches
    CHECK(has(file.error_of(file.text, other), "header: model: "));
  }
  SECTION("no plan") {
    CHECK(has(file.error_of("what is this\n", config), "line 1"));
    CHECK(has(file.error_of("", config), "expected a plan, found an empty file"));
    CHECK(has(file.error_of("plan \xff\x01", config), "expected a plan's text, found byte 0xff at byte 5"));
    const Error none = test::refused(planner::read_plan(file.folder / "none.ir", {config, 2}));
    CHECK(none.code == ExitCode::config);
    CHECK(has(none.message, "none.ir: expected a plan"));
  }
}

TEST_CASE("a plan for another mesh of the same ranks is refused with both meshes") {
  config::Config config = config_with("sequential"), other = config;
  config.mesh.data = 2;
  const PlanFile of_data(config), of_experts(other);
  CHECK(of_data.planned.plan.header.text("mesh") == "data 2");
  CHECK_FALSE(of_experts.planned.plan.header.has("mesh"));
  CHECK(of_data.error_of(of_data.text, other)
            .ends_with("header: mesh: expected a plan of the mesh expert 2, found data 2"));
  CHECK(of_experts.error_of(of_experts.text, config)
            .ends_with("header: mesh: expected a plan of the mesh data 2, found expert 2"));
  other.mesh.tensor = 2;
  CHECK(of_data.error_of(of_data.text, other)
            .ends_with("header: mesh: expected a plan of the mesh tensor 2, found data 2"));
}

TEST_CASE("parts that are numbered otherwise are refused with their instruction") {
  const config::Config config = config_with(GENERATE("partition", "tutel"));
  const PlanFile file(config);
  const std::string twice = test::match_replaced(file.text, "part=1, parts=", "part=0, parts=");
  CHECK(has(file.error_of(twice, config), "as often as the others"));
  const std::string more = test::match_replaced(file.text, "part=0, parts=[0-9]+", "part=0, parts=16");
  CHECK(has(file.error_of(more, config), "expected one of "));
}

TEST_CASE("an edit that breaks a plan is refused with the instruction") {
  const config::Config config = config_with("dw");
  const PlanFile file(config);
  SECTION("a wait is removed") {
    // The first all-to-all of a layer's tokens waits for their dispatch.
    const std::string edited =
        test::match_replaced(file.text, "(\\n\\[[0-9]+\\] [^\n]*= all_to_all\\([^\n]*) \\| wait [0-9 ]+", "$1 ");
    const std::string error = file.error_of(edited, config);
    CHECK(test::matches(error, "nothing makes instruction \\[[0-9]+\\] wait for \\[[0-9]+\\]"));
    CHECK(has(error, "all_to_all"));
  }
  SECTION("a wait points forward") {
    const std::string edited = test::match_replaced(file.text, "\\n\\[3\\] ([^\n]*) \\| at", "\n[3] $1 | wait 9 | at");
    CHECK(has(file.error_of(edited, config), "expected the number of an earlier instruction"));
  }
  SECTION("two tensors at the same offset") {
    const std::string edited = test::match_replaced(file.text, "\\n\\[2\\] ([^\n]*) \\| at [0-9]+", "\n[2] $1 | at 0");
    CHECK(test::matches(file.error_of(edited, config),
                        "share bytes of the arena, and nothing orders \\[[0-9]+\\] against"));
  }
  SECTION("an offset that is not aligned") {
    const ir::Program& program = file.planned.plan.program;
    const std::size_t last = program.instructions.size();
    std::string edited = file.text;  // the arena grows, and the value gets an offset of its own
    for (std::size_t i = 0; i < last && edited == file.text; ++i) {
      const ir::Instruction& at = program.instructions[i];
      if (at.results.size() != 1 || file.planned.plan.offsets[at.results[0].index()] < 0) continue;
      edited = test::match_replaced(edited, "\\n(\\[" + std::to_string(i) + "\\] [^\n]*) \\| at [0-9]+",
                                    "\n$1 | at " + std::to_string(file.planned.plan.arena_bytes + 4));
      edited =
          test::match_replaced(edited, "arena [0-9]+", "arena " + std::to_string(2 * file.planned.plan.arena_bytes));
    }
    CHECK(has(file.error_of(edited, config), "expected an offset that is a multiple of 64 bytes, found "));
  }
  SECTION("an arena larger than its tensors") {
    const std::string edited = test::match_replaced(file.text, "arena [0-9]+", "arena 9223372036854775807");
    CHECK(test::matches(file.error_of(edited, config), "arena: expected [0-9]+ bytes, found 9223372036854775807"));
  }
  SECTION("rows that are no integer") {
    const std::string edited = test::match_replaced(file.text, "\\{tokens=([0-9]+)\\}", "{tokens=$1.5}");
    CHECK(has(file.error_of(edited, config), "attribute tokens must be an integer, in: %"));
  }
  SECTION("past the arena's end") {
    CHECK(has(file.error_of(test::match_replaced(file.text, "arena [0-9]+", "arena 64"), config), "of an arena of 64"));
  }
  SECTION("an all-to-all on the compute stream") {
    const std::string edited = test::match_replaced(file.text, "(= all_to_all\\([^\n]*# )expert", "$1compute");
    CHECK(has(file.error_of(edited, config), "expected it on the stream expert, found compute"));
  }
  SECTION("an update that does not write its weights") {
    const std::string edited = test::match_replaced(file.text, "adamw\\(&@wte.weight,", "adamw(@wte.weight,");
    CHECK(has(file.error_of(edited, config), "expected operand 0 to be updated in place"));
  }
  SECTION("an all-reduce of gradients is removed") {
    ir::Plan plan = file.planned.plan;
    const auto reduced = std::ranges::find_if(plan.program.instructions, [](const ir::Instruction& at) {
      return at.op == "all_reduce" && at.operands.size() > 1;
    });
    REQUIRE(reduced != plan.program.instructions.end());
    for (ir::Instruction& at : plan.program.instructions)
      std::ranges::replace(at.operands, reduced->results.back(), reduced->operands.back());
    reduced->operands.pop_back();
    reduced->results.pop_back();
    CHECK(has(file.error_of(ir::print(plan), config), "expected all-reduces of "));
  }
  SECTION("another number in a formula") {
    const std::string edited = test::match_replaced(file.text, "beta1=0.9", "beta1=0.8");
    CHECK(has(file.error_of(edited, config), "beta1=0.9"));
  }
  SECTION("other heads of attention, in all its instructions") {
    ir::Plan plan = file.planned.plan;
    const std::int64_t heads = config.model.n_head;
    for (ir::Instruction& at : plan.program.instructions) {
      if (!at.attributes.has("heads")) continue;
      at.attributes.set("heads", heads / 2);
      for (const auto& ids : {at.operands, at.results})
        for (const ir::TensorId id : ids)
          if (Shape& shape = plan.program[id].type.shape; shape.rank() == 3 && shape[1] == heads)
            shape.set(1, heads / 2);
    }
    CHECK(has(file.error_of(ir::print(plan), config), fmt::format("heads={}", heads)));
  }
  SECTION("an output is removed") {
    CHECK(has(file.error_of(test::match_replaced(file.text, "output grad_norm[^\n]*\n", ""), config),
              "output grad_norm"));
  }
  SECTION("an invalid predicted time") {
    const std::string edited = test::match_replaced(file.text, "\\| ms [0-9.e-]+ [0-9.e-]+", "| ms 5.0 1.0");
    CHECK(has(file.error_of(edited, config), "expected predicted times from 0 on, found ms 5 1"));
  }
}

TEST_CASE("a plan of another model is refused with the instruction") {
  const config::Config config = config_with("lancet");
  const PlanFile file(config);
  auto refused = [&](const std::string& pattern, const std::string& by, const std::string& expected) {
    const std::string error = file.error_of(test::match_replaced(file.text, pattern, by), config);
    INFO(error);
    CHECK(has(error, expected));
  };
  refused("(# compute forward h.1.ln_1)", "$1x", "h.1.ln_1");
  refused("vocabulary=67", "vocabulary=66", "vocabulary=");
  refused("total_tokens=[0-9]+", "total_tokens=7", "total_tokens=");
}

TEST_CASE("a plan with an attribute of another type is refused") {
  const config::Config config = config_with("dw");
  const PlanFile file(config);
  CHECK(has(file.error_of(test::match_replaced(file.text, "capacity=[0-9]+", "capacity=nan"), config), "capacity"));
  CHECK(has(file.error_of(test::match_replaced(file.text, "predicted_ms=[0-9.e+-]+", "predicted_ms=nan"), config),
            "header: predicted_ms: expected a time from 0 on, found nan"));
  CHECK(has(file.error_of(test::match_replaced(file.text, "policy=dw", "policy=foo"), config),
            "header: overlap.policy: expected one of sequential, "));
}

TEST_CASE("ranks with different plan files stop together") {
  const config::Config config = config_with("dw");
  const PlanFile file(config);
  const std::string mine = file.folder.write("mine.ir", file.text);
  const std::string other =
      file.folder.write("other.ir", test::match_replaced(file.text, "\\| ms [0-9.e-]+ ", "| ms 0.0001 "));
  std::vector<Error> errors(2);
  test::good(comm::run_inproc(2, [&](comm::Communicator& world) -> Status {
    const auto trainer =
        train::Trainer::create(config, world, {.local_ranks = 2, .plan_file = world.rank() == 0 ? mine : other});
    if (trainer.ok()) return internal_error("expected an error");
    errors[std::size_t(world.rank())] = trainer.error();
    return {};
  }));
  for (const Error& error : errors) {
    CHECK(error.code == ExitCode::config);
    CHECK(error.agreed);
    CHECK(has(error.message, "expected the same file on all ranks, found another than rank 0's"));
  }
}

TEST_CASE("a run from a plan file trains like sequential; its trace has each instruction once per rank") {
  const config::Config plain = config_with("sequential");
  const auto expected = test::run_steps(plain, 2, 3);
  config::Config config = config_with("lancet");
  config.log.trace = 3;
  const PlanFile file(config);
  const std::string path = file.folder.write("plan.ir", file.text);
  std::vector<run::StepRecord> records;
  std::string trace, banner;
  test::good(comm::run_inproc(2, [&](comm::Communicator& world) -> Status {
    LANCET_ASSIGN(const auto trainer, train::Trainer::create(config, world, {.local_ranks = 2, .plan_file = path}));
    for (int step = 0; step < 3; ++step) {
      LANCET_ASSIGN(const run::StepRecord record, trainer->step(step));
      if (world.rank() == 0) records.push_back(record);
    }
    LANCET_ASSIGN(const std::string text, trainer->trace());
    CHECK(text.empty() == (world.rank() != 0));
    if (world.rank() == 0) trace = text, banner = trainer->banner();
    return {};
  }));
  const ir::Plan& plan = file.planned.plan;
  CHECK(has(banner, fmt::format("policy     lancet: {} instructions; predicted step {:.1f} ms, exposed {:.1f} ms",
                                plan.program.instructions.size(), plan.header.real("predicted_ms"),
                                plan.header.real("exposed_ms"))));
  for (std::size_t i = 0; i < records.size(); ++i) {
    CHECK(records[i].loss == Approx(expected[i].loss).epsilon(1e-6));
    CHECK(records[i].predicted_ms == plan.header.real("predicted_ms"));
    CHECK(records[i].exposed_ms <= records[i].communication_ms);
    CHECK(records[i].communication_ms <= records[i].a2a_ms + records[i].allreduce_ms + 1e-6);
    CHECK(records[i].hidden_pct.value() >= 0);
    CHECK(records[i].hidden_pct.value() <= 100);
  }
  std::map<std::pair<int, std::size_t>, int> seen;
  const auto json = test::json_in(trace);
  for (const auto& event : json["traceEvents"])
    if (event["ph"] == "X") ++seen[{event["pid"].get<int>(), event["args"]["index"].get<std::size_t>()}];
  CHECK(seen.size() == 3 * plan.program.instructions.size());
  for (const auto& [where, times] : seen) CHECK(times == 1);
}

TEST_CASE("a run reports why it is sequential") {
  test::DeclaredCosts costs;
  costs.network_mb_per_s = 1e12;
  costs.latency_ms = 0;
  const config::Config config = config_with("partition");
  test::good(comm::run_inproc(2, [&](comm::Communicator& world) -> Status {
    LANCET_ASSIGN(const auto trainer, train::Trainer::create(config, world, {.local_ranks = 2, .costs = &costs}));
    if (world.rank() != 0) return {};
    const std::string banner = trainer->banner();
    INFO(banner);
    CHECK(has(banner, "policy     sequential: "));
    CHECK(has(banner, "\nwhy        partition runs sequential: predicted "));
    return {};
  }));
}

TEST_CASE("a run on one rank reports why it is sequential, with costs and without") {
  const test::DeclaredCosts costs;
  const bool known = GENERATE(false, true);
  const auto world = comm::make_self();
  const auto trainer =
      test::good(train::Trainer::create(config_with("partition"), *world, {.costs = known ? &costs : nullptr}));
  const std::string banner = (*trainer)->banner();
  INFO(banner);
  CHECK(has(banner, known ? "; predicted step " : "; predicted step time n/a"));
  CHECK(has(banner, "\nwhy        partition runs sequential: one rank, nothing to overlap"));
}

TEST_CASE("runs of micro batches add up their predictions") {
  const int micro_batches = GENERATE(3, 11);  // in one run, and in a run each
  test::DeclaredCosts costs;
  config::Config config = config_with("dw");
  config.train.micro_batch_size = 2;
  config.train.gradient_accumulation_steps = micro_batches;
  test::good(comm::run_inproc(2, [&](comm::Communicator& world) -> Status {
    LANCET_ASSIGN(const auto trainer, train::Trainer::create(config, world, {.local_ranks = 2, .costs = &costs}));
    LANCET_ASSIGN(const run::StepRecord record, trainer->step(0));
    const double planned = trainer->executor().plan().header.real("predicted_ms");
    if (micro_batches == 3) CHECK(record.predicted_ms.value() == planned);
    if (micro_batches == 3) return {};
    CHECK(record.predicted_ms.value() > 6 * planned);  // a micro batch lacks only the update and the all-reduces
    CHECK(record.predicted_ms.value() < 11 * planned);
    return {};
  }));
}

}  // namespace lancet
