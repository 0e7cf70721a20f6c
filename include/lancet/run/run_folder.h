// Folders of runs: the one that a run writes, and those of trained models, which `--from` names or an import makes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lancet/base/files.h"
#include "lancet/base/result.h"
#include "lancet/checkpoint/checkpoint.h"
#include "lancet/checkpoint/file_system.h"
#include "lancet/comm/communicator.h"
#include "lancet/config/config.h"
#include "lancet/data/tokenizer.h"
#include "lancet/ir/plan.h"
#include "lancet/run/checkpoint_tensors.h"
#include "lancet/run/metrics.h"
#include "lancet/runtime/tensor_store.h"

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

// The folder of a run, which rank 0 writes. One run at a time owns it. Once the run trains, a record that cannot be
// written is logged and does not end the run.
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

// A trained model on the disk.
struct ModelFolder {
  checkpoint::Checkpoint checkpoint;
  // The run's config, except that num_local_experts holds the number of experts, whatever field the run set, and that
  // the section mesh is the default if its axes do not fit the ranks that load the model.
  config::Config config;
  std::optional<std::filesystem::path> tokenizer;  // an existing folder: the config's, else the run's own
  data::TextBounds bounds;                         // of the run's generation_config.json, which imports have
  std::optional<std::filesystem::path> source;     // the run's config::source_folder, if it has one
  std::string name() const { return checkpoint.path().string(); }
};

// Collective: true if rank 0 does not find the checkpoint. A run renames a checkpoint before it deletes its files.
Result<bool> is_removed(const std::filesystem::path& checkpoint, comm::Communicator& world);

// Collective. A data error, on all ranks, if the manifest, with its checksums of all tensors, differs from rank 0's.
Status agree_on_checkpoint(comm::Communicator& world, const checkpoint::Checkpoint& checkpoint);

// Collective. from: a checkpoint's folder, or the folder of a run with checkpoints. Passes the newest checkpoint to
// `load`; if opening or loading it is a data error on any rank, logs why and tries the next older one, or begins with
// the newest again if a run that trains has removed the checkpoint. Returns the one that was loaded. Data errors:
// `from` is neither kind of folder; no checkpoint is whole. Internal error: the system cannot list a folder. Other
// errors of `load` are returned unchanged.
Result<ModelFolder> load_newest(const std::filesystem::path& from, comm::Communicator& world,
                                const std::function<Status(const ModelFolder&)>& load);

// Fills the store's parameters, with what its rank holds of each, from a checkpoint of any mesh. Data errors: a tensor
// that is missing, unknown, or of another shape or type; a damaged file.
Status load_parameters(const checkpoint::Checkpoint& checkpoint, runtime::TensorStore& store);

// A tokenizer and the folder that it was loaded from.
struct ModelTokenizer {
  std::filesystem::path folder;
  data::Tokenizer tokenizer;
};

// Creates the run folder `run`, complete or not at all: config.json, checkpoints/step-000000 with weights alone, and,
// if a tokenizer is given, a copy of it, which the config then names. weights: shares_of a store of the whole model,
// whose values `read` gives, elements of one expert at a time. progress: bytes written, and in all. bounds: of the
// model, for generation_config.json. keep_source: if given, fills config::source_folder, which then has the tokenizer
// as well. Config error: `run` exists and is not empty. Data errors: those of check_new_folder and of `read`.
Status save_model(
    const std::filesystem::path& run, config::Config config, const RankShare& weights, const ReadParameter& read,
    const std::optional<ModelTokenizer>& tokenizer,
    const std::function<void(std::int64_t done, std::int64_t bytes)>& progress = [](std::int64_t, std::int64_t) {},
    const data::TextBounds& bounds = {},
    const std::function<Status(const std::filesystem::path& to)>& keep_source = {});

// Writes the ids that begin and end texts into the folder's generation_config.json, beside what that holds. A file that
// is no JSON object is replaced.
Status write_bounds(const std::filesystem::path& folder, const data::TextBounds& bounds);

// Config error: a name of a folder or file that no config.json and no line of the log can hold.
Status check_run_name(std::string_view field, const std::string& run);

// Checks, before a long job starts, that a new folder `out` of about `bytes` bytes can be created. Config error: it
// exists and is not empty, or is a mount point. Data errors: the parent folder cannot be written, or its disk has less
// free space.
Status check_new_folder(const std::filesystem::path& out, std::int64_t bytes);

// A new folder that appears under its name only when it is complete: it is filled under a temporary name and renamed.
class NewFolder {
 public:
  // Config error: that of check_new_folder. A link to an empty folder stays, and the folder is replaced.
  static Result<NewFolder> create(const std::filesystem::path& out);
  ~NewFolder();  // removes the temporary folder unless commit() succeeded
  NewFolder(NewFolder&& other) noexcept;
  NewFolder& operator=(NewFolder&&) = delete;
  const std::filesystem::path& path() const { return temporary_; }  // the temporary folder beside `out`, to be filled
  Status commit();  // one rename. Config error: that of check_new_folder

 private:
  NewFolder(std::filesystem::path target, std::filesystem::path temporary)
      : target_(std::move(target)), temporary_(std::move(temporary)) {}
  std::filesystem::path target_, temporary_;
};
// Copies the files of a tokenizer (data::kDescriptions, vocab.json and merges.txt) byte by byte, except that
// generation_config.json of the copy names the tokens at which texts begin and end, whichever file of its folder does.
Status copy_tokenizer(const ModelTokenizer& from, const std::filesystem::path& to);

}  // namespace lancet::run
