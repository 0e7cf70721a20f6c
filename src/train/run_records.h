// RunRecords: what a run writes to its folder and logs about its steps. Only rank 0 has a folder.
#pragma once
#include <optional>
#include <span>
#include <vector>

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

  // A step whose norm is not known yet is recorded when completed() brings it.
  void step(const run::StepRecord& record);
  // grad_norm: of the step that waits for it, if one does; empty if it stays unknown.
  void completed(std::optional<double> grad_norm);
  void plan();  // replaces plan.ir by the trainer's plan
  void trace(const std::string& text);
  void held_out(double loss);
  // Logs the averages over the run's steps.
  void log_averages() const;

 private:
  // A step that waits for its norm, with what the trainer keeps until the next one.
  struct Open {
    run::StepRecord record;
    std::vector<run::LayerLoad> layers;
    std::vector<std::vector<double>> expert_tokens;  // by layer
  };
  void write(const run::StepRecord& record, std::span<const run::LayerLoad> layers);

  const RunState& state_;
  std::optional<Open> open_;
  std::optional<run::RunFolder> folder_;
  Averages averages_;
};

}  // namespace lancet::train
