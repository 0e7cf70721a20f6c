// The order of events of a run:
// 1. Rank 0 locks the run folder; then the ranks agree where to start (resume_point.h).
// 2. The checkpoints of the start are tried in turn: open one, adapt the config, make a trainer (which profiles and
//    plans), load the tensors. If one is damaged, the next older one follows. A run from scratch only makes a trainer.
// 3. Rank 0 writes config.json and plan.ir, opens the records and logs the banner.
// 4. The loop: evaluate if it is due, run a step, and sum over the ranks (step_end) if one must stop, if a save is due
//    and if the save under way can advance. A due save begins, and the step is recorded and logged.
// 5. After the last step: averages, the end of the last save, a sample of text. A run that is stopped saves and returns
//    an error with ExitCode::saved.
// All decisions that change the ranks' common path are sums or broadcasts; no rank decides alone.
#include <fmt/format.h>

#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "lancet/world/emulated_world.h"
#include "lancet/base/clock.h"
#include "lancet/base/hash.h"
#include "lancet/base/log.h"
#include "lancet/base/shown.h"
#include "lancet/ir/plan.h"
#include "lancet/world/agree.h"
#include "lancet/data/batches.h"
#include "lancet/train/learning_rate.h"
#include "lancet/train/trainer.h"
#include "lancet/run/run_folder.h"
#include "lancet/run/saver.h"
#include "lancet/run/resume_point.h"

namespace lancet::train {
namespace {

// Averages over the steps of the run without the first, which warms up caches.
class Averages {
 public:
  void add(const run::StepRecord& record) {
    if (first_) {
      first_ = false;
      return;
    }
    ++steps_;
    ms_ += record.step_ms;
    exposed_ += record.exposed_ms;
    tokens_ += record.tokens_per_s * record.step_ms;
    predicted_ = record.predicted_ms.value_or(0);
  }
  std::string line() const {
    if (steps_ == 0) return "";
    return fmt::format("average over {} steps: {:.1f} ms a step, {:.0f} tok/s, exposed {:.1f} ms", steps_, ms_ / steps_,
                       tokens_ / ms_, exposed_ / steps_);
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
  double predicted_ = 0;  // ms of a step; 0: not predicted
};

class Run {
 public:
  Run(const config::Config& config, comm::Communicator& world, const TrainerOptions& options)
      : asked_(config), config_(config), world_(world), options_(options) {}

  // After an error that the ranks have not agreed on, messages may still be under way to or from this rank's memory, so
  // its owners are released and never destroyed (communicator.h). Nor does the error wait for the disk of a save.
  Status operator()() {
    Status status;
    try {
      status = run();
    } catch (...) {
      release();
      throw;
    }
    if (!status.ok() && !status.error().agreed) release();
    return status;
  }

 private:
  void release() {
    static_cast<void>(trainer_.release());
    static_cast<void>(saver_.release());
  }

  Status run() {
    LANCET_TRY(world::broadcast_status(world_, take_folder(), 0));  // first: no other run changes what is found there
    LANCET_ASSIGN(const run::ResumePoint start,
                  run::find_resume_point(asked_, {options_.resume, options_.init_from}, world_));
    LANCET_TRY(begin(start));
    LANCET_TRY(world::broadcast_status(world_, open_folder(start), 0));
    LANCET_ASSIGN(const bool evaluated, world::any(world_, is_rank0() && folder_->has_held_out()));
    if (evaluated) evaluated_step_ = position_.step;
    log::info("{}", trainer_->banner());
    log::info("run        {}: config.json (every field, resolved), plan.ir, metrics.jsonl", config_.log.run_dir);
    announce(start);
    saver_ = std::make_unique<run::Saver>(config_, world_, trainer_->store(), files());
    LANCET_TRY(saver_->reserve());
    for (;;) {
      if (evaluation_is_due()) {
        LANCET_ASSIGN(const bool stopped, named("the evaluation after", evaluate()));
        if (stopped) return leave();
      }
      if (position_.step >= config_.train.steps) break;
      LANCET_ASSIGN(const bool stop, step());
      if (stop) return leave();
    }
    LANCET_TRY(check_folder());
    for (const std::string& line : {averages_.line(), averages_.surprise()})
      if (!line.empty()) log::info("{}", line);
    LANCET_TRY(named("saving", saver_->finish()));
    if (const auto& failure = saver_->last_failure())
      return Error{ExitCode::data, "the run ended, but its last checkpoint was not saved: " + failure->message, true};
    LANCET_ASSIGN(const bool stopped, sample());
    return stopped ? leave() : Status();
  }

