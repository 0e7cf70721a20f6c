#include "run_parts.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string_view>

#include "lancet/config/hugging_face.h"
#include "lancet/models/hugging_face.h"
#include "lancet/run/checkpoint_tensors.h"

namespace lancet::train {
namespace {

void warn_of_schedule(const config::Train& train) {
  const std::int64_t warmup = train.lr_warmup_steps, steps = train.steps;
  const std::int64_t decay = train.lr_schedule == config::LrSchedule::wsd ? train.lr_decay_steps : 0;
  if (warmup > steps)
    log::warn(
        "train.lr_warmup_steps: expected at most train.steps = {}, found {}; the run ends before it reaches train.lr",
        steps, warmup);
  else if (warmup + decay > steps)
    log::warn(
        "train.lr_warmup_steps + train.lr_decay_steps: expected at most train.steps = {}, found {} + {}; the decay "
        "takes {} steps",
        steps, warmup, decay, steps - warmup);
}

}  // namespace

Status RunStart::begin(const run::ResumePoint& start) {
  auto tokenizer = data::tokenizer_of_training(state_.asked);
  LANCET_TRY(comm::agree(state_.world, tokenizer.ok() ? Status() : Status(tokenizer.error())));
  state_.tokenizer = *std::move(tokenizer);
  if (start.kind == run::ResumePoint::Kind::from_scratch) return make_trainer();
  if (start.kind == run::ResumePoint::Kind::weights) {
    const bool mine = config::is_hugging_face(start.folders.front());  // other hosts may have another folder there
    LANCET_ASSIGN(const bool is_folder, comm::any(state_.world, mine));
    if (is_folder) return begin_from(start.folders.front());
  }
  Error damage;
  for (const std::filesystem::path& folder : start.folders) {
    LANCET_ASSIGN(const bool begun, begin_at(folder, start.kind, damage));
    if (begun) return {};
    LANCET_ASSIGN(const bool removed, run::is_removed(folder, state_.world));
    if (removed) {  // by the run that --init-from or --resume names, which has a newer one
      LANCET_ASSIGN(const auto again, run::find_resume_point(state_.asked, state_.resume_request(), state_.world));
      return begin(again);
    }
    if (state_.is_rank0() && start.folders.size() > 1) log::warn("not whole, left out: {}", damage.message);
  }
  if (start.folders.size() > 1 || !start.asked)
    damage.message = fmt::format(
        "expected a whole checkpoint among the {} in {}, found none; to start from scratch, rename that "
        "folder. The last one: {}",
        start.folders.size(), start.folders[0].parent_path().string(), damage.message);
  return damage;
}

// Each rank reads what it holds; rank 0 keeps the folder's small files, so that the run needs it no more.
Status RunStart::begin_from(const std::filesystem::path& folder) {
  comm::Communicator& world = state_.world;
  LANCET_ASSIGN(models::HuggingFaceFolder opened,
                models::HuggingFaceFolder::open_on_all(folder, world, state_.options.accepted));
  LANCET_TRY(comm::agree(world, config::check(state_.asked, world.size())));
  const config::Model asked = state_.asked.model.on(config::mesh_of(state_.asked, world.size()));
  LANCET_TRY(comm::agree(world, config::check_same_model(asked, opened.config().model, folder.string())));
  const auto tokenizer = opened.tokenizer();
  const data::TokenizerId saved{tokenizer ? tokenizer->tokenizer.hash() : 0, folder.string()};
  LANCET_TRY(comm::agree(world, data::check_same(saved, state_.tokenizer)));
  LANCET_TRY(make_trainer());
  Status loaded = models::load_parameters(opened, state_.trainer->store());
  if (loaded.ok() && state_.is_rank0()) loaded = opened.check_head();
  LANCET_TRY(comm::agree(world, loaded));
  const auto keep = [&]() -> Status {
    const std::filesystem::path run = state_.config.log.run_dir;
    LANCET_TRY(opened.keep_files(run / config::source_folder));
    LANCET_ASSIGN(const data::TextBounds bounds, opened.bounds(tokenizer.has_value()));
    return run::write_bounds(run, bounds);
  };
  LANCET_TRY(comm::broadcast_status(world, state_.is_rank0() ? keep() : Status(), 0));
  if (state_.tokenizer.hash == 0) state_.tokenizer = saved;
  from_ = folder;
  return {};
}

// False, with the error in `damage`, if the checkpoint is not whole.
Result<bool> RunStart::begin_at(const std::filesystem::path& folder, run::ResumePoint::Kind kind, Error& damage) {
  comm::Communicator& world = state_.world;
  auto found = checkpoint::Checkpoint::open(folder, state_.files());
  if (const Status all = comm::agree(world, found.ok() ? Status() : Status(found.error())); !all.ok()) {
    if (!all.error().agreed || all.error().code != ExitCode::data) return all.error();
    damage = all.error();
    return false;
  }
  LANCET_TRY(run::agree_on_checkpoint(world, *found));
  notes_.clear();
  const int ranks = world.size();
  const bool resumes = kind == run::ResumePoint::Kind::resume;
  auto adapted = run::adapt(state_.asked, *found, kind, ranks, notes_);
  LANCET_TRY(comm::agree(world, adapted.ok() ? Status() : Status(adapted.error())));
  const data::TokenizerId saved{found->manifest().tokenizer_hash, folder.string()};
  LANCET_TRY(comm::agree(world, data::check_same(saved, state_.tokenizer)));
  state_.config = *std::move(adapted);
  state_.position = {};
  if (resumes) state_.position = run::position_of(found->manifest(), state_.config, ranks);
  LANCET_TRY(make_trainer());
  const run::LoadScope take = resumes ? run::LoadScope::all : run::LoadScope::weights;
  const Status loaded = comm::agree(world, run::load_tensors(state_.trainer->store(), *found, take));
  if (loaded.ok()) {
    if (resumes && found->manifest().plan != state_.plan_hash && found->manifest().ranks == ranks)
      notes_.push_back("another plan than the one saved under: sums may round otherwise in the last bits");
    if (state_.tokenizer.hash == 0) state_.tokenizer = saved;
    from_ = folder;
    from_step_ = found->manifest().step;
    saved_on_ = found->manifest().ranks;
    return true;
  }
  if (!loaded.error().agreed || loaded.error().code != ExitCode::data) return loaded.error();
  damage = loaded.error();
  return false;
}

Status RunStart::make_trainer() {
  TrainerOptions options = state_.options;
  options.sample_offset = state_.position.sample_offset;
  options.load = state_.position.load;
  options.skipped_steps = state_.position.skipped_steps;
  options.device_bytes = state_.position.device_bytes;
  options.interrupted = [this] { return !stop_.now().empty(); };
  state_.trainer.reset();  // the memory need not hold two trainers
  auto made = Trainer::create(state_.config, state_.world, options);
  if (!made.ok() && made.error().code == ExitCode::saved) {
    const std::string mine = stop_.now();
    return Error{ExitCode::saved,
                 fmt::format("stopped before step {} ({}), while the profile was measured; the same command measures "
                             "the rest and trains from there",
                             state_.position.step + 1, mine.empty() ? "another rank's signal" : mine),
                 true};
  }
  LANCET_ASSIGN(state_.trainer, std::move(made));
  state_.position.device_bytes = state_.trainer->device_bytes();
  state_.note_plan();
  return {};
}

void RunStart::announce(const run::ResumePoint& start) const {
  const run::Position& position = state_.position;
  if (start.kind == run::ResumePoint::Kind::resume)
    log::info("resume     after step {} from {}, saved on {} rank{}", position.step, from_.string(), saved_on_,
              saved_on_ == 1 ? "" : "s");
  if (start.kind == run::ResumePoint::Kind::weights)
    log::info("weights    {}from {}", saved_on_ > 0 ? fmt::format("of step {} ", from_step_) : "", from_.string());
  if (const std::string& named = state_.resume_request().init_from;
      start.kind == run::ResumePoint::Kind::resume && !named.empty())
    log::info("note: {} {} was not needed: the run resumes from {}, its own checkpoint",
              state_.options.init_from.empty() ? "model.from" : "--init-from", named, from_.string());
  for (const std::string& note : notes_) log::info("           {}", note);
  const config::Train& train = state_.config.train;
  for (const std::string& fields : config::without_effect(state_.config, state_.world.size()))
    log::info("note: {}", fields);
  if (const config::Model& model = state_.config.model;
      model.has_moe() && model.norm_topk_prob && model.num_experts_per_tok == 1 && !model.experts_choose())
    log::info(
        "note: the weight of a token's only expert is always 1, so that the cross entropy teaches the router nothing; "
        "only auxiliary losses do");
  if (state_.is_rank0()) warn_of_schedule(train);
  announce_saving();
  if (!state_.is_rank0() || start.kind != run::ResumePoint::Kind::resume) return;
  if (position.step >= train.steps)
    log::info("nothing to do: {} of {} steps done; raise train.steps", position.step, train.steps);
  if (train.stop_after > 0 && train.stop_after <= position.step)
    log::warn("train.stop_after: the run resumes after step {1}, so it does not stop after step {0}", train.stop_after,
              position.step);
}

void RunStart::announce_saving() const {
  const config::Train& train = state_.config.train;
  if (!state_.can_save()) return log::info("saving     nothing: the ranks hold no model that could be saved");
  if (!train.saves())
    return log::info(
        "saving     nothing but where the run is stopped (train.save_interval = 0, train.save_minutes = 0)");
  const std::string when = train.save_interval > 0 ? fmt::format("{} steps", train.save_interval)
                                                   : fmt::format("{} minutes", train.save_minutes);
  log::info("saving     every {} and at the end into {}/checkpoints, {} kept", when, state_.config.log.run_dir,
            train.keep_last == 0 ? "all" : fmt::format("the newest {}", train.keep_last));
}

double learning_rate(const config::Train& train, std::int64_t step) {
  const double low = train.min_lr, high = train.lr;
  if (step < train.lr_warmup_steps) return high * double(step + 1) / double(train.lr_warmup_steps);
  // 0 at the first step of the decay, 1 at the last step of the run.
  auto progress = [&](std::int64_t begin) {
    const auto length = std::max<std::int64_t>(train.steps - 1 - begin, 1);
    return std::clamp(double(step - begin) / double(length), 0.0, 1.0);
  };
  switch (train.lr_schedule) {
    case config::LrSchedule::constant:
      return high;
    case config::LrSchedule::linear:
      return high + (low - high) * progress(train.lr_warmup_steps);
    case config::LrSchedule::cosine:
      return low + (high - low) * 0.5 * (1 + std::cos(std::numbers::pi * progress(train.lr_warmup_steps)));
    case config::LrSchedule::wsd: {
      const std::int64_t begin = std::max(train.steps - train.lr_decay_steps, train.lr_warmup_steps);
      return step < begin ? high : high + (low - high) * progress(begin);
    }
  }
  return high;
}

}  // namespace lancet::train
