// Trained models on disk: where `--from` finds one, and how an imported one is laid out.
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
  // As the run had it, but for the experts, which are counted over all ranks (num_local_experts).
  config::Config config;
  std::optional<std::filesystem::path> tokenizer;  // a folder that is there: the config's, or else the run's own
  std::string name() const { return checkpoint.path().string(); }
};

// Collective. from: a checkpoint's folder, or a run's with checkpoints. Hands `load` the newest of them; where that, or
// opening it, ends in a data error on any rank, the next older one, and the log says which were left out and why. The
// one that was loaded. Data errors: `from` is neither; none is whole. Internal error: the system does not let a folder
// be read, so that nobody knows what is in it. Other errors of `load` are returned as they are.
Result<ModelFolder> load_newest(const std::filesystem::path& from, comm::Communicator& world,
                                const std::function<Status(const ModelFolder&)>& load);

// Fills the store's parameters, those of this rank's experts, from a checkpoint of any number of ranks. Data errors: a
// tensor that is missing, unknown, or of another shape or type; a damaged file.
Status load_parameters(const checkpoint::Checkpoint& checkpoint, int rank, int ranks, runtime::TensorStore& store);

// Makes the run folder `run` (whole or not at all): config.json, checkpoints/step-000000 with weights alone, and, where
// given, a copy of the tokenizer, which the config then names. store: the whole model in f32 (hugging_face.h). Config
// error: `run` is there and not empty.
Status save_model(
    const std::filesystem::path& run, config::Config config, runtime::TensorStore& store,
    const std::optional<std::filesystem::path>& tokenizer,
    const std::function<void(std::int64_t done, std::int64_t bytes)>& progress = [](std::int64_t, std::int64_t) {});

// Before the work for a new folder `out` of about so many bytes begins. Config error: it is there and not empty. Data
// errors: the folder that it will lie in cannot be written, or its disk has less room.
Status check_new_folder(const std::filesystem::path& out, std::int64_t bytes);

// What commands that make a folder begin and end with. Config error: `out` is there and not empty.
class NewFolder {
 public:
  static Result<NewFolder> create(const std::filesystem::path& out);
  ~NewFolder();  // removes what was not committed
  NewFolder(NewFolder&& other) noexcept;
  NewFolder& operator=(NewFolder&&) = delete;
  const std::filesystem::path& path() const { return temporary_; }  // to be filled, beside `out`
  const std::filesystem::path& target() const { return target_; }
  Status commit();  // one rename

 private:
  NewFolder(std::filesystem::path target, std::filesystem::path temporary)
      : target_(std::move(target)), temporary_(std::move(temporary)) {}
  std::filesystem::path target_, temporary_;
};
Status copy_tokenizer(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace lancet::run
