#include "run_records.h"

#include <cmath>
#include <utility>

#include "lancet/base/files.h"
#include "lancet/base/log.h"
#include "lancet/base/shown.h"
#include "lancet/comm/collect.h"
#include "lancet/ir/plan.h"

namespace lancet::train {

Status RunRecords::take_folder() {
  if (!state_.is_rank0()) return {};
  LANCET_ASSIGN(run::RunFolder folder, run::RunFolder::take(state_.asked));
  folder_.emplace(std::move(folder));
  return {};
}

Status RunRecords::open(bool resumes) {
  if (!state_.is_rank0()) return {};
  LANCET_TRY(folder_->begin(state_.files(), state_.config, state_.trainer->executor().plan(),
                            state_.trainer->memory_json(),
                            resumes ? std::optional(state_.position.step) : std::nullopt));
  return ir::write_later_stages(std::filesystem::path(state_.config.log.run_dir) / "plan.ir",
                                state_.trainer->stage_plans());
}

Status RunRecords::check_folder() const {
  return comm::broadcast_status(state_.world, state_.is_rank0() ? folder_->check_in_place() : Status(), 0);
}

void RunRecords::step(const run::StepRecord& record) {
  const auto layers = state_.trainer->last_layers();
  if (record.is_norm_known) return write(record, layers);
  open_.emplace(Open{record, {layers.begin(), layers.end()}, {}});
  for (const run::LayerLoad& layer : layers)
    open_->expert_tokens.emplace_back(layer.expert_tokens.begin(), layer.expert_tokens.end());
  for (std::size_t i = 0; i < layers.size(); ++i) open_->layers[i].expert_tokens = open_->expert_tokens[i];
}

void RunRecords::completed(std::optional<double> grad_norm) {
  if (!open_) return;
  const Open complete = *std::exchange(open_, {});
  run::StepRecord record = complete.record;
  record.is_norm_known = grad_norm.has_value();
  if (grad_norm) record.grad_norm = *grad_norm;
  write(record, complete.layers);
}

void RunRecords::write(const run::StepRecord& record, std::span<const run::LayerLoad> layers) {
  averages_.add(record);
  if (!state_.is_rank0()) return;
  const std::int64_t steps = state_.config.train.steps;
  const bool has_line = record.step % state_.config.log.interval == 0 || record.step == 1 || record.step == steps;
  const std::size_t counts = layers.empty() ? 0 : layers.size() * layers[0].expert_tokens.size();
  folder_->record(record, layers, has_line || counts <= run::most_counts);
  if (!has_line) return;
  const auto left = averages_.seconds(steps - record.step);
  log::info("{}", run::step_line(record, steps, left ? std::optional(*left * state_.config.dilation()) : left));
}

void RunRecords::plan() {
  if (state_.is_rank0()) folder_->plan(state_.trainer->executor().plan());
}

void RunRecords::trace(const std::string& text) {
  if (state_.is_rank0()) folder_->trace(text);
}

void RunRecords::held_out(double loss) {
  const std::int64_t step = state_.position.step;
  log::info("step {} | held-out loss {:.4f} of {} sequences | perplexity {:.2f}", step, unsigned_nan(loss),
            state_.trainer->evaluation_sequences(), unsigned_nan(std::exp(loss)));
  if (state_.is_rank0()) folder_->held_out(step, loss);
}

void RunRecords::log_averages() const {
  for (const std::string& line : {averages_.line(), averages_.lateness(), averages_.surprise()})
    if (!line.empty()) log::info("{}", line);
}

}  // namespace lancet::train
