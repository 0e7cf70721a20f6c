// The parts of a run, which train.cpp puts together: what they share, its start, its saves and its records.
#pragma once

#include <fmt/format.h>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lancet/base/clock.h"
#include "lancet/base/hash.h"
#include "lancet/base/log.h"
#include "lancet/base/shown.h"
#include "lancet/comm/collect.h"
#include "lancet/config/hugging_face.h"
#include "lancet/data/batches.h"
#include "lancet/ir/plan.h"
#include "lancet/run/metrics.h"
#include "lancet/run/resume_point.h"
#include "lancet/run/run_folder.h"
#include "lancet/run/saver.h"
#include "lancet/runtime/emulated_device.h"
#include "lancet/train/trainer.h"

namespace lancet::train {

// What the parts share.
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
  run::ResumeRequest resume_request() const {
    const bool is_given = !options.resume.empty() || !options.init_from.empty();
    return {options.resume, is_given ? options.init_from : asked.model.from};
  }
  checkpoint::FileSystem& files() const { return options.files ? *options.files : checkpoint::disk(); }
  bool can_save() const { return config.holds_model(); }
  void note_plan() { plan_hash = hex(hash64(ir::print(trainer->executor().plan()))); }
};

// Why this rank would end the run before its last step.
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

// Where a run begins: tries the checkpoints of the start in turn, and makes the trainer.
class RunStart {
 public:
  RunStart(RunState& state, const StopReason& stop) : state_(state), stop_(stop) {}

  // Collective: starts from the first whole checkpoint of start.folders, or from scratch. Sets the state's config,
  // position and trainer. If one is removed meanwhile, looks for the start again. Data error: none is whole.
  Status begin(const run::ResumePoint& start);
  void announce(const run::ResumePoint& start) const;
  // True while the run is at the step of the checkpoint that it started from.
  bool is_at_start() const { return !from_.empty() && state_.position.step == from_step_; }

 private:
  Status begin_from(const std::filesystem::path& folder);
  Result<bool> begin_at(const std::filesystem::path& folder, run::ResumePoint::Kind kind, Error& damage);
  Status make_trainer();
  void announce_saving() const;

  RunState& state_;
  const StopReason& stop_;
  std::vector<std::string> notes_;
  std::filesystem::path from_;  // the checkpoint that the run started from
  std::int64_t from_step_ = 0;  // its step
  int saved_on_ = 0;            // its number of ranks
};

// When a run saves, and the saver that does it.
class RunSaving {
 public:
  explicit RunSaving(const RunState& state) : state_(state) {}

  // Collective, once the trainer exists. resumes: the checkpoint of the state's step is on the disk.
  Status begin(bool resumes) {
    if (resumes) saved_step_ = state_.position.step;
    saver_ = std::make_unique<run::Saver>(state_.config, state_.world, state_.trainer->store(), state_.files());
    return saver_->reserve();
  }

  // This rank's terms of the sums that proceed() needs, at the end of a step.
  float progress() const { return saver_->progress(); }
  // Rank 0's clock decides for all, so that they save after the same step.
  bool is_time() const {
    const config::Train& train = state_.config.train;
    return state_.is_rank0() && train.save_interval == 0 && train.save_minutes > 0 &&
           seconds_since(saved_at_) / 60 >= train.save_minutes;
  }
  // Collective: advances the save under way and notes one that is due. progress: summed over the ranks; is_time: on any
  // rank.
  Status proceed(float progress, bool is_time) {
    LANCET_TRY(saver_->proceed(progress));
    const config::Train& train = state_.config.train;
    owes_save_ |= is_time || (train.save_interval > 0 && state_.position.step % train.save_interval == 0);
    return {};
  }
  // True if this step is to be saved. A model whose steps are being skipped may be beyond recovery, so it replaces no
  // checkpoint before the run's end.
  bool is_due() const {
    const config::Train& train = state_.config.train;
    const run::Position& position = state_.position;
    if (!state_.can_save() || !train.saves()) return false;
    return position.step == train.steps ? position.skips_in_a_row < train.max_skips
                                        : owes_save_ && position.skips_in_a_row == 0 && !saver_->postponed();
  }

