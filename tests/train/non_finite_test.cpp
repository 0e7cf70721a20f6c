// A step whose loss or norm is not finite names the first such tensor and keeps the weights.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <map>

#include "declared_costs.h"
#include "good.h"
#include "lancet/checkpoint/checkpoint.h"
#include "log_capture.h"
#include "routers.h"
#include "temporary_folder.h"
#include "train/meshes.h"
#include "train/rank_state.h"
#include "train/runs.h"
#include "train/support.h"

namespace lancet {
namespace {

constexpr float nan = std::numeric_limits<float>::quiet_NaN();

// The error of the first failing step, which is the same on all ranks.
Error failed_step(const config::Config& config, int ranks,
                  const std::function<void(train::Trainer&, int rank)>& spoil) {
  Error error;
  std::mutex mutex;
  int failed = 0;
  test::good(comm::run_inproc(ranks, [&](comm::Communicator& world) -> Status {
    LANCET_ASSIGN(const auto trainer, train::Trainer::create(config, world, {.local_ranks = ranks}));
    spoil(*trainer, world.rank());
    for (int step = 0; step < 5; ++step)
      if (const auto record = trainer->step(step); !record.ok()) {
        const std::lock_guard lock(mutex);
        if (failed++ > 0) CHECK(error.message == record.error().message);
        error = record.error();
        return {};
      }
    return {};
  }));
  REQUIRE(failed == ranks);
  CHECK(error.code == ExitCode::numerical);
  CHECK(error.agreed);
  CHECK(error.message.find('\n') == std::string::npos);
  return error;
}

void spoil(train::Trainer& trainer, const std::string& name, std::size_t index) {
  runtime::NamedTensor& tensor = trainer.store()[name];
  if (tensor.type.dtype == DType::bf16)
    tensor.memory.as<bf16>()[index] = from_f32<bf16>(nan);
  else
    tensor.memory.as<float>()[index] = nan;
}

std::string first_bad(const Error& error) {
  const auto at = error.message.find("first not finite on ");
  return at == std::string::npos ? error.message : error.message.substr(at + 20);
}

}  // namespace

TEST_CASE("a NaN weight is named") {
  auto config = test::small_config();
  config.train.dtype = GENERATE(DType::f32, DType::bf16);
  config.train.micro_batch_size = 4;
  const std::string type = config.train.dtype == DType::bf16 ? "bf16" : "f32";
  SECTION("an expert's weight, on the rank that holds it") {
    const Error error = failed_step(config, 2, [](train::Trainer& trainer, int rank) {
      if (rank == 1) spoil(trainer, "h.2.moe.experts.c_fc.weight", 7);
    });
    CHECK(error.message.find("step 1: ") == 0);
    CHECK(first_bad(error) ==
          "rank 1 in micro batch 0: @h.2.moe.experts.c_fc.weight : " + type + "[2,128,32], element 7 is nan");
  }
  SECTION("a shared weight") {
    const Error error =
        failed_step(config, 2, [](train::Trainer& trainer, int) { spoil(trainer, "h.1.attn.c_proj.weight", 3); });
    CHECK(first_bad(error) ==
          "rank 0 in micro batch 0: @h.1.attn.c_proj.weight : " + type + "[32,32], element 3 is nan");
  }
}

TEST_CASE("an infinite learning rate: the weights of the next step are named") {
  auto config = test::small_config();
  config.train.lr = std::numeric_limits<double>::infinity();  // no config file can contain it
  config.train.micro_batch_size = 4;
  const Error error = failed_step(config, 2, [](train::Trainer&, int) {});
  CHECK(error.message.find("step 2: ") == 0);
  CHECK(first_bad(error).find("rank 0 in micro batch 0: @wte.weight : f32[128,32], element 0 is ") == 0);
}

TEST_CASE("an overflow is named in the layer where it happens") {
  auto config = test::small_config();
  config.train.micro_batch_size = 2;
  config.train.gradient_accumulation_steps = 2;
  config.model.router = config::Router::batch_prioritized;
  const Error error = failed_step(config, 2, [](train::Trainer& trainer, int) {
    for (const char* name : {"h.1.ln_1.weight", "h.1.attn.c_attn.weight"}) {  // their product is beyond f32
      const auto elements = std::size_t(trainer.store()[name].type.shape.elements());
      REQUIRE(train::set_parameter(trainer.store(), name, std::vector<float>(elements, 1e25f)).ok());
    }
  });
  CHECK(first_bad(error).find("in micro batch 0: %") != std::string::npos);
  CHECK(first_bad(error).find(" = linear at h.1.attn.c_attn (forward), element 0 is ") != std::string::npos);
}

TEST_CASE("a step with a norm that is not finite keeps the weights") {
  auto config = test::small_config();
  config.train.optimizer = GENERATE(config::Optimizer::adamw, config::Optimizer::sgd);
  config.train.dtype = GENERATE(DType::f32, DType::bf16);
  const auto world = comm::make_self();
  auto trainer = test::good(train::Trainer::create(config, *world));
  REQUIRE((*trainer)->step(0).ok());
  spoil(**trainer, "ln_f.bias", 5);
  std::map<std::string, std::vector<std::byte>> before;
  const auto bytes = [](const runtime::NamedTensor& tensor) {
    const auto span = tensor.memory.span<std::byte>();
    return std::vector<std::byte>(span.begin(), span.end());
  };
  for (const auto& [name, tensor] : (*trainer)->store().all()) before[name] = bytes(tensor);
  const Error record = test::refused((*trainer)->step(1));
  CHECK(first_bad(record) == "rank 0 in micro batch 0: @ln_f.bias : f32[32], element 5 is nan");
  for (const auto& [name, tensor] : (*trainer)->store().all()) {
    INFO(name);
    CHECK(bytes(tensor) == before[name]);
  }
}

TEST_CASE("a skipped step changes nothing, with or without clipping, and the next one counts") {
  auto config = test::small_config();
  config.train.on_non_finite = config::OnNonFinite::skip;
  config.train.optimizer = GENERATE(config::Optimizer::adamw, config::Optimizer::sgd);
  config.train.clip_grad = GENERATE(0., 1.);
  config.train.gradient_accumulation_steps = GENERATE(1, 2);
  config.train.micro_batch_size = 4;
  config.model.router_aux_loss_scope = config::AuxLossScope::global;
  const auto world = comm::make_self();
  auto trainer = test::good(train::Trainer::create(config, *world));
  REQUIRE((*trainer)->step(0).ok());
  const auto contents = [&] {
    std::map<std::string, std::vector<std::byte>> all;
    for (const auto& [name, tensor] : (*trainer)->store().all()) {
      const auto span = tensor.memory.span<std::byte>();
      all[name] = {span.begin(), span.end()};
    }
    return all;
  };
  const auto before = contents();
  float& bias = (*trainer)->store()["ln_f.bias"].memory.as<float>()[5];
  const float sound = bias;
  bias = nan;
  const auto skipped = test::good((*trainer)->step(1));
  CHECK(skipped->skipped);
  bias = sound;
  CHECK(contents() == before);
  const auto next = test::good((*trainer)->step(2));
  CHECK_FALSE(next->skipped);
  CHECK(std::isfinite(next->grad_norm));
  CHECK(contents()["ln_f.bias"] != before.at("ln_f.bias"));
}

TEST_CASE("AdamW's bias correction counts updates, and no steps that were skipped") {
  auto config = test::small_config();
  config.train.on_non_finite = config::OnNonFinite::skip;
  config.train.clip_grad = 0;
  config.train.adam_eps = 1e-15;
  const int skipped_before = GENERATE(0, 2);  // in the run that is resumed
  const auto world = comm::make_self();
  auto trainer = test::good(train::Trainer::create(config, *world, {.skipped_steps = skipped_before}));
  float* const biases = (*trainer)->store()["ln_f.bias"].memory.as<float>();
  const std::vector<float> before(biases, biases + 32);
  biases[5] = nan;
  const auto skipped = test::good((*trainer)->step(skipped_before));
  CHECK(skipped->skipped);
  CHECK(skipped->skipped_steps == skipped_before + 1);
  biases[5] = before[5];
  const auto updated = test::good((*trainer)->step(skipped_before + 1));
  CHECK(updated->skipped_steps == skipped_before + 1);
  CHECK(updated->lr == config.train.lr);
  for (std::size_t i = 0; i < before.size(); ++i)  // Adam's first update is the rate times the gradient's sign
    CHECK(std::abs(biases[i] - before[i]) == Approx(config.train.lr).epsilon(1e-4));
}

TEST_CASE("nothing is found in a sound step") {
  auto config = test::small_config();
  config.train.dtype = GENERATE(DType::f32, DType::bf16);
  GENERATE(from_range(test::routes)).set(config.model);
  config.model.capacity_factor = 0.5;  // some slots stay empty, and some tokens are dropped
  config.train.micro_batch_size = 4;
  const Status status = comm::run_inproc(2, [&](comm::Communicator& world) -> Status {
    LANCET_ASSIGN(const auto trainer, train::Trainer::create(config, world, {.local_ranks = 2}));
    for (int step = 0; step < 3; ++step) {
      if (const auto record = trainer->step(step); !record.ok()) return record.error();
      LANCET_ASSIGN(const auto found, trainer->executor().find_non_finite());
      if (found) return internal_error(to_string(trainer->executor().plan().program, *found));
    }
    return {};
  });
  INFO((status.ok() ? "" : status.error().message));
  CHECK(status.ok());
}

TEST_CASE("a held-out loss that is not finite is a warning, and at the end an error, once all is saved") {
  const test::TemporaryFolder folder;
  auto config = test::config_with_files(folder, "run");
  config.train.lr = 1e30;  // the first step is sound, and its update ruins the weights
  config.train.eval_interval = 1;
  config.train.steps = 1;
  for (const bool resumes : {false, true}) {
    const test::LogCapture log;
    const Error error = test::train_run(config, 2);
    CHECK(error.code == ExitCode::numerical);
    CHECK(error.message == "step 1: expected a finite held-out loss, found nan");
    CHECK(log.count("step 1 | held-out loss nan of 64 sequences | perplexity nan") == 2);
    CHECK(log.count("resume     after step 1") == (resumes ? 2 : 0));
  }
  CHECK(test::manifest_in(folder / "run", 1).step == 1);
  config.train.steps = 2;
  const test::LogCapture log;
  CHECK(test::train_run(config, 2).message.starts_with("step 2: expected a finite loss and gradient norm, "));
  CHECK(log.count("warning: step 1: expected a finite held-out loss, found nan") == 1);
  CHECK(log.count("-nan") == 0);
}

TEST_CASE("too many skipped steps end the run, and its checkpoints of sound steps stay") {
  const test::TemporaryFolder folder;
  auto config = test::small_config();
  config.train.on_non_finite = config::OnNonFinite::skip;
  config.train.max_skips = 3;
  config.train.steps = 20;
  config.train.lr = 1e30;  // the first step is sound, and its update ruins the weights
  config.train.save_interval = 1;
  config.train.micro_batch_size = 4;
  config.log.run_dir = folder / "run";
  const test::LogCapture log;
  std::vector<Error> errors(2);
  REQUIRE(comm::run_inproc(2, [&](comm::Communicator& world) -> Status {
            const Status status = train::train(config, world, {.local_ranks = 2});
            if (!status.ok()) errors[std::size_t(world.rank())] = status.error();
            return {};
          }).ok());
  for (const Error& error : errors) {
    CHECK(error.code == ExitCode::numerical);
    CHECK(error.agreed);
    CHECK(error.message.find("step 4: expected a finite loss and gradient norm in one of 3 steps in a row "
                             "(train.max_skips), found none: ") == 0);
  }
  CHECK(checkpoint::steps_in(folder / "run/checkpoints") == std::vector<std::int64_t>{1});
  CHECK(log.count("skipped: step 4: ") == 1);
  CHECK(log.count("nan") > 0);
  CHECK(log.count("-nan") == 0);
}

// A bad value on one of several ranks: all ranks decide and report the same.

namespace {

constexpr const char* expert_weight = "h.2.moe.experts.c_fc.weight";
constexpr std::size_t element = 7;

using Contents = std::map<std::string, std::vector<std::byte>>;

Contents contents_of(train::Trainer& trainer) {
  Contents all;
  for (const auto& [name, tensor] : trainer.store().all()) {
    const auto span = tensor.memory.span<std::byte>();
    all[name] = {span.begin(), span.end()};
  }
  return all;
}

// Synthetic tokens; during a chosen batch, a weight of this rank is NaN.
class BadBatch final : public data::Batches {
 public:
  BadBatch(const config::Config& config, comm::Communicator& world, std::int64_t step, int micro, float value)
      : good_(std::move(data::training_batches(config, {}, world.rank(), world.size()).value())),
        step_(step),
        micro_(micro),
        value_(value) {}
  void spoil(train::Trainer& trainer) {
    at_ = &trainer.store()[expert_weight].memory.as<float>()[element];
    sound_ = *at_;
  }
  Status fill(std::int64_t step, int micro, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) override {
    if (at_) {
      if (*at_ == *at_ && std::isfinite(*at_)) sound_ = *at_;  // the loss falls
      *at_ = step == step_ && micro == micro_ ? value_ : sound_;
    }
    return good_->fill(step, micro, inputs, targets);
  }
  void mend() {
    if (at_) *at_ = sound_;
  }

