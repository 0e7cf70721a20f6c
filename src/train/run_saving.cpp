#include "run_saving.h"

#include "lancet/base/clock.h"
#include "lancet/train/learning_rate.h"

namespace lancet::train {

Status RunSaving::begin(bool resumes) {
  if (resumes) saved_step_ = state_.position.step;
  saver_ = std::make_unique<run::Saver>(state_.config, state_.world, state_.trainer->store(), state_.files());
  return saver_->reserve();
}

bool RunSaving::is_time() const {
  const config::Train& train = state_.config.train;
  return state_.is_rank0() && train.save_interval == 0 && train.save_minutes > 0 &&
         seconds_since(saved_at_) / 60 >= train.save_minutes;
}

Status RunSaving::proceed(float progress, bool is_time) {
  LANCET_TRY(saver_->proceed(progress));
  const config::Train& train = state_.config.train;
  owes_save_ |= is_time || (train.save_interval > 0 && state_.position.step % train.save_interval == 0);
  return {};
}

// A model whose steps are being skipped may be beyond recovery, so it replaces no checkpoint before the run's end.
bool RunSaving::is_due() const {
  const config::Train& train = state_.config.train;
  const run::Position& position = state_.position;
  if (!state_.can_save() || !train.saves()) return false;
  return position.step == train.steps ? position.skips_in_a_row < train.max_skips
                                      : owes_save_ && position.skips_in_a_row == 0 && !saver_->postponed();
}

Status RunSaving::save(run::StepRecord* record, bool last) {
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

}  // namespace lancet::train
