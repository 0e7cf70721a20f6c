#include "step_speed.h"

#include <algorithm>

#include "lancet/base/log.h"
#include "lancet/ir/micro_batches.h"
#include "lancet/model/capacity.h"
#include "lancet/ops/catalogue.h"
#include "lancet/profiler/peak.h"
#include "lancet/run/step_costs.h"

namespace lancet::train {

ProductFlops product_flops(const ir::Program& program) {
  ProductFlops total;
  for (const ir::Instruction& instruction : program.instructions) {
    const ops::Kind kind = ops::kind(instruction);
    if (kind != ops::Kind::product && kind != ops::Kind::attention) continue;
    if (instruction.role == ir::Role::recompute) continue;  // MFU counts what the model needs
    (ops::is_over_expert_rows(instruction) ? total.experts : total.dense) += ops::work(program, instruction).flops;
  }
  return total;
}

Status StepSpeed::measure_peak(comm::Communicator& world, const RankResources& resources,
                               const std::string& profile_folder) {
  runtime::Accelerator* const accelerator = resources.accelerator;
  // The largest FLOP/s that were measured on this machine. Only rank 0 reports MFU.
  const auto largest = [&](double measured) {
    if (world.rank() != 0) return measured;
    const cost::Machine machine = run::machine_of(config_, world, resources.local_ranks, accelerator);
    return 1e12 * run::largest_peak_tflops(config_, machine, profile_folder, measured * 1e-12);
  };
  if (config_.log.peak_tflops) {
    peak_ = {*config_.log.peak_tflops * 1e12, "log.peak_tflops"};
    return {};
  }
  if (resources.emulated) {
    const cost::Hardware::Device& device = resources.emulated->hardware().device;
    peak_ = {(config_.train.dtype == DType::bf16 ? device.bf16_tflops : device.fp32_tflops) * 1e12, "declared"};
    return {};
  }
  if (accelerator) {  // without a measured peak, MFU is left out
    const auto flops = profiler::measure_product_peak(*accelerator, config_.train.dtype);
    if (!flops.ok()) log::warn("peak: not measured: {}", flops.error().message);
    peak_ = {largest(flops.ok() ? *flops : 0), "measured on an 8192^3 product"};
    return world.barrier();
  }
  LANCET_TRY(world.barrier());  // all ranks of a host at once, as in a step
  peak_ = {largest(profiler::measure_product_peak(config_.train.dtype, resources.threads)),
           "measured on a 1024^3 product"};
  return world.barrier();
}

void StepSpeed::set_plans(const run::StepPlans& plans) {
  predicted_ms_ = run::predicted_ms(plans, config_.train.gradient_accumulation_steps);
  flops_ = product_flops(plans.step.program);
  if (!plans.step_stages.empty()) {  // the mean of the stages, as the peak is that of all ranks
    flops_ = {};
    for (const ir::Plan& stage : plans.step_stages) {
      const auto of_stage = product_flops(stage.program);
      flops_.dense += of_stage.dense / double(plans.step_stages.size());
      flops_.experts += of_stage.experts / double(plans.step_stages.size());
    }
  }
  micro_batches_ = ir::micro_batches(plans.step.program);
}

double StepSpeed::tokens() const {
  const config::Train& train = config_.train;
  return double(train.micro_batch_size * train.seq_len * train.gradient_accumulation_steps) *
         config::batch_ranks(config_, ranks_);
}

void StepSpeed::fill(run::StepRecord& record, double seconds, const StepTally& tally) const {
  record.step_ms = seconds * 1e3;
  record.predicted_ms = predicted_ms_;
  record.tokens_per_s = tokens() / seconds;
  const double runs = double(config_.train.gradient_accumulation_steps) / double(micro_batches_);
  const double flops = runs * (flops_.dense + kept_share(tally) * flops_.experts);
  if (peak_.flops > 0) record.mfu = 100 * flops / seconds / peak_.flops;
}

namespace {

std::int64_t tokens_of(const config::Config& config) { return config.train.micro_batch_size * config.train.seq_len; }

// The slots of all experts for the tokens of a micro batch of a rank.
std::int64_t slots_of(const config::Config& config, std::int64_t experts) {
  const std::int64_t tokens = tokens_of(config);
  const std::int64_t groups = config.train.micro_batch_size / config.group_sequences();
  return experts * groups *
         model::capacity(config.model.kept_factor(), tokens / groups, experts, config.model.num_experts_per_tok);
}

}  // namespace

double even_share(const config::Config& config, std::int64_t experts) {
  const std::int64_t slots = slots_of(config, experts);
  return std::min(1.0, double(slots) / double(model::choices_of(config.model, tokens_of(config), slots)));
}

double StepSpeed::kept_share(const StepTally& tally) const {
  if (tally.layers().empty()) return 0;
  const config::Train& train = config_.train;
  const auto layers = double(tally.layers().size()), micro_batches = double(train.gradient_accumulation_steps);
  const auto experts = std::int64_t(tally.experts());
  const double choices = double(model::choices_of(config_.model, tokens_of(config_), slots_of(config_, experts))) *
                         double(config::batch_ranks(config_, ranks_)) * layers * micro_batches;
  return tally.kept() / (even_share(config_, experts) * choices);
}

}  // namespace lancet::train
