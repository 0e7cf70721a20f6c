// Reads, imports and exports models in the layout of Hugging Face's transformers: a folder with config.json and
// model.safetensors, or, in shards, model-00001-of-0000N.safetensors and model.safetensors.index.json. Names, shapes
// and fields: config/hugging_face.h, docs/formats.md.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lancet/base/dtype.h"
#include "lancet/base/flat_shard.h"
#include "lancet/base/result.h"
#include "lancet/comm/communicator.h"
#include "lancet/config/config.h"
#include "lancet/data/tokenizer.h"
#include "lancet/model/transformer.h"
#include "lancet/run/checkpoint_tensors.h"
#include "lancet/run/run_folder.h"
#include "lancet/runtime/tensor_store.h"

namespace lancet::models {

// Name and type (F32, F16, BF16) of each tensor of a folder, so that an export of its model can have them again. One
// tensor stands for each expert.
using TensorTypes = std::map<std::string, std::string>;

// A folder opened for reading: config.json is read, and the headers of all files match its model. Values are read at
// the headers' offsets, and no others.
class HuggingFaceFolder {
 public:
  // Data errors name the file and the field or tensor: those of config::read_hugging_face(); a file that is missing or
  // damaged; a tensor that is missing, unknown, of another shape or of another type than F32, F16 or BF16; an index
  // that names files outside the folder. accepted: fields of config.json that are passed over. Logs
  // config::warning_of_factor.
  static Result<HuggingFaceFolder> open(const std::filesystem::path& folder,
                                        std::span<const std::string> accepted = {});
  // Collective; rank 0 logs. Data error besides: the ranks' folders differ in config.json or in the tensors' headers.
  static Result<HuggingFaceFolder> open_on_all(const std::filesystem::path& folder, comm::Communicator& world,
                                               std::span<const std::string> accepted = {});
  ~HuggingFaceFolder();
  HuggingFaceFolder(HuggingFaceFolder&&) noexcept;
  HuggingFaceFolder& operator=(HuggingFaceFolder&&) noexcept;

  const std::filesystem::path& path() const;
  const config::Config& config() const;  // the model's fields; defaults for training; train.dtype as in the file
  // Parameters, in the order of their bytes in the files.
  std::vector<std::string> parameters() const;
  // Fills `values` with elements of a parameter. Rows behind the vocabulary are zero. Data errors: a file that was
  // changed or cannot be read; a value that is not finite. step: the caller needs row 0, step, 2 step and so
  // on of the range; tensors that have none of these are not read.
  Status read(const std::string& parameter, const FlatRange& elements, std::span<float> values, std::int64_t step = 1);
  // Data error: the folder has a head beside an embedding that is the head, and the two differ.
  Status check_head();
  // The folder's, for the model's ids alone; with a warning none if they are not complete or not sound.
  std::optional<run::ModelTokenizer> tokenizer() const;
  Result<data::TextBounds> bounds(bool has_tokenizer) const;
  TensorTypes types() const;
  // Copies the small files (config.json, the tokenizer's, ...) to a new folder and adds the types.
  Status keep_files(const std::filesystem::path& to) const;

 private:
  struct Parts;
  explicit HuggingFaceFolder(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

// A store of the whole model's parameters in f32, as one rank without optimizer holds them. Its memory is not used
// before it is written.
runtime::TensorStore reserve_whole_store(const config::Model& model);

// Those that keep_files() added. Data errors: no such file, or other text.
Result<TensorTypes> kept_types(const std::filesystem::path& folder);

// Fills the store's parameters, with what its rank holds of each. Data errors: those of HuggingFaceFolder::read.
Status load_parameters(HuggingFaceFolder& folder, runtime::TensorStore& store);

struct HuggingFaceExport {
  std::optional<DType> dtype = {};                    // of the file's tensors: f32 or bf16; none: as imported, or f32
  std::int64_t shard_bytes = 5'000'000'000;           // most bytes of a file, unless a single tensor has more
  data::TextBounds bounds = {};                       // the tokenizer's
  std::optional<run::ModelTokenizer> tokenizer = {};  // whose files are copied
  // The folder that the model is from, or what keep_files() kept of it. The export has its small files.
  std::optional<std::filesystem::path> source = {};
  TensorTypes types = {};  // of that folder
};

// The model of a config as exports describe it: where experts choose among the tokens of a group, the number of the
// group's sequences is part of the model, and router_group_size names it.
config::Model exported_model(const config::Config& config);

// Creates the folder `out`, complete or not at all, tensor by tensor. read: gives elements of one expert at a time.
// Config errors: `out` exists and is not empty; a router that the family has not at Hugging Face. Data errors: those of
// the disk.
Status export_hugging_face(const config::Model& model, const run::ReadParameter& read, const std::filesystem::path& out,
                           const HuggingFaceExport& options);

// Turns a dense model into a mixture of experts: the FFN of each block that becomes one is copied to all its experts.
// llama becomes mixtral, qwen3 qwen3_moe.
struct Upcycle {
  std::int64_t experts = 0;                     // per layer
  std::optional<std::int64_t> layer_freq = {};  // none: 2 for GPT-2, 1 for others
  // Standard deviation of the normal noise on each weight of an expert, relative to the root mean square of the dense
  // weights. It makes the experts differ, so that they can specialise.
  double noise = 0.01;
  std::uint64_t seed = 1;
};

// A model to be imported: a folder's, or the mixture of experts that upcycling makes of it.
class ImportedModel {
 public:
  // Errors: those of HuggingFaceFolder. Config error: a mixture of experts that is to be upcycled.
  static Result<ImportedModel> open(const std::filesystem::path& folder, const std::optional<Upcycle>& upcycle = {},
                                    std::span<const std::string> accepted = {});

  const HuggingFaceFolder& folder() const { return folder_; }
  const config::Config& config() const { return config_; }
  const std::optional<run::ModelTokenizer>& tokenizer() const { return tokenizer_; }  // the folder's
  const data::TextBounds& bounds() const { return bounds_; }  // of generation_config.json or config.json
  // A run::ReadParameter, for elements of one expert at a time. Errors: those of HuggingFaceFolder::read.
  Status read(const std::string& parameter, const FlatRange& elements, std::span<float> to, std::int64_t step);

 private:
  explicit ImportedModel(HuggingFaceFolder folder);
  Status upcycle(const Upcycle& upcycle);
  Result<double> deviation_of(const std::string& dense, std::int64_t elements);

  HuggingFaceFolder folder_;
  config::Config config_;
  std::optional<run::ModelTokenizer> tokenizer_;
  data::TextBounds bounds_;
  Upcycle upcycle_;
  std::map<std::string, model::Parameter> made_;  // those of upcycling, which the folder lacks
  std::map<std::string, double> deviations_;      // of the noise, by the dense parameter
  std::vector<float> noise_;
};

}  // namespace lancet::models
