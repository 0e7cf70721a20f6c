// Models as Hugging Face's transformers lay them out: a folder with config.json and model.safetensors, or, in shards,
// model-00001-of-0000N.safetensors and model.safetensors.index.json. Names and shapes: docs/formats.md.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>

#include "lancet/base/dtype.h"
#include "lancet/base/result.h"
#include "lancet/config/config.h"
#include "lancet/runtime/tensor_store.h"

namespace lancet::hugging_face {

// A store of the whole model's parameters in f32, as one rank without optimizer holds them; all zero. Config error: it,
// and what converting the largest tensor takes, does not fit the memory that is free.
Result<runtime::TensorStore> make_whole_store(const config::Model& model);

struct HuggingFaceExport {
  DType dtype = DType::f32;                             // of the file's tensors: f32 or bf16
  std::int64_t shard_bytes = 5'000'000'000;             // a file holds at most so many, or a single tensor
  std::optional<std::int32_t> end_of_text = {};         // the tokenizer's
  std::optional<std::filesystem::path> tokenizer = {};  // folder whose vocab.json and merges.txt go along
};

// Makes the folder `out`, whole or not at all. model, store: as above. Config error: `out` is there and not empty. Data
// errors: what the disk says.
Status export_hugging_face(const config::Model& model, runtime::TensorStore& store, const std::filesystem::path& out,
                           const HuggingFaceExport& options);

// Turns a dense model into a mixture of experts: the FFN of each block that becomes one is copied to all its experts.
struct Upcycle {
  std::int64_t experts = 0;  // of a layer
  std::int64_t layer_freq = 2;
  // Each weight of an expert is off by a normal number with this deviation, relative to the root mean square of the
  // dense weights, so that the experts can part ways.
  double noise = 0.01;
  std::uint64_t seed = 1;
};

// What a long import tells on its way.
struct ImportWatch {
  // How many bytes of weights it makes, before it takes memory for them. An error of it ends the import.
  std::function<Status(std::int64_t bytes)> begin = [](std::int64_t) { return Status(); };
  std::function<void(std::int64_t done, std::int64_t bytes)> progress = [](std::int64_t, std::int64_t) {};
};

struct HuggingFaceModel {
  config::Config config;  // the model, with defaults for training; train.dtype as in the file
  runtime::TensorStore store;
  bool has_tokenizer = false;  // vocab.json and merges.txt lie in the folder
};

// Dense GPT-2, and mixtures of experts as export_hugging_face writes them; tensors of F32, F16 or BF16. Errors name the
// file and the field or tensor. Config errors: a config.json of another kind of model, or out of range; a mixture of
// experts that is to be upcycled. Data errors: a file that is missing or damaged; a tensor that is missing, unknown, of
// another shape or type; a head that is not tied; an index that leaves the folder.
Result<HuggingFaceModel> import_hugging_face(const std::filesystem::path& folder,
                                             const std::optional<Upcycle>& upcycle = {}, const ImportWatch& watch = {});

}  // namespace lancet::hugging_face
