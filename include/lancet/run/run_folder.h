// The folder of a run, as rank 0 writes it: one run at a time, and what cannot be written once it trains is told, not
// fatal.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lancet/run/event_file.h"
#include "lancet/base/result.h"
#include "lancet/checkpoint/file_system.h"
#include "lancet/config/config.h"
#include "lancet/ir/plan.h"
#include "lancet/run/metrics.h"

namespace lancet::run {

// A file that a run goes on without. Says once that it fails, and once that it works again.
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
  // Makes config.log.run_dir where it is not there, and keeps other runs out of it until this object ends. Data errors:
  // no folder can be made there; another run is at work in it.
  static Result<RunFolder> take(const config::Config& config);
  ~RunFolder();  // where nothing was begun, what take() made goes
  RunFolder(RunFolder&& other) noexcept;
  RunFolder& operator=(RunFolder&& other) = delete;

  // Writes config.json and plan.ir and opens the records. resumed: the step that the run goes on after; what stands
  // there of later steps gives way. Data errors: what the file system says.
  Status begin(checkpoint::FileSystem& files, const config::Config& config, const ir::Plan& plan,
               std::optional<std::int64_t> resumed);

  void record(const StepRecord& record, std::span<const LayerLoad> layers, bool expert_tokens);
  void held_out(std::int64_t step, double loss);
  void trace(const std::string& text);
  // Whether the records hold the held-out loss of the step that the run goes on after.
  bool has_held_out() const { return metrics_ && metrics_->has_held_out(); }

 private:
  explicit RunFolder(std::filesystem::path path) : path_(std::move(path)) {}
  Status make();
  Status lock();
  Status open_records(checkpoint::FileSystem& files, std::optional<std::int64_t> resumed);

  std::filesystem::path path_;
  std::vector<std::filesystem::path> made_;  // by take(), outermost first
  int lock_ = -1;                            // a descriptor: the system lets go of it however the process ends
  std::optional<MetricsFile> metrics_;
  std::optional<EventFile> events_;
  Lasting metrics_state_{"metrics.jsonl"}, events_state_{"the TensorBoard event file"}, trace_state_{"trace.json"};
};

}  // namespace lancet::run
