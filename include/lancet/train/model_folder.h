// Trained models on disk: where `--from` finds one, and how an imported one is laid out.
#pragma once
#include <filesystem>
#include <optional>
#include <string>

#include "lancet/base/result.h"
#include "lancet/checkpoint/checkpoint.h"
#include "lancet/config/config.h"
#include "lancet/runtime/tensor_store.h"

namespace lancet::train {

struct ModelFolder {
  checkpoint::Checkpoint checkpoint;
  // As the run had it, but for the experts, which are counted over all ranks (num_local_experts).
  config::Config config;
  std::optional<std::filesystem::path> tokenizer;  // a folder that is there: the config's, or else the run's own
  std::string name() const { return checkpoint.path().string(); }
};

// from: a run folder (its newest whole checkpoint; the log says which newer ones are damaged) or a checkpoint's folder.
// Data errors: neither, or no whole checkpoint in it; a manifest without a sound config.
Result<ModelFolder> open_model(const std::filesystem::path& from);

// Fills the store's parameters, those of this rank's experts, from a checkpoint of any number of ranks; f32 masters
// before rounded weights. model: counted over all ranks. Data errors: a tensor that is missing, or of another shape or
// type; a damaged file.
Status load_parameters(const checkpoint::Checkpoint& checkpoint, const config::Model& model, int rank, int ranks,
                       runtime::TensorStore& store);

// Makes the run folder `run` (whole or not at all): config.json, checkpoints/step-000000 with weights alone, and, where
// given, a copy of the tokenizer, which the config then names. store: the whole model in f32 (hugging_face.h). Config
// error: `run` is there and not empty.
Status save_model(const std::filesystem::path& run, config::Config config, runtime::TensorStore& store,
                  const std::optional<std::filesystem::path>& tokenizer);

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

}  // namespace lancet::train
