// The order of events of a run:
// 1. Rank 0 locks the run folder; then the ranks agree where to start (resume_point.h).
// 2. The checkpoints of the start are tried in turn: open one, adapt the config, make a trainer (which profiles and
//    plans), load the tensors. If one is damaged, the next older one follows. A run from scratch only makes a trainer
//    (RunStart).
// 3. Rank 0 writes config.json and plan.ir, opens the records (RunRecords) and logs the banner.
// 4. The loop: evaluate if it is due, run a step, read the next batch, and sum over the ranks (step_end) if one must
//    stop or cannot read, if a save is due and if the save under way can advance. A due save begins (RunSaving), and
//    the step is recorded and logged. A step that has left its end to the next one is completed before its weights are
//    read (settle), and recorded once its norm is known.
// 5. After the last step: averages, the end of the last save, a sample of text. A run that is stopped saves and returns
//    an error with ExitCode::saved, or the data error that stopped it.
// 6. After an error that all ranks share, they end the save that has begun.
// All decisions that change the ranks' common path are sums or broadcasts; no rank decides alone.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "lancet/base/log.h"
#include "lancet/base/shown.h"
#include "lancet/base/utf8.h"
#include "lancet/comm/collect.h"
#include "lancet/run/resume_point.h"
#include "lancet/run/stream_communicators.h"
#include "lancet/train/trainer.h"
#include "run_parts.h"

namespace lancet::train {
namespace {

class Run {
 public:
  Run(const config::Config& config, comm::Communicator& world, const TrainerOptions& options)
      : state_(config, world, options) {}

  // After an error that the ranks have agreed on, or of a rank that is alone, the save that has begun ends first: what
  // was trained is not lost. After another one, messages may still be under way to or from this rank's memory, so its
  // owners are released and never destroyed (communicator.h).
  Status operator()() {
    Status status;
    try {
      status = run();
    } catch (...) {
      end_after_error(false);
      throw;
    }
    if (!status.ok()) end_after_error(status.error().agreed);
    return status;
  }

 private:
  void end_after_error(bool agreed) {
    records_.completed(std::nullopt);  // what is known of the last step
    Status ended;
    if ((agreed || state_.world.size() == 1) && saving_.is_under_way()) {
      ended = records_.check_folder();  // in a folder that is another run's by now, nothing more is saved
      if (ended.ok()) ended = saving_.finish();
    }
    if (agreed && (ended.ok() || ended.error().agreed)) return;
    static_cast<void>(state_.trainer.release());
    saving_.release();
  }

  Status run() {
    comm::Communicator& world = state_.world;
    LANCET_TRY(comm::broadcast_status(world, records_.take_folder(), 0));  // first: no other run changes what is found
    LANCET_ASSIGN(const run::ResumePoint start,
                  run::find_resume_point(state_.asked, state_.resume_request(), world));
    const bool resumes = start.kind == run::ResumePoint::Kind::resume;
    LANCET_TRY(start_.begin(start));
    LANCET_TRY(comm::broadcast_status(world, records_.open(resumes), 0));
    LANCET_ASSIGN(const bool evaluated, comm::any(world, records_.has_held_out()));
    if (evaluated) evaluated_step_ = state_.position.step;
    log::info("{}", state_.trainer->banner());
    log::info("run        {}: config.json (every field, resolved), plan.ir, metrics.jsonl", state_.config.log.run_dir);
    start_.announce(start);
    LANCET_TRY(saving_.begin(resumes));
    for (;;) {
      if (evaluation_is_due()) {
        LANCET_ASSIGN(const bool stopped, named("the evaluation after", evaluate()));
        if (stopped) return leave();
      }
      if (state_.position.step >= state_.config.train.steps) break;
      LANCET_ASSIGN(const bool stop, step());
      if (stop) return leave();
    }
    LANCET_TRY(records_.check_folder());
    records_.log_averages();
    LANCET_TRY(named("saving", saving_.finish()));
    if (const auto& failure = saving_.last_failure())
      return Error{ExitCode::data, "the run ended, but its last checkpoint was not saved: " + failure->message, true};
    if (!std::isfinite(held_out_))
      return Error{ExitCode::numerical,
                   fmt::format("step {}: expected a finite held-out loss, found {}", state_.position.step,
                               unsigned_nan(held_out_)),
                   true};
    LANCET_ASSIGN(const bool stopped, sample());
    return stopped ? leave() : Status();
  }