  // Collective: begins to save this step. record: of this step; receives save_ms. last: the run stops after it, so it
  // may wait for the disk.
  Status save(run::StepRecord* record, bool last) {
    const auto start = std::chrono::steady_clock::now();
    const config::Config& config = state_.config;
    const double lr = learning_rate(config.train, state_.position.step - 1);
    auto manifest = run::manifest_of(config, state_.asked, state_.position, state_.world.size(), lr, state_.plan_hash);
    manifest.tokenizer_hash = state_.tokenizer.hash;
    LANCET_ASSIGN(const bool begun, saver_->begin(manifest, last || state_.position.step == config.train.steps));
    if (begun) {
      saved_step_ = state_.position.step;
      saved_at_ = start;
      owes_save_ = false;
    }
    const std::chrono::duration<double, std::milli> taken = std::chrono::steady_clock::now() - start;
    if (record) record->save_ms = taken.count();
    return {};
  }
  bool is_saved() const { return saved_step_ == state_.position.step; }
  bool is_under_way() const { return saver_ && saver_->is_under_way(); }
  Status finish() { return saver_->finish(); }
  const std::optional<Error>& last_failure() const { return saver_->last_failure(); }
  // Leaves the saver to messages that may still be under way: it is never destroyed. A commit under way ends first.
  void release() {
    if (saver_) saver_->finish_commit();
    static_cast<void>(saver_.release());
  }

 private:
  const RunState& state_;
  std::unique_ptr<run::Saver> saver_;
  std::int64_t saved_step_ = -1;  // the last step whose save began, or after which the run resumed
  std::chrono::steady_clock::time_point saved_at_ = std::chrono::steady_clock::now();
  bool owes_save_ = false;  // a save was due and has not begun
};

// Averages over the steps of the run without the first, which warms up caches.
class Averages {
 public:
  void add(const run::StepRecord& record) {
    if (std::exchange(first_, false)) return;
    ++steps_;
    ms_ += record.step_ms;
    exposed_ += record.exposed_ms;
    tokens_ += record.tokens_per_s * record.step_ms;
    predicted_ = record.predicted_ms.value_or(0);
    late_ += record.late_pct.value_or(0);
  }
  std::string line() const {
    if (steps_ == 0) return "";
    return fmt::format("average over {} steps: {:.1f} ms a step, {:.0f} tok/s, exposed {:.1f} ms", steps_, ms_ / steps_,
                       tokens_ / ms_, exposed_ / steps_);
  }
  // A line if the machine could not keep up with an emulated device; else empty.
  std::string lateness() const {
    if (steps_ == 0 || late_ / steps_ <= runtime::EmulatedDevice::most_late_pct) return "";
    return fmt::format(
        "messages started late by {:.1f}% of a step, more than {}%: this machine does not keep up with the emulated "
        "device, so times do not hold; raise emulated.dilation",
        late_ / steps_, runtime::EmulatedDevice::most_late_pct);
  }
  // A line if steps took much longer than predicted; else empty.
  std::string surprise() const {
    if (steps_ == 0 || predicted_ <= 0 || ms_ / steps_ < far_off * predicted_) return "";
    return fmt::format(
        "steps took {:.1f} times the predicted {:.1f} ms: the machine or its network is busier or slower than "
        "when it was profiled (lancet profile --renew all measures again), or more threads compute than it has cores",
        ms_ / steps_ / predicted_, predicted_);
  }
  // The expected seconds of `steps` more steps; empty if none was timed yet.
  std::optional<double> seconds(std::int64_t steps) const {
    if (steps == 0) return 0;
    return steps_ > 0 ? std::optional(ms_ / steps_ * 1e-3 * double(steps)) : std::nullopt;
  }

 private:
  static constexpr double far_off = 1.5;  // measured over predicted
  bool first_ = true;
  double steps_ = 0, ms_ = 0, exposed_ = 0, tokens_ = 0;
  double late_ = 0;       // percent
  double predicted_ = 0;  // ms of a step; 0: not predicted
};

// What a run writes to its folder and logs about its steps. Only rank 0 has a folder.
class RunRecords {
 public:
  explicit RunRecords(const RunState& state) : state_(state) {}

