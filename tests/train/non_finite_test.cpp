// A step whose loss or norm is not finite names the first such tensor and keeps the weights.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "lancet/checkpoint/checkpoint.h"
#include "log_capture.h"
#include "routers.h"
#include "temporary_folder.h"
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
  const Status status = comm::run_inproc(ranks, [&](comm::Communicator& world) -> Status {
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
  });
  REQUIRE(status.ok());
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
  auto trainer = train::Trainer::create(config, *world);
  REQUIRE(trainer.ok());
  REQUIRE((*trainer)->step(0).ok());
  spoil(**trainer, "ln_f.bias", 5);
  std::map<std::string, std::vector<std::byte>> before;
  const auto bytes = [](const runtime::NamedTensor& tensor) {
    const auto span = tensor.memory.span<std::byte>();
    return std::vector<std::byte>(span.begin(), span.end());
  };
  for (const auto& [name, tensor] : (*trainer)->store().all()) before[name] = bytes(tensor);
  const auto record = (*trainer)->step(1);
  REQUIRE_FALSE(record.ok());
  CHECK(first_bad(record.error()) == "rank 0 in micro batch 0: @ln_f.bias : f32[32], element 5 is nan");
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
  const auto world = comm::make_self();
  auto trainer = train::Trainer::create(config, *world);
  REQUIRE(trainer.ok());
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
  const auto skipped = (*trainer)->step(1);
  REQUIRE(skipped.ok());
  CHECK(skipped->skipped);
  bias = sound;
  CHECK(contents() == before);
  const auto next = (*trainer)->step(2);
  REQUIRE(next.ok());
  CHECK_FALSE(next->skipped);
  CHECK(std::isfinite(next->grad_norm));
  CHECK(contents()["ln_f.bias"] != before.at("ln_f.bias"));
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

}  // namespace lancet
