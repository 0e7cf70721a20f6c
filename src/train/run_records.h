// RunRecords: what a run writes to its folder and logs about its steps. Only rank 0 has a folder.
#pragma once
#include <optional>

#include "averages.h"
#include "lancet/run/run_folder.h"
#include "run_state.h"

namespace lancet::train {

class RunRecords {
 public:
  explicit RunRecords(const RunState& state) : state_(state) {}

  // Creates and locks the folder; nothing on other ranks, as for open().
  Status take_folder();
  // Writes config.json and plan.ir and opens the records, once the trainer exists.
  Status open(bool resumes);
  // True on rank 0 if the records hold the held-out loss of the step after which the run resumes.
  bool has_held_out() const { return state_.is_rank0() && folder_->has_held_out(); }

  // Collective: a run whose folder is gone ends before it writes to a folder of that name that is another run's.
  Status check_folder() const;

  void step(const run::StepRecord& record);
  void plan();  // replaces plan.ir by the trainer's plan
  void trace(const std::string& text);
  void held_out(double loss);
  // Logs the averages over the run's steps.
  void log_averages() const;

 private:
  const RunState& state_;
  std::optional<run::RunFolder> folder_;
  Averages averages_;
};

}  // namespace lancet::train
