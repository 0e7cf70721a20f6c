// The trainer of one rank: builds Program and Plan, holds the weights, runs steps.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/checkpoint/checkpoint.h"
#include "lancet/checkpoint/file_system.h"
#include "lancet/comm/communicator.h"
#include "lancet/config/config.h"
#include "lancet/cost/costs.h"
#include "lancet/data/batches.h"
#include "lancet/run/metrics.h"
#include "lancet/runtime/executor.h"
#include "lancet/runtime/tensor_store.h"

namespace lancet::train {

struct TrainerOptions {
  int local_ranks = 1;                      // ranks on this host, which share its cores
  const cost::Costs* costs = nullptr;       // replace the measured ones (tests)
  std::string profile_folder = {};          // run::ProfileRequest::profile_folder
  std::string plan_file = {};               // the plan that runs (from_config.h); empty: planned as config.overlap says
  std::string resume = {}, init_from = {};  // run::ResumeRequest; an empty init_from is the config's model.from
  std::vector<std::string> accepted = {};   // models::HuggingFaceFolder::open
  const std::atomic<int>* stop = nullptr;   // a signal that requests to save and stop; 0: none
  std::function<bool()> interrupted = {};   // true: stop now, besides `stop`; called on every rank at every step,
                                            // evaluation batch, generated token and measurement of costs
  checkpoint::FileSystem* files = nullptr;  // replaces the disk for checkpoints (tests)
  std::int64_t sample_offset = 0;           // data::SamplerOptions
  checkpoint::LoadHistory load = {};        // of the steps before
  std::int64_t skipped_steps = 0;           // among the steps before
  std::int64_t device_bytes = 0;            // those of the run before; 0: none
  runtime::Accelerator* accelerator = nullptr;  // replaces the one that config.device names (tests)
  // For tests: gradients (outputs grad.*, before clipping) and gates' scores and decisions (score.*, probability.*,
  // expert.*, slot.*, filled.*) stay readable after a step.
  bool inspect = false;
  data::Batches* batches = nullptr;  // for tests: replace the config's data
};

// Except for the accessors, all calls are collective: every rank makes them in the same order.
class Trainer {
 public:
  // config: parsed; checked here against the number of ranks. An error of any rank is returned on all; it has
  // ExitCode::saved if a rank was asked to stop while costs were measured.
  static Result<std::unique_ptr<Trainer>> create(const config::Config& config, comm::Communicator& world,
                                                 const TrainerOptions& options = {});
  virtual ~Trainer() = default;

  // Runs one optimizer step on batch `step` (0 is the first). Numerical error: the loss or the norm is not finite; the
  // error names the first such tensor. The weights are then unchanged, unless train.clip_grad is 0, since updates do
  // not wait for the norm then. With overlap.replan, executor() may be another one afterwards (StepRecord::replan).
  // border: open: what the plan leaves to the next step (ir/dependencies.h) may be left, so the next call should be
  // step(step + 1); until that or settle(), the weights and the norm of the step are incomplete (is_open()). Numerical
  // error: also if the norm of the step before turns out not to be finite.
  enum class Border : std::uint8_t { closed, open };
  virtual Result<run::StepRecord> step(std::int64_t step, Border border) = 0;
  Result<run::StepRecord> step(std::int64_t step) { return this->step(step, Border::closed); }
  // Not collective: reads what this rank needs first of the batch of `step`, so that step() need not. If it fails on
  // any rank, none calls step(). Data error: it cannot be read.
  virtual Status read(std::int64_t step) = 0;
  // Requests that the last run of the next step times every instruction (runtime::Executor::time_next_run).
  virtual void time_next_step() = 0;
  // True if the last step has left something (run::StepRecord::is_norm_known: whether also its norm).
  virtual bool is_open() const = 0;
  // Completes the last step; nothing if it is complete. Evaluation and generation do it themselves; store() is to be
  // read only afterwards. Numerical error: its norm is not finite.
  virtual Status settle() = 0;
  // The norm of the step before the last one, if that step had left something.
  virtual double norm_before() const = 0;
  virtual const run::StepRecord& last_record() const = 0;           // of the last step, finite or not
  virtual std::span<const run::LayerLoad> last_layers() const = 0;  // of that step, per MoE layer
  // Of that step: kept tokens over the rows that experts get if no token is dropped; 0 without MoE layers.
  virtual double kept_share() const = 0;
  virtual std::int64_t device_bytes() const = 0;                        // that plans may take, for checkpoints
  virtual const checkpoint::LoadHistory& load() const = 0;              // for checkpoints; as at first: nothing to keep
  virtual const std::optional<data::Tokenizer>& tokenizer() const = 0;  // the config's, if it names one
  virtual std::int64_t evaluation_sequences() const = 0;  // that evaluate() covers; 0: the config names no evaluation
  // Mean loss over the evaluation batches; empty if the config names none, or if any rank was interrupted. Data error,
  // on all ranks: a batch cannot be read.
  virtual Result<std::optional<double>> evaluate() = 0;
  // Ids of the prompt followed by `count` more, or those up to the tokenizer's end of a text, each drawn from the
  // softmax of the logits (temperature 1, Philox by seed). Empty if any rank was interrupted.
  virtual Result<std::optional<std::vector<std::int32_t>>> generate(std::vector<std::int32_t> prompt,
                                                                    std::int64_t count) = 0;

  // The text of trace.json (runtime/executor.h) on rank 0, empty elsewhere: the timeline of the last step's updating
  // plan on all ranks. The ranks' times are comparable for the step that config.log.trace names.
  virtual Result<std::string> trace() = 0;

  virtual runtime::TensorStore& store() = 0;
  virtual runtime::Executor& executor() = 0;                  // of the plan that updates the weights
  virtual std::span<const ir::Plan> stage_plans() const = 0;  // of all pipeline stages
  virtual std::string banner() const = 0;                     // several lines, without the configuration
  virtual std::string memory_json() const = 0;                // the bytes of the banner's line on memory, by part
};

// Collective: trains as the config says, with run folder, banner, steps, trace, evaluation and sample. Rank 0 logs and
// writes files.
Status train(const config::Config& config, comm::Communicator& world, const TrainerOptions& options = {});

// The learning rate of step `step` (0 is the first). Step s of W of warm-up has lr * (s + 1) / W, so the last of them
// has lr; a run may be shorter. Then lr stays constant, or falls linearly or as a cosine to min_lr at the last step;
// wsd keeps lr until the last lr_decay_steps, in which it falls linearly to min_lr. Step d of N of decay has the rate
// at d / (N - 1) of the way: the first still has lr, and the last has min_lr. A decay of one step has lr.
double learning_rate(const config::Train& train, std::int64_t step);

}  // namespace lancet::train
