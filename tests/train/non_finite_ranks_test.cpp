// A bad value on one of several ranks: all ranks decide and report the same.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <map>

#include "train/support.h"

namespace lancet {
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
  const Status status = comm::run_inproc(ranks, [&](comm::Communicator& world) -> Status {
    BadBatch batches(config, world, 1, 1, value);
    LANCET_ASSIGN(const auto trainer,
                  train::Trainer::create(config, world, {.local_ranks = ranks, .batches = &batches}));
    if (world.rank() == bad) batches.spoil(*trainer);
    return body(*trainer, batches, world.rank());
  });
  INFO((status.ok() ? "" : status.error().message));
  REQUIRE(status.ok());
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

}  // namespace lancet