  // Creates and locks the folder; nothing on other ranks, as for open().
  Status take_folder() {
    if (!state_.is_rank0()) return {};
    if (config::is_hugging_face(state_.asked.log.run_dir))
      return config_error(
          fmt::format("log.run_dir (--run-dir): expected a folder for this run, found a model of "
                      "Hugging Face's format, whose files it would replace, in {}",
                      state_.asked.log.run_dir));
    LANCET_ASSIGN(run::RunFolder folder, run::RunFolder::take(state_.asked));
    folder_.emplace(std::move(folder));
    return {};
  }
  // Writes config.json and plan.ir and opens the records, once the trainer exists.
  Status open(bool resumes) {
    if (!state_.is_rank0()) return {};
    LANCET_TRY(folder_->begin(state_.files(), state_.config, state_.trainer->executor().plan(),
                              state_.trainer->memory_json(),
                              resumes ? std::optional(state_.position.step) : std::nullopt));
    return ir::write_later_stages(std::filesystem::path(state_.config.log.run_dir) / "plan.ir",
                                  state_.trainer->stage_plans());
  }
  // True on rank 0 if the records hold the held-out loss of the step after which the run resumes.
  bool has_held_out() const { return state_.is_rank0() && folder_->has_held_out(); }

  // Collective: a run whose folder is gone ends before it writes to a folder of that name that is another run's.
  Status check_folder() const {
    return comm::broadcast_status(state_.world, state_.is_rank0() ? folder_->check_in_place() : Status(), 0);
  }

  // A step whose norm is not known yet is recorded when completed() brings it.
  void step(const run::StepRecord& record) {
    const auto layers = state_.trainer->last_layers();
    if (record.is_norm_known) return write(record, layers);
    open_.emplace(Open{record, {layers.begin(), layers.end()}, {}});
    for (const run::LayerLoad& layer : layers)
      open_->expert_tokens.emplace_back(layer.expert_tokens.begin(), layer.expert_tokens.end());
    for (std::size_t i = 0; i < layers.size(); ++i) open_->layers[i].expert_tokens = open_->expert_tokens[i];
  }
  // grad_norm: of the step that waits for it, if one does; empty if it stays unknown.
  void completed(std::optional<double> grad_norm) {
    if (!open_) return;
    const Open complete = *std::exchange(open_, {});
    run::StepRecord record = complete.record;
    record.is_norm_known = grad_norm.has_value();
    if (grad_norm) record.grad_norm = *grad_norm;
    write(record, complete.layers);
  }
  // Replaces plan.ir by the trainer's plan.
  void plan() {
    if (state_.is_rank0()) folder_->plan(state_.trainer->executor().plan());
  }
  void trace(const std::string& text) {
    if (state_.is_rank0()) folder_->trace(text);
  }
  void held_out(double loss) {
    const std::int64_t step = state_.position.step;
    log::info("step {} | held-out loss {:.4f} of {} sequences | perplexity {:.2f}", step, unsigned_nan(loss),
              state_.trainer->evaluation_sequences(), std::exp(unsigned_nan(loss)));
    if (!state_.is_rank0()) return;
    if (!std::isfinite(loss) && step < state_.config.train.steps)
      log::warn("step {}: expected a finite held-out loss, found {}", step, unsigned_nan(loss));
    folder_->held_out(step, loss);
  }
  // Logs the averages over the run's steps.
  void log_averages() const {
    for (const std::string& line : {averages_.line(), averages_.lateness(), averages_.surprise()})
      if (!line.empty()) log::info("{}", line);
  }

 private:
  // A step that waits for its norm, with what the trainer keeps until the next one.
  struct Open {
    run::StepRecord record;
    std::vector<run::LayerLoad> layers;
    std::vector<std::vector<double>> expert_tokens;  // by layer
  };
  void write(const run::StepRecord& record, std::span<const run::LayerLoad> layers) {
    averages_.add(record);
    if (!state_.is_rank0()) return;
    const std::int64_t steps = state_.config.train.steps;
    const bool has_line = record.step % state_.config.log.interval == 0 || record.step == 1 || record.step == steps;
    const std::size_t counts = layers.empty() ? 0 : layers.size() * layers[0].expert_tokens.size();
    folder_->record(record, layers, has_line || counts <= run::most_counts);
    if (!has_line) return;
    const auto left = averages_.seconds(steps - record.step);
    log::info("{}", run::step_line(record, steps, left ? std::optional(*left * state_.config.dilation()) : left));
  }

  const RunState& state_;
  std::optional<Open> open_;
  std::optional<run::RunFolder> folder_;
  Averages averages_;
};

}  // namespace lancet::train