  // Runs, saves, records and traces one step. True if the run must stop after it.
  Result<bool> step() {
    Trainer& trainer = *state_.trainer;
    const config::Config& config = state_.config;
    const bool last = state_.position.step + 1 >= config.train.steps;
    auto record = trainer.step(state_.position.step, last ? Trainer::Border::closed : Trainer::Border::open);
    if (!record.ok()) {
      if (record.error().code == ExitCode::data && record.error().agreed && state_.position.step > 0) {
        records_.completed(trainer.norm_before());
        unread_ = record.error();
        return true;
      }
      if (record.error().code != ExitCode::numerical) return record.error();
      const bool is_of_step = trainer.last_record().step > state_.position.step;  // else of the one before
      records_.completed(is_of_step ? trainer.norm_before() : trainer.last_record().grad_norm);
      if (is_of_step) records_.step(trainer.last_record());
      return record.error();
    }
    records_.completed(trainer.norm_before());
    count(*record);
    if (record->replan) {
      state_.note_plan();
      records_.plan();
    }
    LANCET_ASSIGN(bool stop, named("the end of", step_end()));
    stop = stop && state_.position.step < config.train.steps;
    const bool saves = (stop && state_.can_save()) || saving_.is_due();
    if (saves || stop) LANCET_TRY(settle(&*record));
    if (saves) {
      LANCET_TRY(records_.check_folder());
      LANCET_TRY(named("saving", saving_.save(&*record, stop)));
    }
    records_.step(*record);
    if (state_.position.skips_in_a_row >= config.train.max_skips) return fail_after_skips();
    if (!stop && state_.position.step == config.log.trace) {
      LANCET_ASSIGN(const std::string text, trainer.trace());
      records_.trace(text);
    }
    return stop;
  }

  // Collective: completes the last step, before its weights are read. record: of that step, if it is not recorded yet.
  Status settle(run::StepRecord* record = nullptr) {
    Trainer& trainer = *state_.trainer;
    if (!trainer.is_open()) return {};
    const Status status = named("the end of", trainer.settle());
    if (!status.ok() && status.error().code != ExitCode::numerical) return status;
    const double norm = trainer.last_record().grad_norm;
    records_.completed(norm);
    if (record) {
      record->grad_norm = norm;
      record->is_norm_known = true;
    }
    if (status.ok()) return status;
    if (record) records_.step(*record);
    return status;
  }

  template <class T>
  Result<T> named(std::string_view what, Result<T> result) const {
    if (result.ok()) return result;
    return comm::during(fmt::format("{} step {}", what, state_.position.step), result.error());
  }

  void count(const run::StepRecord& record) {
    run::Position& position = state_.position;
    ++position.step;
    position.tokens += run::rows_of(state_.config, state_.world.size()) * state_.config.train.seq_len;
    position.skipped_steps = record.skipped_steps;
    position.load = state_.trainer->load();
    position.skips_in_a_row = record.skipped ? position.skips_in_a_row + 1 : 0;
  }

  // Checkpoints of finite steps remain, since skipped steps are not saved.
  Error fail_after_skips() const {
    return {ExitCode::numerical,
            fmt::format("step {}: expected a finite loss and gradient norm in one of {} steps in a row "
                        "(train.max_skips), found none: the model does not recover; --resume continues from an "
                        "earlier checkpoint",
                        state_.position.step, state_.position.skips_in_a_row),
            true};
  }

  // Collective, at the end of a step: true if any rank would stop, or cannot read the next batch. Notes a save that is
  // due and advances one under way.
  Result<bool> step_end() {
    const std::int64_t step = state_.position.step;
    const Status next = step < state_.config.train.steps ? state_.trainer->read(step) : Status();
    std::array<float, 4> sums{stop_.after_step().empty() ? 0.f : 1.f, saving_.progress(), saving_.is_time() ? 1.f : 0.f,
                              next.ok() ? 0.f : 1.f};
    LANCET_TRY(state_.world.all_reduce_sum(sums));
    LANCET_TRY(saving_.proceed(sums[1], sums[2] > 0));
    if (sums[3] == 0) return sums[0] > 0;
    unread_ = comm::agree(state_.world, next);
    if (!unread_.error().agreed) return unread_.error();
    return true;
  }

