// The folder of a run, which rank 0 writes. One run at a time owns it. Once the run trains, a record that cannot be
// written is logged and does not end the run.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lancet/base/files.h"
#include "lancet/base/result.h"
#include "lancet/checkpoint/file_system.h"
#include "lancet/config/config.h"
#include "lancet/ir/plan.h"
#include "lancet/run/metrics.h"

namespace lancet::run {

// The state of a file that a run can do without: logs the first failed write of a series, and the end of the series.
class Lasting {
 public:
  explicit Lasting(std::string name) : name_(std::move(name)) {}
  void note(const Status& written);

 private:
  std::string name_;
  std::int64_t lost_ = 0;  // writes in a row that failed
};

class RunFolder {
 public:
  // Creates config.log.run_dir if it does not exist, and locks it against other runs while this object lives. Config
  // error: its name has control characters. Data errors: it cannot be created; another run holds the lock.
  static Result<RunFolder> take(const config::Config& config);
  ~RunFolder();  // removes the empty folders that take() created, unless begin() was called
  RunFolder(RunFolder&&) = default;

  // Writes config.json, plan.ir and memory.json (the text `memory`) and opens the records. resumed: the step after
  // which the run resumes; records of later steps are removed, and later checkpoints renamed. Data errors: those of the
  // file system.
  Status begin(checkpoint::FileSystem& files, const config::Config& config, const ir::Plan& plan,
               const std::string& memory, std::optional<std::int64_t> resumed);

  void record(const StepRecord& record, std::span<const LayerLoad> layers, bool expert_tokens);
  void held_out(std::int64_t step, double loss);
  void plan(const ir::Plan& plan);  // replaces plan.ir
  void trace(const std::string& text);
  // Data error: the path names another folder than the one that take() locked, or none.
  Status check_in_place() const;
  // True if the records hold the held-out loss of the step after which the run resumes.
  bool has_held_out() const { return metrics_ && metrics_->has_held_out(); }

 private:
  explicit RunFolder(std::filesystem::path path) : path_(std::move(path)) {}
  Status make();
  Status lock();
  bool is_in_place() const;
  Status open_records(checkpoint::FileSystem& files, std::optional<std::int64_t> resumed);

  std::filesystem::path path_;
  std::vector<std::filesystem::path> made_;  // by take(), outermost first
  Descriptor lock_;                          // the system releases the lock however the process ends
  std::optional<MetricsFile> metrics_;
  std::optional<EventFile> events_;
  Lasting metrics_state_{"metrics.jsonl"}, events_state_{"the TensorBoard event file"}, trace_state_{"trace.json"},
      plan_state_{"plan.ir"};
};

}  // namespace lancet::run