  // Runs, saves, records and traces one step. True if the run must stop after it.
  Result<bool> step() {
    auto record = trainer_->step(position_.step);
    if (!record.ok()) {
      if (record.error().code != ExitCode::numerical) return record.error();
      report(trainer_->last_record());
      if (record.error().agreed) LANCET_TRY(saver_->finish());  // the save under way is still valid
      return record.error();
    }
    count(*record);
    LANCET_ASSIGN(bool stop, named("the end of", step_end()));
    stop = stop && position_.step < config_.train.steps;
    if ((stop && can_save()) || save_is_due()) LANCET_TRY(named("saving", save(&*record, stop)));
    report(*record);
    if (position_.skips_in_a_row >= config_.train.max_skips) return fail_after_skips();
    if (!stop && position_.step == config_.log.trace) LANCET_TRY(trace());
    return stop;
  }

  // Adds the phase and the step to a communication error, since messages between steps belong to no instruction that
  // the error could name.
  template <class T>
  Result<T> named(std::string_view what, Result<T> result) const {
    if (result.ok() || result.error().code != ExitCode::communication) return result;
    Error error = result.error();
    error.message = fmt::format("{} step {}: {}", what, position_.step, error.message);
    return error;
  }

  // Collective: starts from the first whole checkpoint of start.folders, or from scratch. Data error: none is whole.
  Status begin(const run::ResumePoint& start) {
    auto tokenizer = data::tokenizer_of_training(asked_);
    LANCET_TRY(world::agree(world_, tokenizer.ok() ? Status() : Status(tokenizer.error())));
    tokenizer_ = *std::move(tokenizer);
    if (start.kind == run::ResumePoint::Kind::from_scratch) return make_trainer();
    Error damage;
    for (const std::filesystem::path& folder : start.folders) {
      LANCET_ASSIGN(const bool begun, begin_at(folder, start.kind, damage));
      if (begun) return {};
      if (is_rank0() && start.folders.size() > 1) log::warn("not whole, left out: {}", damage.message);
    }
    if (start.folders.size() > 1 || !start.asked)
      damage.message = fmt::format(
          "expected a whole checkpoint among the {} in {}, found none; to start from scratch, rename that "
          "folder. The last one: {}",
          start.folders.size(), start.folders[0].parent_path().string(), damage.message);
    return damage;
  }

  // False, with the error in `damage`, if the checkpoint is not whole.
  Result<bool> begin_at(const std::filesystem::path& folder, run::ResumePoint::Kind kind, Error& damage) {
    auto found = checkpoint::Checkpoint::open(folder, files());
    if (const Status all = world::agree(world_, found.ok() ? Status() : Status(found.error())); !all.ok()) {
      if (!all.error().agreed || all.error().code != ExitCode::data) return all.error();
      damage = all.error();
      return false;
    }
    notes_.clear();
    const int ranks = world_.size();
    auto adapted = run::adapt(asked_, *found, kind, ranks, notes_);
    LANCET_TRY(world::agree(world_, adapted.ok() ? Status() : Status(adapted.error())));
    const data::TokenizerId saved{found->manifest().tokenizer_hash, folder.string()};
    LANCET_TRY(world::agree(world_, data::check_same(saved, tokenizer_)));
    config_ = *std::move(adapted);
    position_ = {};
    if (kind == run::ResumePoint::Kind::resume) position_ = run::position_of(found->manifest(), config_, ranks);
    LANCET_TRY(make_trainer());
    const run::LoadScope take = kind == run::ResumePoint::Kind::resume ? run::LoadScope::all : run::LoadScope::weights;
    const Status loaded =
        world::agree(world_, run::load_tensors(trainer_->store(), *found, world_.rank(), ranks, take));
    if (loaded.ok()) {
      const bool other_plan = found->manifest().plan != plan_hash_ && found->manifest().ranks == ranks;
      if (kind == run::ResumePoint::Kind::resume && other_plan)
        notes_.push_back("another plan than the one saved under: sums may round otherwise in the last bits");
      if (tokenizer_.hash == 0) tokenizer_ = saved;
      from_ = folder;
      from_step_ = found->manifest().step;
      saved_on_ = found->manifest().ranks;
      if (kind == run::ResumePoint::Kind::resume) saved_step_ = from_step_;
      return true;
    }
    if (!loaded.error().agreed || loaded.error().code != ExitCode::data) return loaded.error();
    damage = loaded.error();
    return false;
  }