  // Saves this step unless it is saved already, and stops the run.
  Status leave() {
    LANCET_TRY(settle());
    LANCET_TRY(records_.check_folder());
    const std::int64_t step = state_.position.step;
    if (!state_.can_save())
      return Error{ExitCode::data,
                   fmt::format("stopped after step {}, and it was not saved: the ranks hold no model", step), true};
    if (!saving_.is_saved()) LANCET_TRY(named("saving", saving_.save(nullptr, true)));
    LANCET_TRY(named("saving", saving_.finish()));
    const std::string mine = stop_.after_step();
    const std::string why = !unread_.ok() ? unread_.error().message : mine.empty() ? "another rank's signal" : mine;
    if (const auto& failure = saving_.last_failure())
      return Error{ExitCode::data,
                   fmt::format("stopped after step {} ({}), and it was not saved: {}", step, why, failure->message),
                   true};
    return Error{unread_.ok() ? ExitCode::saved : unread_.error().code,
                 fmt::format("saved and stopped after step {} of {} ({}); the same command resumes from there", step,
                             state_.config.train.steps, why),
                 true};
  }

  // Also true after a resume, if the records lack the evaluation of the step.
  bool evaluation_is_due() const {
    const std::int64_t step = state_.position.step;
    if (state_.trainer->evaluation_sequences() == 0 || evaluated_step_ == step) return false;
    const config::Train& train = state_.config.train;
    return step >= train.steps || (train.eval_interval > 0 && step > 0 && step % train.eval_interval == 0);
  }

  // True if the run must stop.
  Result<bool> evaluate() {
    const std::int64_t step = state_.position.step;
    LANCET_TRY(settle());
    if (step >= state_.config.train.steps) LANCET_TRY(named("saving", saving_.finish()));  // no fault of it loses this
    auto evaluated = state_.trainer->evaluate();
    if (!evaluated.ok() && evaluated.error().agreed && evaluated.error().code == ExitCode::data) {
      unread_ = evaluated.error();
      return true;
    }
    LANCET_ASSIGN(const std::optional<double> loss, std::move(evaluated));
    if (!loss) {
      if (start_.is_at_start())  // else every run of this length would end here
        log::warn(
            "step {}: the evaluation had not ended when the run was stopped, and the run does not continue without "
            "it; data.eval_sequences and train.max_minutes set how long either takes",
            step);
      return true;
    }
    evaluated_step_ = step;
    held_out_ = *loss;
    records_.held_out(*loss);
    return step < state_.config.train.steps ? comm::any(state_.world, !stop_.now().empty()) : false;
  }

  // True if the run must stop.
  Result<bool> sample() {
    const config::Train& train = state_.config.train;
    const std::optional<data::Tokenizer>& tokenizer = state_.trainer->tokenizer();
    if (train.sample_tokens == 0 || !tokenizer || !state_.can_save()) return false;  // no whole model
    LANCET_ASSIGN(std::vector<std::int32_t> prompt, tokenizer->encode(train.sample_prompt));
    if (prompt.empty()) prompt.push_back(std::max(tokenizer->bos(), 0));
    LANCET_ASSIGN(const auto ids, state_.trainer->generate(prompt, train.sample_tokens));
    if (!ids) return true;
    std::string text;
    for (const data::TokenId id : *ids) text += tokenizer->bytes(id, text.empty());
    log::info("sample: {}", replace_invalid_utf8(text));
    return false;
  }

  RunRecords records_{state_};  // declared before the trainer: the folder stays locked until the trainer is gone
  RunState state_;
  StopReason stop_{state_};
  RunStart start_{state_, stop_};
  Status unread_;                     // the data that could not be read, which stops the run
  std::int64_t evaluated_step_ = -1;  // the last step whose held-out loss is known
  double held_out_ = 0;               // of that step, if this process found it; equal on all ranks
  RunSaving saving_{state_};          // declared after the tensors that it saves
};

// On an emulated device no data has an effect, and there is no model to evaluate.
config::Config without_data(config::Config config) {
  config.data = {};
  config.data.synthetic = true;
  config.train.sample_tokens = 0;
  return config;
}

}  // namespace

Status train(const config::Config& config, comm::Communicator& world, const TrainerOptions& options) {
  if (config.device == config::Device::emulated && !config.data.synthetic)
    return train(without_data(config), world, options);
  run::DeclaredTimes declared;
  LANCET_ASSIGN(const auto mirrored, run::mirrored_world(config, world, &declared));
  const Status status = Run(config, mirrored ? *mirrored : world, options)();
  if (mirrored && status.ok())
    log::info("mirrored   {} declared {:.3f} ms of all-to-alls and {:.3f} ms of all-reduces in all calls",
              config.comm.network, declared.all_to_alls.load(), declared.all_reduces.load());
  return status;
}

}  // namespace lancet::train
