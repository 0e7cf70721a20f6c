// RunState: what the parts of a run share.
#pragma once

#include <fmt/format.h>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <string>

#include "lancet/base/clock.h"
#include "lancet/base/hash.h"
#include "lancet/data/batches.h"
#include "lancet/ir/plan.h"
#include "lancet/run/resume_point.h"
#include "lancet/runtime/accelerator.h"
#include "lancet/runtime/emulated_device.h"
#include "lancet/train/trainer.h"

namespace lancet::train {

struct RunState {
  const config::Config asked;  // the user's config
  config::Config config;       // as it runs
  comm::Communicator& world;
  const TrainerOptions& options;
  data::TokenizerId tokenizer;  // of the tokens; if they name none, of the checkpoint that the run started from
  run::Position position;
  std::unique_ptr<Trainer> trainer;
  std::string plan_hash;  // of the trainer's plan

  RunState(const config::Config& config, comm::Communicator& world, const TrainerOptions& options)
      : asked(config), config(config), world(world), options(options) {}

  bool is_rank0() const { return world.rank() == 0; }
  checkpoint::FileSystem& files() const { return options.files ? *options.files : checkpoint::disk(); }
  bool can_save() const { return config.holds_model(); }
  void note_plan() { plan_hash = hex(hash64(ir::print(trainer->executor().plan()))); }
};

// StopReason: why this rank would end the run before its last step.

class StopReason {
 public:
  explicit StopReason(const RunState& state) : state_(state) {}

  // The reason to stop now, wherever the run is; empty: none.
  std::string now() const {
    const config::Train& train = state_.config.train;
    const TrainerOptions& options = state_.options;
    const int signal = options.stop ? options.stop->load() : 0;
    if (signal != 0) return fmt::format("SIG{}", ::sigabbrev_np(signal));
    if (train.max_minutes > 0 && seconds_since(begun_) / 60 >= train.max_minutes) return "train.max_minutes";
    if (options.interrupted && options.interrupted()) return "requested";
    return "";
  }
  // The reason to stop after the last step that was taken; empty: none.
  std::string after_step() const {
    if (std::string why = now(); !why.empty()) return why;
    const std::int64_t after = state_.config.train.stop_after;
    return after > 0 && state_.position.step == after ? "train.stop_after" : "";
  }

 private:
  const RunState& state_;
  const std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
};

// RankResources: a rank's share of a host, and where it computes.

struct RankResources {
  int threads = 1;                              // of the compute stream
  int local_ranks = 1;                          // ranks on this host
  runtime::Accelerator* accelerator = nullptr;  // null: the CPU
  runtime::EmulatedDevice* emulated = nullptr;  // null: the ranks compute
};

// TrainingData: the data that a rank trains on and is evaluated on.

class TrainingData {
 public:
  // replacement: takes the place of what the config names; may be null.
  explicit TrainingData(data::Batches* replacement) : replacement_(replacement) {}
  // sample_offset: data::SamplerOptions.
  Status open(const config::Config& config, int rank, int ranks, std::int64_t sample_offset) {
    if (replacement_) return {};
    LANCET_TRY(config::check_data(config));
    LANCET_ASSIGN(tokenizer_, data::load_tokenizer(config));
    data::TokenizerId expected;
    if (tokenizer_) expected = {tokenizer_->hash(), config.data.tokenizer};
    LANCET_ASSIGN(batches_, data::training_batches(config, expected, rank, ranks, sample_offset));
    LANCET_ASSIGN(expected, data::tokenizer_of_training(config));
    LANCET_ASSIGN(evaluation_, data::evaluation_batches(config, expected, rank, ranks));
    return {};
  }

  data::Batches& batches() { return replacement_ ? *replacement_ : *batches_; }
  const std::optional<data::Tokenizer>& tokenizer() const { return tokenizer_; }  // empty: the config names none
  const std::optional<data::Evaluation>& evaluation() const { return evaluation_; }

 private:
  data::Batches* const replacement_;
  std::optional<data::Tokenizer> tokenizer_;
  std::unique_ptr<data::Batches> batches_;
  std::optional<data::Evaluation> evaluation_;
};

}  // namespace lancet::train