  Status make_trainer() {
    trainer_.reset();  // the memory need not hold two trainers
    LANCET_ASSIGN(trainer_, Trainer::create(config_, world_, trainer_options()));
    plan_hash_ = hex(hash64(ir::print(trainer_->executor().plan())));
    return {};
  }

  void announce(const run::ResumePoint& start) const {
    if (start.kind == run::ResumePoint::Kind::resume)
      log::info("resume     after step {} from {}, saved on {} rank{}", position_.step, from_.string(), saved_on_,
                saved_on_ == 1 ? "" : "s");
    if (start.kind == run::ResumePoint::Kind::weights)
      log::info("weights    of step {} from {}", from_step_, from_.string());
    if (start.kind == run::ResumePoint::Kind::resume && !options_.init_from.empty())
      log::info("note: --init-from {} was not needed: the run resumes from {}, its own checkpoint", options_.init_from,
                from_.string());
    for (const std::string& note : notes_) log::info("           {}", note);
    const config::Train& train = config_.train;
    if (train.dtype == DType::f32 && !train.master_weights)
      log::info("note: train.master_weights=false changes nothing in fp32, whose weights are the masters themselves");
    announce_saving();
    if (!is_rank0() || start.kind != run::ResumePoint::Kind::resume) return;
    if (position_.step >= train.steps)
      log::info("nothing to do: {} of {} steps done; raise train.steps", position_.step, train.steps);
    if (train.stop_after > 0 && train.stop_after <= position_.step)
      log::warn("train.stop_after: the run resumes after step {1}, so it does not stop after step {0}",
                train.stop_after, position_.step);
  }

  void announce_saving() const {
    const config::Train& train = config_.train;
    if (!can_save()) {
      log::info("saving     nothing: the ranks are emulated");
    } else if (!train.saves()) {
      log::info("saving     nothing but where the run is stopped (train.save_interval = 0, train.save_minutes = 0)");
    } else {
      const std::string when = train.save_interval > 0 ? fmt::format("{} steps", train.save_interval)
                                                       : fmt::format("{} minutes", train.save_minutes);
      log::info("saving     every {} and at the end into {}/checkpoints, {} kept{}", when, config_.log.run_dir,
                train.keep_last == 0 ? "all" : fmt::format("the newest {}", train.keep_last),
                train.keep_every > 0 ? fmt::format(", and those of every {} steps", train.keep_every) : "");
    }
  }

  TrainerOptions trainer_options() {
    TrainerOptions options = options_;
    options.sample_offset = position_.sample_offset;
    options.interrupted = [this] { return interrupted(); };
    return options;
  }
  checkpoint::FileSystem& files() const { return options_.files ? *options_.files : checkpoint::disk(); }

  void count(run::StepRecord& record) {
    ++position_.step;
    position_.tokens += run::rows_of(config_, world_.size()) * config_.train.seq_len;
    position_.skipped_steps += record.skipped;
    record.skipped_steps = position_.skipped_steps;
    position_.skips_in_a_row = record.skipped ? position_.skips_in_a_row + 1 : 0;
  }

  // Collective. Checkpoints of finite steps remain, since skipped steps are not saved.
  Error fail_after_skips() {
    if (Status saved = saver_->finish(); !saved.ok()) return std::move(saved).error();
    return {ExitCode::numerical,
            fmt::format("step {}: expected a finite loss and gradient norm in one of {} steps in a row "
                        "(train.max_skips), found none: the model does not recover; --resume continues from an "
                        "earlier checkpoint",
                        position_.step, position_.skips_in_a_row),
            true};
  }

  // Why this rank would stop now, at any step; empty: no reason.
  std::string why_interrupted() const {
    const config::Train& train = config_.train;
    const int signal = options_.stop ? options_.stop->load() : 0;
    if (signal != 0) return fmt::format("SIG{}", ::sigabbrev_np(signal));
    if (train.max_minutes > 0 && minutes_since(begun_) >= train.max_minutes) return "train.max_minutes";
    if (options_.interrupted && options_.interrupted()) return "requested";
    return "";
  }
  std::string why_stop() const {
    if (std::string why = why_interrupted(); !why.empty()) return why;
    const std::int64_t after = config_.train.stop_after;
    return after > 0 && position_.step == after ? "train.stop_after" : "";
  }
  bool interrupted() const { return !why_interrupted().empty(); }

