// Steps whose ends run in the next one (overlap.across_steps) train like steps that end before it, to the bit.
#include <fmt/format.h>

#include "declared_costs.h"
#include "lancet/base/atomic_file.h"
#include "lancet/ir/step_border.h"
#include "log_capture.h"
#include "train/runs.h"

namespace lancet {
namespace {

using namespace test;

// Evaluates after steps 3 and 6, saves after steps 2, 4 and 6.
config::Config border_config(const TemporaryFolder& folder, const std::string& run, bool across_steps) {
  config::Config config = config_with_files(folder, run);
  config.data.eval_sequences = 8;
  config.model.n_layer = 8;
  config.train.clip_grad = 0;
  config.train.save_interval = 2;
  config.train.eval_interval = 3;
  config.overlap.policy = "lancet";
  config.overlap.across_steps = across_steps;
  return config;
}

// Short messages, so that sums of gradients fit into the forward pass.
struct BorderCosts final : cost::Costs {
  DeclaredCosts declared;
  std::optional<double> compute_ms(std::string_view key) const override { return declared.compute_ms(key); }
  double all_to_all_ms(double bytes, mesh::Axes = {}) const override { return 0.02 + bytes * 2e-5; }
  double all_reduce_ms(double bytes, mesh::Axes = {}) const override { return 0.05 + bytes * 2e-5; }
  cost::CoreCost all_to_all_core() const override { return {}; }
  cost::CoreCost all_reduce_core() const override { return {}; }
  double launch_ms() const override { return 0.01; }
  cost::Interference interference() const override { return {}; }
};

ir::Plan plan_in(const std::string& run) {
  const auto text = read_file(run + "/plan.ir", "a plan");
  REQUIRE(text.ok());
  const auto plan = ir::parse_plan(*text);
  REQUIRE(plan.ok());
  REQUIRE(ir::verify(*plan).ok());
  return *plan;
}

std::vector<double> norms_in(const std::string& run) {
  std::vector<double> norms;
  for (const auto& record : records_of(run))
    if (record.contains("grad_norm")) norms.push_back(record["grad_norm"]);
  return norms;
}

// Both runs have the same records, and their checkpoints the same files.
void check_same_runs(const std::string& found, const std::string& expected, std::int64_t last = 6) {
  CHECK(losses(found) == losses(expected));
  CHECK(norms_in(found) == norms_in(expected));
  CHECK(held_out_losses(found) == held_out_losses(expected));
  for (std::int64_t step = 2; step <= last; step += 2)
    CHECK(manifest_in(found, step).files == manifest_in(expected, step).files);
}

}  // namespace

TEST_CASE("ring of steps: the same losses, norms, evaluations and checkpoints, bit for bit") {
  const TemporaryFolder folder;
  config::Config config = border_config(folder, "whole", false);
  int ranks = 2;
  SECTION("AdamW") {}
  SECTION("SGD") { config.train.optimizer = config::Optimizer::sgd; }
  SECTION("bf16, rounded by random numbers of the step") {
    config.train.dtype = DType::bf16;
    config.train.master_weights = false;
  }
  SECTION("ZeRO-1") { config.train.zero = 1; }
  SECTION("micro batches") { config.train.gradient_accumulation_steps = 2; }
  SECTION("micro batches in several runs of a plan, ZeRO-1") {
    config.train.gradient_accumulation_steps = 9;
    config.train.zero = 1;
  }
  SECTION("one micro batch a run") { config.train.gradient_accumulation_steps = 11; }
  SECTION("four ranks, experts with replicas") {
    ranks = 4;
    config.mesh.data = 2;
    config.train.micro_batch_size = 2;
  }
  SECTION("tensor parallel") {
    ranks = 4;
    config.mesh.tensor = 2;
  }
  SECTION("balanced by biases of the experts") {
    config.model.router = config::Router::sigmoid;
    config.model.num_experts_per_tok = 2;
    config.model.router_bias_update_rate = 0.01;
  }
  const BorderCosts costs;
  const train::TrainerOptions options{.costs = &costs};
  REQUIRE(train_run(config, ranks, options).code == ExitCode::done);
  CHECK_FALSE(ir::crosses_steps(plan_in(folder / "whole").program));
  config.log.run_dir = folder / "ring";
  config.overlap.across_steps = true;
  REQUIRE(train_run(config, ranks, options).code == ExitCode::done);
  const ir::Plan plan = plan_in(folder / "ring");
  CHECK(ir::crosses_steps(plan.program));
  CHECK(plan.header.real("predicted_ms") < plan_in(folder / "whole").header.real("predicted_ms"));
  CHECK(held_out_losses(folder / "ring").size() == 2);
  check_same_runs(folder / "ring", folder / "whole");
}

TEST_CASE("ring of steps: a run that stops and resumes equals one that does not, bit for bit") {
  const TemporaryFolder folder;
  config::Config config = border_config(folder, "whole", true);
  const BorderCosts costs;
  const train::TrainerOptions options{.costs = &costs};
  REQUIRE(train_run(config, 2, options).code == ExitCode::done);
  CHECK(ir::crosses_steps(plan_in(folder / "whole").program));
  config.log.run_dir = folder / "stopped";
  stop_after(config, 1, 2, options);
  CHECK(norms_in(folder / "stopped").size() == 1);
  stop_after(config, 4, 2, options);
  REQUIRE(train_run(config, 2, options).code == ExitCode::done);
  check_same_runs(folder / "stopped", folder / "whole");
}

TEST_CASE("ring of steps: where updates wait for the norm, steps end before the next one, and the log says so") {
  const TemporaryFolder folder;
  config::Config config = border_config(folder, "run", true);
  std::string why;
  SECTION("clipping") {
    config.train.clip_grad = 0.5;
    why = "train.clip_grad is 0.5";
  }
  SECTION("skipped steps") {
    config.train.on_non_finite = config::OnNonFinite::skip;
    why = "train.on_non_finite is skip";
  }
  const BorderCosts costs;
  LogCapture log;
  REQUIRE(train_run(config, 2, {.costs = &costs}).code == ExitCode::done);
  CHECK(log.text().find("each step ends before the next one begins: " + why) != std::string::npos);
  CHECK_FALSE(ir::crosses_steps(plan_in(folder / "run").program));
}

}  // namespace lancet
