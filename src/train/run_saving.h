// RunSaving: when a run saves, and the saver that does it.
#pragma once
#include <chrono>
#include <memory>

#include "lancet/run/saver.h"
#include "run_state.h"

namespace lancet::train {

class RunSaving {
 public:
  explicit RunSaving(const RunState& state) : state_(state) {}

  // Collective, once the trainer exists. resumes: the checkpoint of the state's step is on the disk.
  Status begin(bool resumes);

  // This rank's terms of the sums that proceed() needs, at the end of a step.
  float progress() const { return saver_->progress(); }
  bool is_time() const;  // rank 0's clock decides for all, so that they save after the same step
  // Collective: advances the save under way and notes one that is due. progress: summed over the ranks; is_time: on any
  // rank.
  Status proceed(float progress, bool is_time);
  // True if this step is to be saved.
  bool is_due() const;

  // Collective: begins to save this step. record: of this step; receives save_ms. last: the run stops after it, so it
  // may wait for the disk.
  Status save(run::StepRecord* record, bool last);
  bool is_saved() const { return saved_step_ == state_.position.step; }
  Status finish() { return saver_->finish(); }
  const std::optional<Error>& last_failure() const { return saver_->last_failure(); }
  // Leaves the saver to messages that may still be under way: it is never destroyed.
  void release() { static_cast<void>(saver_.release()); }

 private:
  const RunState& state_;
  std::unique_ptr<run::Saver> saver_;
  std::int64_t saved_step_ = -1;  // the last step whose save began, or after which the run resumed
  std::chrono::steady_clock::time_point saved_at_ = std::chrono::steady_clock::now();
  bool owes_save_ = false;  // a save was due and has not begun
};

}  // namespace lancet::train
