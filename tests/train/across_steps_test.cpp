// Steps whose ends run in the next one (overlap.across_steps) train like steps that end before it, to the bit.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <thread>

#include "declared_costs.h"
#include "good.h"
#include "host_accelerator.h"
#include "lancet/base/files.h"
#include "lancet/ir/dependencies.h"
#include "lancet/ir/plan.h"
#include "lancet/planner/from_config.h"
#include "lancet/schedule/overlap.h"
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
  config.overlap.max_parts = 1;  // the border decides between plans with other parts, whose sums have other orders
  config.overlap.across_steps = across_steps;
  return config;
}

// Gathers of the first blocks' weights are apart from those of the last ones.
constexpr std::int64_t small_bucket = 32 << 10;

// Short messages, so that sums of gradients fit into the forward pass.
struct BorderCosts final : cost::Costs {
  explicit BorderCosts(const config::Config& config) : micro_batches(config.train.gradient_accumulation_steps) {}
  DeclaredCosts declared;
  std::int64_t micro_batches;  // with several, sums of gradients are longer, or nothing is left to hide
  std::optional<double> compute_ms(std::string_view key) const override { return declared.compute_ms(key); }
  double all_to_all_ms(double bytes, ir::Axes = {}) const override { return 0.02 + bytes * 2e-5; }
  double all_reduce_ms(double bytes, ir::Axes = {}) const override {
    return 0.05 + bytes * (micro_batches > 1 ? 1e-4 : 2e-5);
  }
  cost::CoreCost all_to_all_core() const override { return {}; }
  cost::CoreCost all_reduce_core() const override { return {}; }
  double launch_ms() const override { return 0.01; }
  cost::Interference interference() const override { return {}; }
};

ir::Plan plan_in(const std::string& run) {
  const auto text = test::good(read_file(run + "/plan.ir", "a plan"));
  const auto plan = test::good(ir::parse_plan(*text));
  REQUIRE(ir::verify(*plan).ok());
  return *plan;
}

std::vector<double> norms_in(const std::string& run) {
  std::vector<double> norms;
  for (const auto& record : records_of(run))
    if (record.contains("grad_norm")) norms.push_back(record["grad_norm"]);
  return norms;
}

constexpr double binding = 0.05;  // a norm that all gradients here exceed

bool waits_for_norm(const config::Config& config) {
  return config.train.clip_grad > 0 || config.train.on_non_finite == config::OnNonFinite::skip;
}

