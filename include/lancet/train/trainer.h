// The trainer of one rank: builds Program and Plan, holds the weights, runs steps.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "lancet/base/result.h"
#include "lancet/checkpoint/file_system.h"
#include "lancet/comm/communicator.h"
#include "lancet/config/config.h"
#include "lancet/cost/costs.h"
#include "lancet/runtime/executor.h"
#include "lancet/runtime/tensor_store.h"
#include "lancet/data/batches.h"
#include "lancet/run/metrics.h"

namespace lancet::train {

struct TrainerOptions {
  int local_ranks = 1;                 // ranks on this host: they share its cores
  const cost::Costs* costs = nullptr;  // in place of the measured ones (tests)
  std::string default_profile = {};    // where costs are kept if config.overlap.profile names no file; empty: nowhere
  std::string plan_file = {};          // the plan that runs (plan.h); empty: one is made as config.overlap says
  std::string resume = {}, init_from = {};      // run::ResumeRequest
  const std::atomic<int>* stop = nullptr;       // not 0: a signal that asks the run to save and stop
  std::function<bool()> interrupted = {};       // whether to stop now, besides `stop`: asked at every step, evaluation
                                                // batch and token, of any rank
  checkpoint::FileSystem* files = nullptr;      // that checkpoints are written to, in place of the disk (tests)
  std::int64_t sample_offset = 0;               // data::SamplerOptions
  runtime::Accelerator* accelerator = nullptr;  // in place of the one that config.device asks for (tests)
  // For tests: gradients (outputs grad.*, before clipping) and routes (route.*) stay readable after a step.
  bool inspect = false;
  data::Batches* batches = nullptr;  // for tests: in place of the config's data
};

// All calls but the accessors are collective: every rank makes them in the same order.
class Trainer {
 public:
  // config: parsed; checked here against the number of ranks. An error of any rank is returned on all.
  static Result<std::unique_ptr<Trainer>> create(const config::Config& config, comm::Communicator& world,
                                                 const TrainerOptions& options = {});
  virtual ~Trainer() = default;

  // One optimizer step on batch `step` (0 is the first). Numerical error: the loss or the norm is not finite; it names
  // the first tensor that is not, and the weights are as they were before the step, but for a train.clip_grad of 0,
  // where updates do not wait for the norm.
  virtual Result<run::StepRecord> step(std::int64_t step) = 0;
  virtual const run::StepRecord& last_record() const = 0;                    // of the last step that ended, finite or not
  virtual std::span<const run::LayerLoad> last_layers() const = 0;           // of that step, by MoE layer
  virtual const std::optional<data::Tokenizer>& tokenizer() const = 0;  // that the config names
  virtual bool has_evaluation() const = 0;
  // Mean loss over the evaluation batches; empty where the config names none, or where it was interrupted on any rank.
  virtual Result<std::optional<double>> evaluate() = 0;
  // Ids of the prompt followed by `count` more, each drawn from the softmax of the logits (temperature 1, Philox by
  // seed). Empty where it was interrupted on any rank.
  virtual Result<std::optional<std::vector<std::int32_t>>> generate(std::vector<std::int32_t> prompt,
                                                                    std::int64_t count) = 0;

  // Collective: the timeline of the last step's updating plan on all ranks, as trace.json holds it (runtime/trace.h),
  // on rank 0; empty elsewhere. Ranks' times are comparable for the step that config.log.trace names.
  virtual Result<std::string> trace() = 0;

  virtual runtime::TensorStore& store() = 0;
  virtual runtime::Executor& executor() = 0;  // of the step that updates the weights
  virtual std::string banner() const = 0;     // many lines, without the configuration
};

// Trains as the config says: run folder, banner, steps, trace, evaluation, sample. Rank 0 logs and writes. Collective.
Status train(const config::Config& config, comm::Communicator& world, const TrainerOptions& options = {});

}  // namespace lancet::train