 private:
  std::unique_ptr<data::Batches> good_;
  const std::int64_t step_;
  const int micro_;
  const float value_;
  float* at_ = nullptr;
  float sound_ = 0;
};

config::Config non_finite_config(int ranks) {
  auto config = test::small_config();
  config.model.num_local_experts = 4;
  config.train.micro_batch_size = 8 / ranks;
  config.train.gradient_accumulation_steps = 2;
  return config;
}

// Runs body(trainer, batches, rank) on every rank; the value becomes bad on rank `bad` as micro batch 1 of the second
// step is read. All micro batches of a plan are read before it runs, so a parameter is bad from micro batch 0 on.
void on_ranks(const config::Config& config, int ranks, int bad, float value,
              const std::function<Status(train::Trainer&, BadBatch&, int)>& body) {
  test::good(comm::run_inproc(ranks, [&](comm::Communicator& world) -> Status {
    BadBatch batches(config, world, 1, 1, value);
    LANCET_ASSIGN(const auto trainer,
                  train::Trainer::create(config, world, {.local_ranks = ranks, .batches = &batches}));
    if (world.rank() == bad) batches.spoil(*trainer);
    return body(*trainer, batches, world.rank());
  }));
}

}  // namespace

TEST_CASE("a value that is bad on one rank stops all ranks, with that rank's report") {
  const auto [ranks, bad] = GENERATE(table<int, int>({{2, 0}, {2, 1}, {4, 0}, {4, 2}, {4, 3}}));
  const float value = GENERATE(std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity());
  std::vector<Error> errors(std::size_t(ranks), Error{ExitCode::done, "", false});
  on_ranks(non_finite_config(ranks), ranks, bad, value, [&](train::Trainer& trainer, BadBatch&, int rank) -> Status {
    LANCET_TRY(trainer.step(0));
    const auto record = trainer.step(1);
    if (!record.ok()) errors[std::size_t(rank)] = record.error();
    return {};
  });
  const std::string expected = "first not finite on rank " + std::to_string(bad) + " in micro batch 0: @" +
                               std::string(expert_weight) + " : f32[" + std::to_string(4 / ranks) +
                               ",128,32], element 7 is " + (std::isnan(value) ? "nan" : "inf");
  for (const Error& error : errors) {
    INFO(error.message);
    CHECK(error.code == ExitCode::numerical);
    CHECK(error.agreed);
    CHECK(error.message == errors[0].message);
    CHECK(error.message.starts_with("step 2: expected a finite loss and gradient norm, found loss "));
    CHECK(error.message.ends_with(expected));
  }
}

TEST_CASE("a step skipped for one rank's bad value keeps weights and optimizer of all ranks") {
  const auto [ranks, bad] = GENERATE(table<int, int>({{2, 1}, {4, 0}, {4, 3}}));
  auto config = non_finite_config(ranks);
  config.train.on_non_finite = config::OnNonFinite::skip;
  config.train.optimizer = GENERATE(config::Optimizer::adamw, config::Optimizer::sgd);
  config.train.clip_grad = GENERATE(0., 1.);
  std::vector<Contents> before{std::size_t(ranks)}, after = before, later = before;
  std::vector<run::StepRecord> skipped{std::size_t(ranks)}, next = skipped;
  on_ranks(config, ranks, bad, std::numeric_limits<float>::quiet_NaN(),
           [&](train::Trainer& trainer, BadBatch& batches, int rank) -> Status {
             const auto r = std::size_t(rank);
             LANCET_TRY(trainer.step(0));
             before[r] = contents_of(trainer);
             LANCET_ASSIGN(skipped[r], trainer.step(1));
             batches.mend();
             after[r] = contents_of(trainer);
             LANCET_ASSIGN(next[r], trainer.step(2));
             later[r] = contents_of(trainer);
             return {};
           });
  for (std::size_t r = 0; r < before.size(); ++r) {
    CHECK(skipped[r].skipped);
    CHECK_FALSE(next[r].skipped);
    CHECK(std::isfinite(next[r].grad_norm));
    CHECK(before[r].contains("wte.weight"));
    for (const auto& [name, bytes] : before[r]) {
      INFO("rank " << r << ": " << name);
      // The sums of a step's gradients over micro batches start again with each step.
      if (!name.ends_with(".grad")) CHECK(after[r].at(name) == bytes);
    }
    CHECK(later[r].at("ln_f.bias") != before[r].at("ln_f.bias"));
    CHECK(later[r].at("ln_f.bias") == later[0].at("ln_f.bias"));
  }
}

// A step of pipeline stages that is not finite: the search for its cause, which every rank reports alike.

namespace {

using config::PipelineSchedule;

// An element of a parameter that is bad from the second step on, on the ranks of one coordinate along data and expert.
struct BadElement {
  std::string name;
  float value = 0;
};

config::Config searched_step(int stages, int experts, PipelineSchedule schedule) {
  config::Config config = test::mesh_config(experts);
  config.model.capacity_factor = 4;
  config.train.gradient_accumulation_steps = 4;
  config.train.micro_batch_size = 4 / experts;
  config.model.router_group_size = 1;
  config.train.pipeline_schedule = schedule;
  config.mesh.stage = stages;
  config.mesh.expert = experts;
  return config;
}

// The message of a step after which an element is bad, the same on all ranks.
std::string cause_of(const config::Config& config, int ranks, const BadElement& bad) {
  const test::DeclaredCosts costs;
  std::vector<Error> errors(std::size_t(ranks), Error{ExitCode::done, "", false});
  test::good(comm::run_inproc(ranks, [&](comm::Communicator& world) -> Status {
    LANCET_ASSIGN(const auto trainer, train::Trainer::create(config, world, {.local_ranks = ranks, .costs = &costs}));
    LANCET_TRY(trainer->step(0));
    const runtime::NamedTensor* tensor = trainer->store().find(bad.name);
    REQUIRE(tensor != nullptr);
    if (!tensor->elsewhere) tensor->memory.as<float>()[7] = bad.value;
    const auto record = trainer->step(1);
    if (!record.ok()) errors[std::size_t(world.rank())] = record.error();
    return {};
  }));
  for (const Error& error : errors) {
    CHECK(error.code == ExitCode::numerical);
    CHECK(error.agreed);
    CHECK(error.message == errors[0].message);
  }
  return errors[0].message;
}

// What is found, without the rank and the number of the tensor.
std::string found_in(const std::string& message) {
  CHECK(message.starts_with("step 2: expected a finite loss and gradient norm, found loss "));
  return message.substr(std::min(message.find(" in micro batch "), message.size()));
}

}  // namespace

TEST_CASE("stages: a parameter that is not finite is named with a rank that has it") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const PipelineSchedule schedule : {PipelineSchedule::one_forward_one_backward, PipelineSchedule::zero_bubble,
                                          PipelineSchedule::searched, PipelineSchedule::interleaved}) {
    INFO(config::name(schedule));
    config::Config config = searched_step(2, 1, schedule);
    const bool interleaved = schedule == PipelineSchedule::interleaved;
    config.mesh.stage_blocks = interleaved ? std::vector<std::int64_t>{1, 1, 1, 1} : std::vector<std::int64_t>{2, 2};
    for (const auto& [name, rank] : {std::pair("h.0.ln_1.bias", 0), std::pair("h.1.ln_1.bias", interleaved ? 1 : 0),
                                     std::pair("h.3.ln_1.bias", 1), std::pair("ln_f.bias", 1)}) {
      INFO(name);
      CHECK(cause_of(config, 2, {name, nan})
                .ends_with(fmt::format("first not finite on rank {} in micro batch 0: @{} : f32[32], element 7 is nan",
                                       rank, name)));
    }
  }
}