  static double minutes_since(std::chrono::steady_clock::time_point start) { return seconds_since(start) / 60; }
  // Rank 0's clock decides for all, so that they save after the same step.
  bool save_time() const {
    const config::Train& train = config_.train;
    return is_rank0() && train.save_interval == 0 && train.save_minutes > 0 &&
           minutes_since(saved_at_) >= train.save_minutes;
  }

  // Collective, at the end of a step: true if any rank would stop. Notes a save that is due and advances one under way.
  Result<bool> step_end() {
    std::array<float, 3> sums{why_stop().empty() ? 0.f : 1.f, saver_->progress(), save_time() ? 1.f : 0.f};
    LANCET_TRY(world_.all_reduce_sum(sums));
    LANCET_TRY(saver_->proceed(sums[1]));
    const config::Train& train = config_.train;
    owes_save_ |= sums[2] > 0 || (train.save_interval > 0 && position_.step % train.save_interval == 0);
    return sums[0] > 0;
  }

  // An emulated run holds the experts of one rank alone, so it has no whole model to save.
  bool can_save() const { return config_.comm.transport != config::Transport::emulated; }
  // A model whose steps are being skipped may be beyond recovery, so it replaces no checkpoint before the run's end.
  bool save_is_due() const {
    if (!can_save() || !config_.train.saves()) return false;
    return position_.step == config_.train.steps ? position_.skips_in_a_row < config_.train.max_skips
                                                 : owes_save_ && position_.skips_in_a_row == 0 && !saver_->postponed();
  }

  // record: of this step; receives save_ms. last: the run stops after it, so it may wait for the disk.
  Status save(run::StepRecord* record, bool last) {
    LANCET_TRY(check_folder());
    const auto start = std::chrono::steady_clock::now();
    const double lr = learning_rate(config_.train, position_.step - 1);
    auto manifest = run::manifest_of(config_, asked_, position_, world_.size(), lr, plan_hash_);
    manifest.tokenizer_hash = tokenizer_.hash;
    LANCET_ASSIGN(const bool begun, saver_->begin(manifest, last || position_.step == config_.train.steps));
    if (begun) {
      saved_step_ = position_.step;
      saved_at_ = start;
      owes_save_ = false;
    }
    const std::chrono::duration<double, std::milli> taken = std::chrono::steady_clock::now() - start;
    if (record) record->save_ms = taken.count();
    return {};
  }

  // Saves this step unless it is saved already, and stops the run.
  Status leave() {
    LANCET_TRY(check_folder());
    if (!can_save())
      return Error{ExitCode::data,
                   fmt::format("stopped after step {}, and it was not saved: the ranks are emulated", position_.step),
                   true};
    if (saved_step_ != position_.step) LANCET_TRY(named("saving", save(nullptr, true)));
    LANCET_TRY(named("saving", saver_->finish()));
    const std::string mine = why_stop(), why = mine.empty() ? "another rank's signal" : mine;
    if (const auto& failure = saver_->last_failure())
      return Error{
          ExitCode::data,
          fmt::format("stopped after step {} ({}), and it was not saved: {}", position_.step, why, failure->message),
          true};
    return Error{ExitCode::saved,
                 fmt::format("saved and stopped after step {} of {} ({}); the same command resumes from there",
                             position_.step, config_.train.steps, why),
                 true};
  }

  bool is_rank0() const { return world_.rank() == 0; }

  Status take_folder() {
    if (!is_rank0()) return {};
    LANCET_ASSIGN(run::RunFolder folder, run::RunFolder::take(asked_));
    folder_.emplace(std::move(folder));
    return {};
  }

  // Collective: a run whose folder is gone ends before it writes to a folder of that name that is another run's.
  Status check_folder() {
    return world::broadcast_status(world_, is_rank0() ? folder_->check_in_place() : Status(), 0);
  }

  Status open_folder(const run::ResumePoint& start) {
    if (!is_rank0()) return {};
    const bool resumes = start.kind == run::ResumePoint::Kind::resume;
    return folder_->begin(files(), config_, trainer_->executor().plan(), trainer_->memory_json(),
                          resumes ? std::optional(position_.step) : std::nullopt);
  }

