#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "config.h"
#include "lancet/base/json.h"
#include "lancet/checkpoint/safetensors.h"
#include "lancet/models/hugging_face.h"
#include "lancet/run/model_folder.h"

namespace lancet::models {
namespace {

using checkpoint::TensorInfo;

struct Shard {
  std::string file;
  std::vector<Entry> entries;
  std::int64_t bytes = 0;
};

class Export {
 public:
  Export(const config::Model& model, runtime::TensorStore& store, const HuggingFaceExport& options)
      : model_(model), store_(store), options_(options) {}

  // Assigns tensors to files in order; a file ends when the next tensor would not fit. Returns the bytes of all
  // tensors.
  std::int64_t plan() {
    for (Entry& entry : entries(model_)) {
      const std::int64_t bytes = entry.shape.elements() * size_of(options_.dtype);
      if (shards_.empty() || (shards_.back().bytes > 0 && bytes > options_.shard_bytes - shards_.back().bytes))
        shards_.emplace_back();
      shards_.back().bytes += bytes;
      shards_.back().entries.push_back(std::move(entry));
      bytes_in_all_ += bytes;
    }
    for (std::size_t i = 0; i < shards_.size(); ++i)
      shards_[i].file = shards_.size() == 1 ? std::string(single_file)
                                            : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards_.size());
    return bytes_in_all_;
  }

  Status write(const std::filesystem::path& folder) {
    folder_ = folder;
    for (const Shard& shard : shards_) LANCET_TRY(write(shard));
    if (shards_.size() > 1) LANCET_TRY(write_index());
    return checkpoint::write_file(checkpoint::disk(), folder_ / "config.json", config_text(model_, options_));
  }

 private:
  static std::string name_of(const Entry& entry) { return std::string(prefix) + entry.name; }

  Status write(const Shard& shard) {
    std::vector<TensorInfo> infos;
    for (const Entry& entry : shard.entries)
      infos.push_back({name_of(entry), options_.dtype == DType::bf16 ? "BF16" : "F32", entry.shape});
    LANCET_ASSIGN(auto writer, checkpoint::SafetensorsWriter::create(checkpoint::disk(), folder_ / shard.file,
                                                                     std::move(infos), {{"format", "pt"}}));
    for (const Entry& entry : shard.entries) LANCET_TRY(append(entry, writer));
    return writer.finish();
  }

  // Converts one tensor and appends it. The buffers take a few times the memory of the largest tensor.
  Status append(const Entry& entry, checkpoint::SafetensorsWriter& writer) {
    values_.resize(static_cast<std::size_t>(entry.shape.elements()));
    LANCET_TRY(store_.read(store_[entry.parameter], first_byte(entry), std::as_writable_bytes(std::span(values_))));
    std::span<const float> values = values_;
    if (entry.transposed) {
      turned_.resize(values.size());
      transpose(values, entry.shape[1], entry.shape[0], turned_);
      values = turned_;
    }
    if (options_.dtype == DType::f32) return writer.append(std::as_bytes(values));
    bytes_.resize(values.size() * std::size_t(size_of(options_.dtype)));
    from_floats(options_.dtype, values, bytes_);
    return writer.append(bytes_);
  }

  Status write_index() {
    nlohmann::ordered_json index;
    index["metadata"]["total_size"] = bytes_in_all_;
    for (const Shard& shard : shards_)
      for (const Entry& entry : shard.entries) index["weight_map"][name_of(entry)] = shard.file;
    return checkpoint::write_file(checkpoint::disk(), folder_ / index_file,
                                  json_text(index, {.indent = 2, .strict = true}) + "\n");
  }

  const config::Model& model_;
  runtime::TensorStore& store_;
  std::filesystem::path folder_;
  const HuggingFaceExport& options_;
  std::vector<Shard> shards_;
  std::int64_t bytes_in_all_ = 0;
  std::vector<float> values_, turned_;  // of the tensor being written
  std::vector<std::byte> bytes_;
};

}  // namespace

config::Model exported_model(const config::Config& config) {
  config::Model model = config.model;
  if (model.has_moe() && model.experts_choose()) model.router_group_size = config.group_sequences();
  return model;
}

Status export_hugging_face(const config::Model& model, runtime::TensorStore& store, const std::filesystem::path& out,
                           const HuggingFaceExport& options) {
  Export files(model, store, options);
  LANCET_TRY(run::check_new_folder(out, files.plan()));
  LANCET_ASSIGN(run::NewFolder folder, run::NewFolder::create(out));
  LANCET_TRY(files.write(folder.path()));
  if (options.tokenizer) LANCET_TRY(run::copy_tokenizer(*options.tokenizer, folder.path()));
  return folder.commit();
}

}  // namespace lancet::models
