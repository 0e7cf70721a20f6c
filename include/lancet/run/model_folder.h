// Trained models on disk: finds and loads the model that `--from` names, and writes an imported model as a run folder.
#pragma once
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "lancet/base/result.h"
#include "lancet/checkpoint/checkpoint.h"
#include "lancet/comm/communicator.h"
#include "lancet/config/config.h"
#include "lancet/runtime/tensor_store.h"

namespace lancet::run {

struct ModelFolder {
  checkpoint::Checkpoint checkpoint;
  // The run's config, except that num_local_experts holds the number of experts, whatever field the run set, and that
  // the section mesh is the default if its axes do not fit the ranks that load the model.
  config::Config config;
  std::optional<std::filesystem::path> tokenizer;  // an existing folder: the config's, else the run's own
  std::string name() const { return checkpoint.path().string(); }
};

// Collective. from: a checkpoint's folder, or the folder of a run with checkpoints. Passes the newest checkpoint to
// `load`; if opening or loading it is a data error on any rank, logs why and tries the next older one. Returns the one
// that was loaded. Data errors: `from` is neither kind of folder; no checkpoint is whole. Internal error: the system
// cannot list a folder. Other errors of `load` are returned unchanged.
Result<ModelFolder> load_newest(const std::filesystem::path& from, comm::Communicator& world,
                                const std::function<Status(const ModelFolder&)>& load);

// Fills the store's parameters, with what its rank holds of each, from a checkpoint of any mesh. Data errors: a tensor
// that is missing, unknown, or of another shape or type; a damaged file.
Status load_parameters(const checkpoint::Checkpoint& checkpoint, runtime::TensorStore& store);

struct ModelTokenizer {
  std::filesystem::path folder;
  std::uint64_t hash = 0;  // Manifest::tokenizer_hash
};

// Creates the run folder `run`, complete or not at all: config.json, checkpoints/step-000000 with weights alone, and,
// if a tokenizer is given, a copy of it, which the config then names. store: the whole model in f32 (hugging_face.h).
// progress: bytes written, and in all. Config error: `run` exists and is not empty.
Status save_model(
    const std::filesystem::path& run, config::Config config, runtime::TensorStore& store,
    const std::optional<ModelTokenizer>& tokenizer,
    const std::function<void(std::int64_t done, std::int64_t bytes)>& progress = [](std::int64_t, std::int64_t) {});

// Checks, before a long job starts, that a new folder `out` of about `bytes` bytes can be created. Config error: it
// exists and is not empty. Data errors: the parent folder cannot be written, or its disk has less free space.
Status check_new_folder(const std::filesystem::path& out, std::int64_t bytes);

// A new folder that appears under its name only when it is complete: it is filled under a temporary name and renamed.
class NewFolder {
 public:
  // Config error: `out` exists and is not empty.
  static Result<NewFolder> create(const std::filesystem::path& out);
  ~NewFolder();  // removes the temporary folder unless commit() succeeded
  NewFolder(NewFolder&& other) noexcept;
  NewFolder& operator=(NewFolder&&) = delete;
  const std::filesystem::path& path() const { return temporary_; }  // the temporary folder beside `out`, to be filled
  const std::filesystem::path& target() const { return target_; }
  Status commit();  // one rename

 private:
  NewFolder(std::filesystem::path target, std::filesystem::path temporary)
      : target_(std::move(target)), temporary_(std::move(temporary)) {}
  std::filesystem::path target_, temporary_;
};
// Copies vocab.json, merges.txt and, if there is one, added_tokens.json.
Status copy_tokenizer(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace lancet::run
