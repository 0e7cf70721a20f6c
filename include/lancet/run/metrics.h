// What one step did: the step line and a record of metrics.jsonl.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "lancet/base/result.h"

namespace lancet::run {

struct StepRecord {
  std::int64_t step = 0;           // 1 is the first
  bool skipped = false;            // it updated nothing: loss or norm is not finite
  std::int64_t skipped_steps = 0;  // such steps, up to this one
  double loss = 0;                 // mean cross-entropy over the tokens of the whole batch, in nats
  double aux_loss = 0;             // sum over MoE layers, without its coefficient
  double grad_norm = 0;            // before clipping
  double lr = 0;
  double step_ms = 0;
  double tokens_per_s = 0;
  std::optional<double> mfu;      // percent of the peak; empty where no peak is known
  std::optional<double> save_ms;  // that saving held this step up; empty where nothing was saved
  // Of this rank's streams (executor.h). hidden_pct: of communication, what did not leave the compute stream idle.
  // communication: a stream of it is busy, or both are; exposed: and the compute stream is not.
  double compute_ms = 0, a2a_ms = 0, allreduce_ms = 0, communication_ms = 0, exposed_ms = 0;
  std::optional<double> hidden_pct;    // empty without communication
  std::optional<double> predicted_ms;  // empty where the plan predicts nothing
  // Over the MoE layers; empty in a dense model. load_max_over_mean: the fullest expert's tokens over the mean,
  // averaged over layers. drop_pct: tokens that found no slot. dead_experts: experts that no token chose.
  // router_entropy: of the gate's softmax p, the mean over tokens of -sum over experts of p log p in nats (0: certain,
  // log of the number of experts: even), averaged over layers.
  std::optional<double> load_max_over_mean, drop_pct, router_entropy;
  std::optional<std::int64_t> dead_experts;
};

// One MoE layer's part of the above.
struct LayerLoad {
  double max_over_mean = 0, drop_pct = 0, router_entropy = 0;
  std::int64_t dead_experts = 0;
  std::span<const double> expert_tokens = {};  // tokens of the whole batch that chose each expert; the trainer's memory
};

// One line. layers: by MoE layer, as layer_load_max_over_mean and so on.
std::string to_json(const StepRecord& record, std::span<const LayerLoad> layers = {}, bool expert_tokens = true);
// More counts than this in a record, over all layers, would outweigh the rest: then only steps with a line have them.
inline constexpr std::size_t most_counts = 1024;
// step i/N | loss | grad norm | lr | ms (predicted) | tok/s | MFU | exposed ms (hidden %) | load max/mean | drop % |
// dead experts | router entropy | ETA seconds_left: empty where no step that counts has been timed yet.
std::string step_line(const StepRecord& record, std::int64_t steps, std::optional<double> seconds_left);

// The held-out loss after a step, which has its record already: a line of its own.
std::string held_out_json(std::int64_t step, double loss);

// metrics.jsonl: a line a step, and one an evaluation, written out as soon as it is made. Every line in the file is
// whole: what a full disk cut short is taken back.
class MetricsFile {
 public:
  // Records that stand there already are kept: the file is renamed to metrics.jsonl.1, or the next free number, and the
  // log says so. Data error: no file can be made there.
  static Result<MetricsFile> create(const std::filesystem::path& path);
  // Of a run that goes on after `step`: records of later steps go, and what was cut short; the log says so.
  static Result<MetricsFile> resume(const std::filesystem::path& path, std::int64_t step);
  ~MetricsFile();
  MetricsFile(MetricsFile&& other) noexcept;
  MetricsFile& operator=(MetricsFile&& other) noexcept;
  // Data error on a full disk.
  Status write(const StepRecord& record, std::span<const LayerLoad> layers = {}, bool expert_tokens = true);
  Status write_held_out(std::int64_t step, double loss);
  // Whether resume() found the held-out loss of its step.
  bool has_held_out() const { return has_held_out_; }

 private:
  Status append(std::string line, std::int64_t step);
  MetricsFile(std::filesystem::path path, int fd) : path_(std::move(path)), fd_(fd) {}
  std::filesystem::path path_;
  int fd_ = -1;
  std::int64_t bytes_ = 0;  // of whole lines
  bool has_held_out_ = false;
};

}  // namespace lancet::run