TEST_CASE("stages: the instruction that overflows is the one that does so on one rank") {
  constexpr float largest = 3e38f;
  for (const char* name : {"h.1.mlp.c_fc.weight", "h.3.mlp.c_fc.weight", "h.3.attn.c_attn.weight", "ln_f.weight"}) {
    INFO(name);
    const auto made = [](const std::string& message) {
      return message.substr(std::min(message.find(" = "), message.size()));
    };
    const std::string expected =
        cause_of(searched_step(1, 1, PipelineSchedule::one_forward_one_backward), 1, {name, largest});
    INFO(expected);
    REQUIRE(found_in(expected).starts_with(" in micro batch 0: %"));
    REQUIRE(made(expected).starts_with(" = "));
    for (const PipelineSchedule schedule :
         {PipelineSchedule::one_forward_one_backward, PipelineSchedule::zero_bubble}) {
      const std::string found = cause_of(searched_step(4, 1, schedule), 4, {name, largest});
      CHECK(found_in(found).starts_with(" in micro batch 0: %"));
      CHECK(made(found) == made(expected));
    }
    const std::string of_experts =
        cause_of(searched_step(2, 2, PipelineSchedule::one_forward_one_backward), 4, {name, largest});
    CHECK(made(of_experts).substr(0, made(of_experts).find(',')) == made(expected).substr(0, made(expected).find(',')));
  }
}

}  // namespace lancet
