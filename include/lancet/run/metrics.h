// The measurements of one step, the step line of the log, and metrics.jsonl, which holds a record for each step.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lancet/base/files.h"
#include "lancet/base/result.h"

namespace lancet::run {

// AppendFile: a file of whole records. A record that a full disk cuts short is removed again.
class AppendFile {
 public:
  // bytes: of the records that the file holds already.
  AppendFile(std::filesystem::path path, Descriptor file, std::int64_t bytes = 0)
      : path_(std::move(path)), file_(std::move(file)), bytes_(bytes) {}
  // Data error on a full disk: "cannot write <what> to PATH: ...". unit: the word for a record, if even its removal
  // fails.
  Status append(std::string_view record, std::string_view what, std::string_view unit);

 private:
  std::filesystem::path path_;
  Descriptor file_;
  std::int64_t bytes_;
};

struct StepRecord {
  std::int64_t step = 0;           // 1 is the first
  bool skipped = false;            // the step updated nothing: its loss or norm is not finite
  std::int64_t skipped_steps = 0;  // skipped steps up to this one
  double loss = 0;                 // mean cross-entropy over the tokens of the whole batch, in nats
  double aux_loss = 0;             // sum over MoE layers, without its coefficient
  double grad_norm = 0;            // before clipping
  // False: the step has left its end, and the norm with it, to the next one. A run that ends before that records none.
  bool is_norm_known = true;
  double lr = 0;
  double step_ms = 0;
  double tokens_per_s = 0;
  std::optional<double> mfu;      // percent of the peak; empty if no peak is known
  std::optional<double> save_ms;  // time that a save held this step up; empty if the step began none
  // Busy times of this rank's streams (executor.h); a2a_ms: of `expert`. communication_ms: one or both communication
  // streams are busy. exposed_ms: the part of it while the compute stream is idle. hidden_pct: the rest, percent of it.
  double compute_ms = 0, a2a_ms = 0, allreduce_ms = 0, communication_ms = 0, exposed_ms = 0;
  std::optional<double> hidden_pct;    // empty without communication
  std::optional<double> predicted_ms;  // empty if the plan predicts nothing
  // Statistics of the MoE layers; empty in a dense model. load_max_over_mean: the fullest expert's tokens over the
  // mean, averaged over layers. drop_pct: of the tokens' choices, those that found no slot. dead_experts: experts that
  // no token chose. router_entropy: -sum over experts of p log p in nats, where p is the router's softmax, averaged
  // over tokens and layers (0: one expert is certain; log of the number of experts: all are equally likely).
  // experts_per_token: choices of the mean token in the mean layer. z_loss: of the routers, summed over layers, without
  // its coefficient; empty if the router has none. bias_spread: the largest minus the smallest of a layer's biases of
  // experts, in the layer where that is most; empty if the router has no biases.
  std::optional<double> load_max_over_mean, drop_pct, router_entropy, experts_per_token, z_loss, bias_spread;
  std::optional<std::int64_t> dead_experts;
  // Without a capacity factor: the most rounds in which this rank and those that it exchanges tokens with have served
  // the choices of a layer's micro batch. 1 if all fit into the buffers.
  std::optional<std::int64_t> rounds;
  // On an emulated device: by how much messages started later than ideal, in percent of the step, on the rank where it
  // is most. The losses and the norm are then NaN.
  std::optional<double> late_pct;
  // A plan that was made after the step for the load that was measured before; it runs from then on if it is faster.
  struct Replan {
    double from_ms = 0, to_ms = 0;  // the step predicted under this load, with the old plan and with the new one
    double planning_ms = 0;         // by how much planning held the next step up
  };
  std::optional<Replan> replan;
};

// The same statistics of one MoE layer.
struct LayerLoad {
  double max_over_mean = 0, drop_pct = 0, router_entropy = 0;
  std::int64_t dead_experts = 0;
  // Per expert, the tokens of the whole batch that chose it; owned by the trainer.
  std::span<const double> expert_tokens = {};
  double experts_per_token = 0;
  std::optional<double> z_loss = {}, bias_spread = {};
};

// One line of JSON. The MoE layers' numbers become arrays, layer_load_max_over_mean and so on.
std::string to_json(const StepRecord& record, std::span<const LayerLoad> layers = {}, bool expert_tokens = true);
// If a record has more token counts than this over all layers, they would outweigh its other fields: then only the
// records of steps that have a step line contain them.
inline constexpr std::size_t most_counts = 1024;
// step i/N | loss | norm | ms (exposed) | tok/s | MFU | drop | ETA, in at most 120 columns; the record has the rest.
// seconds_left is empty before a step was timed.
std::string step_line(const StepRecord& record, std::int64_t steps, std::optional<double> seconds_left);

// The held-out loss after a step, as a line of its own beside the step's record.
std::string held_out_json(std::int64_t step, double loss);

// metrics.jsonl: one line for each step and each evaluation, written at once.
class MetricsFile {
 public:
  // Keeps existing records: their file is renamed to metrics.jsonl.1, or the next free number, which is logged. Data
  // error: the file cannot be created.
  static Result<MetricsFile> create(const std::filesystem::path& path);
  // Opens the file of a run that resumes after `step`. Records of later steps and a line cut short are removed, which
  // is logged. Data error: the file cannot be written.
  static Result<MetricsFile> resume(const std::filesystem::path& path, std::int64_t step);
  // Data error on a full disk.
  Status write(const StepRecord& record, std::span<const LayerLoad> layers = {}, bool expert_tokens = true);
  Status write_held_out(std::int64_t step, double loss);
  // True if resume() found the held-out loss of its step.
  bool has_held_out() const { return has_held_out_; }

 private:
  explicit MetricsFile(AppendFile file) : file_(std::move(file)) {}
  Status append(const std::string& line, std::int64_t step);
  AppendFile file_;
  bool has_held_out_ = false;
};

// A TensorBoard event file, which holds the scalars of each step. The format is TensorFlow's: records framed by length
// and CRC-32C (TFRecord), each a protocol buffer `Event`.
struct Scalar {
  std::string tag;  // "train/loss": TensorBoard groups tags by the text before the slash
  double value = 0;
};

// The numbers of a record that are set, and those of the layers under "layers/...".
std::vector<Scalar> scalars(const StepRecord& record, std::span<const LayerLoad> layers);

// Castagnoli's CRC, which TFRecord uses, before masking.
std::uint32_t crc32c(std::string_view bytes);

class EventFile {
 public:
  // Creates events.out.tfevents.<second>.<host>.<process> in `folder`. resumed: the step after which the run resumes;
  // TensorBoard then ignores later steps in earlier files. Data error: the file cannot be created.
  static Result<EventFile> create(const std::filesystem::path& folder, std::optional<std::int64_t> resumed = {});
  // Appends one event. Data error on a full disk.
  Status write(std::int64_t step, std::span<const Scalar> scalars);

 private:
  explicit EventFile(AppendFile file) : file_(std::move(file)) {}
  Status append(std::string_view event);
  AppendFile file_;
};

}  // namespace lancet::run