  void report(const run::StepRecord& record) {
    averages_.add(record);
    if (!is_rank0()) return;
    const std::int64_t steps = config_.train.steps;
    const bool has_line = record.step % config_.log.interval == 0 || record.step == 1 || record.step == steps;
    const auto layers = trainer_->last_layers();
    const std::size_t counts = layers.empty() ? 0 : layers.size() * layers[0].expert_tokens.size();
    folder_->record(record, layers, has_line || counts <= run::most_counts);
    if (has_line) log::info("{}", run::step_line(record, steps, averages_.seconds(steps - record.step)));
  }

  Status trace() {
    LANCET_ASSIGN(const std::string text, trainer_->trace());
    if (is_rank0()) folder_->trace(text);
    return {};
  }

  // Also true after a resume, if the records lack the evaluation of the step.
  bool evaluation_is_due() const {
    if (trainer_->evaluation_sequences() == 0 || evaluated_step_ == position_.step) return false;
    const std::int64_t interval = config_.train.eval_interval;
    return position_.step >= config_.train.steps ||
           (interval > 0 && position_.step > 0 && position_.step % interval == 0);
  }

  // True if the run must stop.
  Result<bool> evaluate() {
    LANCET_ASSIGN(const std::optional<double> loss, trainer_->evaluate());
    if (!loss) {
      if (!from_.empty() && position_.step == from_step_)  // else every run of this length would end here
        log::warn(
            "step {}: the evaluation had not ended when the run was stopped, and the run does not continue without "
            "it; data.eval_sequences and train.max_minutes set how long either takes",
            position_.step);
      return true;
    }
    log::info("step {} | held-out loss {:.4f} of {} sequences | perplexity {:.2f}", position_.step, unsigned_nan(*loss),
              trainer_->evaluation_sequences(), unsigned_nan(std::exp(*loss)));
    evaluated_step_ = position_.step;
    if (is_rank0()) folder_->held_out(position_.step, *loss);
    return position_.step < config_.train.steps ? world::any(world_, interrupted()) : false;
  }

  // True if the run must stop.
  Result<bool> sample() {
    const std::optional<data::Tokenizer>& tokenizer = trainer_->tokenizer();
    if (config_.train.sample_tokens == 0 || !tokenizer || !can_save()) return false;  // no whole model
    LANCET_ASSIGN(std::vector<std::int32_t> prompt, tokenizer->encode(config_.train.sample_prompt));
    if (prompt.empty()) prompt.push_back(std::max(tokenizer->eos(), 0));
    LANCET_ASSIGN(const auto ids, trainer_->generate(prompt, config_.train.sample_tokens));
    if (!ids) return true;
    LANCET_ASSIGN(const std::string text, tokenizer->decode(*ids));
    log::info("sample: {}", data::replace_invalid_utf8(text));
    return false;
  }

  const std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
  const config::Config asked_;  // the user's config
  config::Config config_;       // as it runs
  data::TokenizerId tokenizer_;  // of the tokens; if they name none, of the checkpoint that the run started from
  comm::Communicator& world_;
  const TrainerOptions& options_;
  run::Position position_;
  std::vector<std::string> notes_;
  std::filesystem::path from_;  // the checkpoint that the run started from
  std::int64_t from_step_ = 0;  // its step
  int saved_on_ = 0;            // its number of ranks
  std::int64_t saved_step_ = -1;      // the last step whose save began, or after which the run resumed
  std::int64_t evaluated_step_ = -1;  // the last step whose held-out loss is known
  std::chrono::steady_clock::time_point saved_at_ = begun_;
  bool owes_save_ = false;  // a save was due and has not begun
  std::optional<run::RunFolder> folder_;
  std::unique_ptr<Trainer> trainer_;
  std::string plan_hash_;         // of the trainer's plan
  std::unique_ptr<run::Saver> saver_;  // declared after the tensors that it saves
  Averages averages_;
};

}  // namespace

Status train(const config::Config& config, comm::Communicator& world, const TrainerOptions& options) {
  world::DeclaredTimes declared;
  LANCET_ASSIGN(const auto emulated, world::emulated_world(config, world, &declared));
  const Status status = Run(config, emulated ? *emulated : world, options)();
  if (emulated && status.ok())
    log::info("emulated   {} declared {:.3f} ms of all-to-alls and {:.3f} ms of all-reduces in all calls",
              config.comm.network, declared.all_to_alls.load(), declared.all_reduces.load());
  return status;
}

}  // namespace lancet::train