// Updates cross the border, and nothing of which the norm is made.
void check_norm_of_own_step(const ir::Program& program) {
  const std::vector<bool> may_cross = schedule::may_cross_steps(program);
  std::size_t updates = 0;
  for (std::size_t i = 0; i < may_cross.size(); ++i) {
    const ir::Instruction& at = program.instructions[i];
    const bool is_update = at.role == ir::Role::update && !at.writes.empty();
    const bool is_norm = at.op == "squared_norm" || at.op == "clip_scale";
    if (is_update) CHECK(may_cross[i]);
    if (is_norm || at.op == "reduce_scatter_flat") CHECK_FALSE(may_cross[i]);
    if (ir::of_step_before(at)) CHECK(may_cross[i]);
    updates += is_update && ir::of_step_before(at);
  }
  CHECK(updates > 0);
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

TEST_CASE("across steps: the same losses, norms, evaluations and checkpoints, bit for bit") {
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
  SECTION("clipping") { config.train.clip_grad = binding; }
  SECTION("clipping, ZeRO-1") {
    config.train.zero = 1;
    config.train.clip_grad = binding;
    config.overlap.bucket_bytes = small_bucket;
  }
  SECTION("clipping, micro batches in several runs of a plan") {
    config.train.gradient_accumulation_steps = 9;
    config.model.router_aux_loss_scope = config::AuxLossScope::global;
    config.train.clip_grad = binding;
  }
  SECTION("clipping, four ranks, experts with replicas, bf16") {
    ranks = 4;
    config.mesh.data = 2;
    config.train.micro_batch_size = 2;
    config.train.dtype = DType::bf16;
    config.train.clip_grad = binding;
  }
  SECTION("steps that may be skipped") { config.train.on_non_finite = config::OnNonFinite::skip; }
  SECTION("micro batches") { config.train.gradient_accumulation_steps = 2; }
  SECTION("micro batches in several runs of a plan, ZeRO-1") {
    config.train.gradient_accumulation_steps = 9;
    config.model.router_aux_loss_scope = config::AuxLossScope::global;  // their loads add up, too
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
  const BorderCosts costs(config);
  const train::TrainerOptions options{.costs = &costs};
  REQUIRE(train_run(config, ranks, options).code == ExitCode::done);
  CHECK_FALSE(ir::crosses_steps(plan_in(folder / "whole").program));
  config.log.run_dir = folder / "across";
  config.overlap.across_steps = true;
  REQUIRE(train_run(config, ranks, options).code == ExitCode::done);
  const ir::Plan plan = plan_in(folder / "across");
  CHECK(ir::crosses_steps(plan.program));
  if (waits_for_norm(config)) check_norm_of_own_step(plan.program);
  if (config.train.clip_grad > 0)
    for (const double norm : norms_in(folder / "whole")) CHECK(norm > config.train.clip_grad);
  CHECK(plan.header.real("predicted_ms") < plan_in(folder / "whole").header.real("predicted_ms"));
  CHECK(held_out_losses(folder / "across").size() == 2);
  check_same_runs(folder / "across", folder / "whole");
}

TEST_CASE("across steps: a run that stops and resumes equals one that does not, bit for bit") {
  const TemporaryFolder folder;
  config::Config config = border_config(folder, "whole", true);
  config.train.clip_grad = GENERATE(0.0, binding);
  const BorderCosts costs(config);
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

namespace {

// The communicator of a rank that dies: once the fuse is lit, at the next sum of one of its streams.
class Mortal final : public comm::Communicator {
 public:
  Mortal(comm::Communicator& alive, const bool& lit) : alive_(alive), lit_(lit) {}
  Mortal(std::unique_ptr<comm::Communicator> stream, const bool& lit)
      : owned_(std::move(stream)), alive_(*owned_), lit_(lit) {}
  int rank() const override { return alive_.rank(); }
  int size() const override { return alive_.size(); }
  std::string transport() const override { return alive_.transport(); }
  Status send_receive(std::span<const comm::Segment> sends, std::span<const comm::Segment> receives) override {
    return alive_.send_receive(sends, receives);
  }
  Status all_reduce_sum(std::span<float> values) override {
    if (owned_ && lit_) return internal_error("this rank died");
    return alive_.all_reduce_sum(values);
  }
  Status broadcast(std::span<std::byte> bytes, int root) override { return alive_.broadcast(bytes, root); }
  Status barrier() override { return alive_.barrier(); }
  Result<std::unique_ptr<comm::Communicator>> split(std::span<const int> members) override {
    LANCET_ASSIGN(auto stream, alive_.split(members));
    return std::unique_ptr<comm::Communicator>(std::make_unique<Mortal>(std::move(stream), lit_));
  }
  void abort(const std::string& why) override { alive_.abort(why); }
  void set_timeout(std::chrono::milliseconds timeout) override { alive_.set_timeout(timeout); }
  void set_name(const std::string& name) override { alive_.set_name(name); }

 private:
  std::unique_ptr<comm::Communicator> owned_;  // null: the world
  comm::Communicator& alive_;
  const bool& lit_;
};

// The error on rank 0 of a run in which rank 1 dies while it completes this step for a save.
Error run_until_death(const config::Config& config, int step) {
  const BorderCosts costs(config);
  Error error{ExitCode::done, "", false};
  const Status status = comm::run_inproc(2, [&](comm::Communicator& world) -> Status {
    bool lit = false;
    int ends = 0;
    train::TrainerOptions options{.local_ranks = 2, .costs = &costs};
    options.interrupted = [&] {                                     // called once at the end of a step
      std::this_thread::sleep_for(std::chrono::milliseconds(200));  // the disk takes the save before
      lit = world.rank() == 1 && ++ends == step;
      return false;
    };
    Mortal mortal(world, lit);
    const Status mine = train::train(config, mortal, options);
    if (world.rank() == 0 && !mine.ok()) error = mine.error();
    return mine;
  });
  CHECK_FALSE(status.ok());
  return error;
}

}  // namespace

TEST_CASE("across steps: a rank that dies in the closing run of a step ends the others, and the run resumes") {
  const TemporaryFolder folder;
  config::Config config = border_config(folder, "whole", true);
  config.train.eval_interval = 0;
  const BorderCosts costs(config);
  REQUIRE(train_run(config, 2, {.costs = &costs}).code == ExitCode::done);
  CHECK(ir::crosses_steps(plan_in(folder / "whole").program));
  config.log.run_dir = folder / "killed";
  const Error error = run_until_death(config, 4);
  INFO(error.message);
  CHECK(error.code == ExitCode::communication);
  CHECK(error.message.starts_with("the end of step 4: "));
  CHECK(losses(folder / "killed").size() == 3);  // the fourth was not complete
  CHECK(norms_in(folder / "killed").size() == 3);
  CHECK(std::filesystem::exists(in_checkpoints(folder / "killed", "step-000002")));
  CHECK_FALSE(std::filesystem::exists(in_checkpoints(folder / "killed", "step-000004")));
  REQUIRE(train_run(config, 2, {.costs = &costs}).code == ExitCode::done);
  check_same_runs(folder / "killed", folder / "whole");
}

namespace {

struct Held {
  std::vector<double> losses, norms;            // of rank 0
  std::vector<std::vector<std::byte>> tensors;  // parameters and states of all ranks
  int skipped = 0;                              // steps
};

// Steps that follow each other without a look at the weights. late: a rank that begins each step 50 ms after the other,
// and completes the last one so; -1: none. poisoned: a tensor in which the first step finds a NaN; empty: none.
Held train_steps(const config::Config& config, int steps, bool on_device, int late = -1,
                 std::string_view poisoned = {}) {
  Held held;
  std::vector<std::vector<std::vector<std::byte>>> of_ranks(2);
  const BorderCosts costs(config);
  test::good(comm::run_inproc(2, [&](comm::Communicator& world) -> Status {
    HostAccelerator accelerator({.pause_us = 20});
    train::TrainerOptions options{.local_ranks = 2, .costs = &costs};
    if (on_device) options.accelerator = &accelerator;
    LANCET_ASSIGN(const auto trainer, train::Trainer::create(config, world, options));
    if (!poisoned.empty()) trainer->store()[poisoned].memory.as<float>()[0] = std::numeric_limits<float>::quiet_NaN();
    const auto wait_if_late = [&] {
      if (world.rank() == late) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    };
    for (int step = 0; step < steps; ++step) {
      wait_if_late();
      LANCET_ASSIGN(const run::StepRecord record, trainer->step(step, train::Trainer::Border::open));
      if (world.rank() != 0) continue;
      CHECK(trainer->is_open() == (config.overlap.across_steps && !record.skipped));
      CHECK(record.is_norm_known == (waits_for_norm(config) || !trainer->is_open()));
      held.losses.push_back(record.loss);
      held.skipped += record.skipped;
      if (step > 0 && !record.is_norm_known) held.norms.push_back(trainer->norm_before());
      if (record.is_norm_known) held.norms.push_back(record.grad_norm);
    }
    const bool is_norm_known = trainer->last_record().is_norm_known;
    wait_if_late();
    LANCET_TRY(trainer->settle());
    CHECK_FALSE(trainer->is_open());
    if (!is_norm_known && world.rank() == 0) held.norms.push_back(trainer->last_record().grad_norm);
    for (const auto& [name, tensor] : trainer->store().all()) {
      auto& bytes = of_ranks[std::size_t(world.rank())].emplace_back(tensor.memory.bytes);
      LANCET_TRY(trainer->store().read(tensor, 0, bytes));
    }
    return {};
  }));
  for (auto& of_rank : of_ranks)
    for (auto& bytes : of_rank) held.tensors.push_back(std::move(bytes));
  return held;
}

}  // namespace

TEST_CASE("across steps: on the CPU and on device streams, recorded or not, the same bits") {
  const TemporaryFolder folder;
  config::Config config = border_config(folder, "run", false);
  SECTION("one run a step") {}
  SECTION("several runs a step") {
    config.train.gradient_accumulation_steps = 11;
    config.model.router_aux_loss_scope = config::AuxLossScope::global;
  }
  SECTION("clipping") { config.train.clip_grad = binding; }
  SECTION("clipping, several runs a step") {
    config.train.gradient_accumulation_steps = 11;
    config.train.clip_grad = binding;
  }
  const Held expected = train_steps(config, 5, false);
  config.overlap.across_steps = true;
  for (const bool on_device : {false, true}) {
    const Held found = train_steps(config, 5, on_device);
    CHECK(found.losses == expected.losses);
    CHECK(found.norms == expected.norms);
    CHECK(found.tensors == expected.tensors);
  }
}

TEST_CASE("across steps: a step that is skipped changes no weight, and the next ones train on") {
  const TemporaryFolder folder;
  config::Config config = border_config(folder, "run", false);
  config.train.on_non_finite = config::OnNonFinite::skip;
  config.train.gradient_accumulation_steps = GENERATE(2, 11);
  config.train.clip_grad = binding;
  constexpr std::string_view sum = "h.3.attn.c_proj.weight.grad";
  const Held expected = train_steps(config, 4, false, -1, sum);
  CHECK(expected.skipped == 1);
  config.overlap.across_steps = true;
  const Held found = train_steps(config, 4, false, -1, sum);
  CHECK(found.skipped == 1);
  CHECK(found.losses == expected.losses);
  CHECK(std::vector(found.norms.begin() + 1, found.norms.end()) ==
        std::vector(expected.norms.begin() + 1, expected.norms.end()));
  CHECK(found.tensors == expected.tensors);
}

TEST_CASE("across steps: a late rank changes no value") {
  const TemporaryFolder folder;
  const config::Config config = border_config(folder, "run", true);
  const Held expected = train_steps(config, 4, false), found = train_steps(config, 4, false, 1);
  CHECK(found.losses == expected.losses);
  CHECK(found.norms == expected.norms);
  CHECK(found.tensors == expected.tensors);
}

TEST_CASE("across steps: a norm that is not finite is an error of its own step, once it is known") {
  const TemporaryFolder folder;
  config::Config config = border_config(folder, "run", true);
  config.train.gradient_accumulation_steps = 2;
  const bool settles = GENERATE(true, false);
  const BorderCosts costs(config);
  test::good(comm::run_inproc(2, [&](comm::Communicator& world) -> Status {
    LANCET_ASSIGN(const auto trainer, train::Trainer::create(config, world, {.local_ranks = 2, .costs = &costs}));
    runtime::NamedTensor& sum = trainer->store()["h.3.attn.c_proj.weight.grad"];
    sum.memory.as<float>()[0] = std::numeric_limits<float>::quiet_NaN();
    LANCET_TRY(trainer->step(0, train::Trainer::Border::open));
    CHECK(std::isfinite(trainer->last_record().loss));
    Error error{ExitCode::done, "", false};
    if (settles) {
      if (const Status settled = trainer->settle(); !settled.ok()) error = settled.error();
    } else if (const auto next = trainer->step(1, train::Trainer::Border::open); !next.ok()) {
      error = next.error();
    }
    CHECK(error.code == ExitCode::numerical);
    CHECK(error.agreed);
    CHECK(error.message.starts_with("step 1: expected a finite loss and gradient norm, found loss 4."));
    CHECK(trainer->last_record().step == 1);
    return {};
  }));
}

TEST_CASE("across steps: steps that are all skipped leave updates and gathers that change no weight") {
  const TemporaryFolder folder;
  config::Config config = border_config(folder, "whole", false);
  config.train.zero = GENERATE(0, 1);
  config.train.clip_grad = 1;
  config.train.on_non_finite = config::OnNonFinite::skip;
  config.train.optimizer = config::Optimizer::sgd;
  config.train.lr_schedule = config::LrSchedule::constant;
  config.train.lr = 1e30;
  config.train.max_skips = 100;
  config.overlap.bucket_bytes = small_bucket;
  const BorderCosts costs(config);
  REQUIRE(train_run(config, 2, {.costs = &costs}).code == ExitCode::numerical);  // of the evaluation
  config.log.run_dir = folder / "across";
  config.overlap.across_steps = true;
  REQUIRE(train_run(config, 2, {.costs = &costs}).code == ExitCode::numerical);  // of the evaluation
  CHECK(ir::crosses_steps(plan_in(folder / "across").program));
  const auto found = records_of(folder / "across"), expected = records_of(folder / "whole");
  REQUIRE(found.size() == expected.size());
  std::int64_t skipped = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (!found[i].contains("loss")) continue;  // of an evaluation
    for (const char* key : {"loss", "grad_norm", "skipped_steps"}) CHECK(found[i].at(key) == expected[i].at(key));
    skipped = found[i].at("skipped_steps");
  }
  CHECK(skipped > 0);
}

TEST_CASE("across steps: a run that ends with a loss that is not finite has one record a step") {
  const TemporaryFolder folder;
  config::Config config = border_config(folder, "run", true);
  config.train.optimizer = config::Optimizer::sgd;
  config.train.lr_schedule = config::LrSchedule::constant;
  config.train.lr = 1e30;
  config.train.save_interval = 100;
  const BorderCosts costs(config);
  const Error error = train_run(config, 2, {.costs = &costs});
  CHECK(error.code == ExitCode::numerical);
  std::int64_t step = 0;
  for (const auto& record : records_of(folder / "run")) CHECK(record["step"] == ++step);
  CHECK(step == 2);
  CHECK(records_of(folder / "run")[0]["grad_norm"].is_number());
}

TEST_CASE("across steps: a plan file is read back, and refused where an edit breaks the border") {
  const TemporaryFolder folder;
  config::Config config = border_config(folder, "run", true);
  config.train.steps = 1;
  const BorderCosts costs(config);
  REQUIRE(train_run(config, 2, {.costs = &costs}).code == ExitCode::done);
  const std::string text = *read_file(folder / "run/plan.ir", "a plan");
  const auto error_of = [&](const std::string& edited) {
    const Error read = test::refused(planner::read_plan(folder.write("edited.ir", edited), {config, 2}));
    CHECK(read.code == ExitCode::config);
    return read.message;
  };
  const auto read = test::good(planner::read_plan(folder / "run/plan.ir", {config, 2}));
  CHECK(ir::print(*read) == text);
  const auto at = text.find(", @schedule@-1)");
  REQUIRE(at != std::string::npos);
  CHECK_THAT(error_of(std::string(text).replace(at, 15, ", @schedule)")),
             Catch::Contains("reads @schedule, an input of another step than its own"));
  const auto mark = text.find("@-1", text.find("# compute update", at));
  CHECK_THAT(error_of(std::string(text).erase(mark, 3)),
             Catch::Contains("another step than its own") || Catch::Contains("is read before it is made"));
  // An update of the step before, now the last of all.
  ir::Plan behind = *read;
  auto& list = behind.program.instructions;
  const auto update = std::ranges::find_if(
      list, [](const ir::Instruction& at) { return ir::of_step_before(at) && !at.writes.empty(); });
  std::rotate(update, update + 1, list.end());
  CHECK_THAT(error_of(ir::print(behind)), Catch::Contains("is of the step before, and comes after one of this step"));
  config.overlap.across_steps = false;
  CHECK_THAT(error_of(text), Catch::Contains("expected none of the step before, since overlap.across_steps is false"));
}

}  // namespace lancet
