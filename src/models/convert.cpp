// An import reads the values of a folder (folder.cpp) where its checkpoint needs them. Upcycling reads a dense FFN
// again for every expert and adds noise, and draws the gates' weights. An export writes the first layout of each
// parameter (layout.h), tensor by tensor.
#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "files.h"
#include "lancet/base/json.h"
#include "lancet/base/random.h"
#include "lancet/base/shown.h"
#include "lancet/checkpoint/safetensors.h"
#include "lancet/config/hugging_face.h"
#include "lancet/model/transformer.h"
#include "lancet/models/hugging_face.h"
#include "lancet/run/checkpoint_tensors.h"
#include "lancet/run/run_folder.h"
#include "layout.h"

namespace lancet::models {
namespace {

// Of one rank, which holds all of each tensor.
ir::Program whole_program(const config::Model& model) {
  ir::Program program = model::build_forward(model, {.mode = model::Mode::generate});
  for (ir::Tensor& tensor : program.tensors) tensor.sharding.reset();
  return program;
}

// A model of another family with the fields that both families have, and defaults for the others.
Result<config::Model> in_family(const config::Model& model, const config::Family& family, const std::string& where) {
  const auto fields_of = [](const config::Model& of) {
    config::Config config;
    config.model = of;
    return json_of(config::to_json(config))["model"];
  };
  const nlohmann::json ours = fields_of(model), defaults = fields_of(config::defaults_of(model.family()));
  nlohmann::json made{{"model_type", family.name}};
  for (const auto& [name, value] : ours.items())
    if (family.has(name))
      made[name] = value;
    else if (name != "model_type" && value != defaults[name])
      return data_error(fmt::format("{}: {}: expected {}, since {} has no such field, found {}", where, name,
                                    shown(defaults[name]), family.name, shown(value)));
  LANCET_ASSIGN(const config::Config config, config::parse(json_text(nlohmann::json{{"model", made}}), where));
  return config.model;
}

}  // namespace

runtime::TensorStore reserve_whole_store(const config::Model& model) {
  runtime::TensorStore store;
  store.reserve_only();
  store.add(whole_program(model));
  return store;
}

ImportedModel::ImportedModel(HuggingFaceFolder folder) : folder_(std::move(folder)), config_(folder_.config()) {}

Result<ImportedModel> ImportedModel::open(const std::filesystem::path& folder, const std::optional<Upcycle>& upcycle,
                                          std::span<const std::string> accepted) {
  LANCET_ASSIGN(HuggingFaceFolder opened, HuggingFaceFolder::open(folder, accepted));
  ImportedModel model(std::move(opened));
  if (upcycle) LANCET_TRY(model.upcycle(*upcycle));
  LANCET_TRY(model.folder_.check_head());
  model.tokenizer_ = model.folder_.tokenizer();
  LANCET_ASSIGN(model.bounds_, model.folder_.bounds(model.tokenizer_.has_value()));
  return model;
}

Status ImportedModel::upcycle(const Upcycle& upcycle) {
  upcycle_ = upcycle;
  config::Model& made = config_.model;
  if (made.has_moe())
    return config_error(fmt::format("upcycle: expected a dense model in {}, found a mixture of {} experts",
                                    folder_.path().string(), made.num_local_experts.value()));
  const config::Family& family = *config::find_family(made.family().mixture);
  const bool is_other = &family != &made.family();
  if (is_other) {
    LANCET_ASSIGN(made, in_family(made, family, (folder_.path() / "config.json").string()));
  }
  made.num_local_experts = upcycle.experts;
  made.num_experts_per_tok = 1;
  made.moe_layer_freq = upcycle.layer_freq.value_or(is_other ? 1 : 2);
  if (is_other) {
    if (made.moe_layer_freq != 1 && !family.has("decoder_sparse_step"))
      return config_error(fmt::format("--moe-layer-freq: expected 1, since all blocks of {} have experts, found {}",
                                      family.name, made.moe_layer_freq));
    // Two whose weights sum to 1, so that copies without noise compute what the FFN did.
    made.num_experts_per_tok = std::min<std::int64_t>(2, upcycle.experts);
    made.norm_topk_prob = true;
  }
  const std::vector<std::string> all = folder_.parameters();
  const std::set<std::string> there(all.begin(), all.end());
  LANCET_TRY(config::check(config_, 1));
  for (const model::Parameter& parameter : model::parameters(made))
    if (!there.contains(parameter.name)) made_.emplace(parameter.name, parameter);
  return {};
}

Status ImportedModel::read(const std::string& parameter, const FlatRange& elements, std::span<float> to,
                           std::int64_t step) {
  const auto at = made_.find(parameter);
  if (at == made_.end()) return folder_.read(parameter, elements, to, step);
  const model::Parameter& made = at->second;
  if (!made.is_experts) {  // a gate
    model::initialize(made, upcycle_.seed, {{elements.begin, 0, elements.size()}}, to);
    return {};
  }
  const std::int64_t each = made.shape.elements() / made.shape[0];
  const std::int64_t expert = elements.begin / each, first = elements.begin % each;
  constexpr std::string_view experts = ".moe.experts.";
  std::string dense = parameter;
  dense.replace(dense.find(experts), experts.size(), ".mlp.");
  LANCET_TRY(folder_.read(dense, {first, first + elements.size()}, to));
  if (!made.deviation || upcycle_.noise == 0) return {};
  LANCET_ASSIGN(const double deviation, deviation_of(dense, each));
  noise_.resize(to.size());
  Philox(upcycle_.seed, stream_of(fmt::format("upcycle.{}.{}", parameter, expert))).normals(first, noise_);
  for (std::size_t i = 0; i < to.size(); ++i) to[i] += float(deviation * double(noise_[i]));
  return {};
}

Result<double> ImportedModel::deviation_of(const std::string& dense, std::int64_t elements) {
  if (const auto known = deviations_.find(dense); known != deviations_.end()) return known->second;
  double squares = 0;
  std::vector<float> values;
  for (std::int64_t at = 0, most = 1 << 20; at < elements; at += most) {
    const FlatRange range{at, std::min(elements, at + most)};
    values.resize(std::size_t(range.size()));
    LANCET_TRY(folder_.read(dense, range, values));
    for (const float x : values) squares += double(x) * double(x);
  }
  return deviations_[dense] = upcycle_.noise * std::sqrt(squares / double(elements));
}

namespace {

using checkpoint::TensorInfo;

// A tensor of an export, and where its values are.
struct Entry {
  Piece piece;
  std::string parameter;
  std::int64_t columns = 1;
  std::string name = piece.tensor, dtype = {};  // in the file
  std::int64_t bytes() const { return piece.shape.elements() * checkpoint::element_bytes(dtype); }
};

// In the order in which the model uses them, expert by expert.
std::vector<Entry> entries_of(const config::Model& model) {
  const std::vector<model::Parameter> all = model::parameters(model);
  std::vector<Entry> entries;
  for (auto first = all.begin(), next = first; first != all.end(); first = next) {
    next =
        std::find_if(first + 1, all.end(), [&](const auto& other) { return !first->is_experts || !other.is_experts; });
    const std::int64_t experts = first->is_experts ? first->shape[0] : 1;
    std::vector<Layout> layouts;  // of the parameters of a layer's experts
    for (auto at = first; at != next; ++at) layouts.push_back(layouts_of(model, *at).front());
    for (std::int64_t expert = 0; expert < experts; ++expert)
      for (std::size_t p = 0; p < layouts.size(); ++p) {
        const auto& pieces = layouts[p].pieces;
        const std::size_t each = pieces.size() / std::size_t(experts);
        for (std::size_t i = 0; i < each; ++i)
          entries.push_back(
              {pieces[std::size_t(expert) * each + i], first[std::ptrdiff_t(p)].name, layouts[p].columns});
      }
  }
  return entries;
}

struct Shard {
  std::string file;
  std::vector<Entry> entries;
  std::int64_t bytes = 0;
};

class Export {
 public:
  Export(const config::Model& model, const run::ReadParameter& read, const HuggingFaceExport& options)
      : model_(model), read_(read), options_(options) {}

  // Assigns tensors to files in order; a file ends when the next tensor would not fit. Returns the bytes of all
  // tensors.
  std::int64_t plan() {
    std::vector<Entry> entries = entries_of(model_);
    name_types(entries);
    for (Entry& entry : entries) {
      const std::int64_t bytes = entry.bytes();
      if (shards_.empty() || (shards_.back().bytes > 0 && bytes > options_.shard_bytes - shards_.back().bytes))
        shards_.emplace_back();
      shards_.back().bytes += bytes;
      shards_.back().entries.push_back(std::move(entry));
      bytes_in_all_ += bytes;
    }
    for (std::size_t i = 0; i < shards_.size(); ++i)
      shards_[i].file = shards_.size() == 1 ? std::string(weights_file)
                                            : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards_.size());
    return bytes_in_all_;
  }

  Status write(const std::filesystem::path& folder) {
    folder_ = folder;
    for (const Shard& shard : shards_) LANCET_TRY(write(shard));
    if (shards_.size() > 1) LANCET_TRY(write_index());
    LANCET_ASSIGN(const std::string text, config_text(model_, options_));
    LANCET_TRY(checkpoint::write_file(checkpoint::disk(), folder_ / "config.json", text));
    if (options_.source)
      LANCET_TRY(copy_small_files(*options_.source, folder_, {"config.json", std::string(types_file)}));
    return {};
  }

 private:
  // Names and types as in the files that the model was imported from. A head that was beside a tied embedding comes
  // again.
  void name_types(std::vector<Entry>& entries) const {
    std::map<std::string, std::pair<std::string, std::string>> known;  // by name with the prefix
    const std::string_view prefix = model_.family().file.prefix;
    for (const auto& type : options_.types) known[with_prefix(type.first, prefix)] = type;
    if (known.contains(std::string(head)) && model_.tie_word_embeddings) {
      entries.push_back(entries.front());  // the token embedding
      entries.back().piece.tensor = entries.back().name = head;
    }
    for (Entry& entry : entries) {
      entry.dtype = options_.dtype == DType::bf16 ? "BF16" : "F32";
      const auto at = known.find(entry.piece.tensor);
      if (at == known.end()) continue;
      entry.name = at->second.first;
      if (!options_.dtype) entry.dtype = at->second.second;
    }
  }

  Status write(const Shard& shard) {
    std::vector<TensorInfo> infos;
    for (const Entry& entry : shard.entries) infos.push_back({entry.name, entry.dtype, entry.piece.shape});
    LANCET_ASSIGN(auto writer, checkpoint::SafetensorsWriter::create(checkpoint::disk(), folder_ / shard.file,
                                                                     std::move(infos), {{"format", "pt"}}));
    for (const Entry& entry : shard.entries) LANCET_TRY(append(entry, writer));
    return writer.finish();
  }

  // Converts one tensor and appends it, in blocks of rows. A transpose is one block: its buffers take a few times the
  // memory of the largest tensor.
  Status append(const Entry& entry, checkpoint::SafetensorsWriter& writer) {
    const Piece& piece = entry.piece;
    constexpr std::int64_t most = 1 << 20;
    const std::int64_t rows =
        piece.transposed ? piece.count : std::max<std::int64_t>(1, most / (piece.step * entry.columns));
    for (std::int64_t row = 0; row < piece.count; row += rows)
      LANCET_TRY(append(entry, row, std::min(rows, piece.count - row), writer));
    return {};
  }

  Status append(const Entry& entry, std::int64_t row, std::int64_t rows, checkpoint::SafetensorsWriter& writer) {
    const Piece& piece = entry.piece;
    const std::int64_t columns = entry.columns, first = (piece.row + piece.step * row) * columns;
    values_.resize(std::size_t((piece.step * (rows - 1) + 1) * columns));
    LANCET_TRY(read_(entry.parameter, {first, first + std::ssize(values_)}, values_, piece.step));
    for (std::int64_t i = 1; i < rows && piece.step > 1; ++i)
      std::copy_n(values_.begin() + i * piece.step * columns, columns, values_.begin() + i * columns);
    std::span<const float> values = std::span(values_).first(std::size_t(rows * columns));
    if (piece.transposed) {
      turned_.resize(values.size());
      transpose(values, rows, columns, turned_);
      std::swap(values_, turned_);
      values = values_;
    }
    if (entry.dtype == "F32") return writer.append(std::as_bytes(values));
    bytes_.resize(values.size() * 2);
    from_floats(entry.dtype, values, bytes_);
    turned_.resize(values.size());
    to_floats(entry.dtype, bytes_, turned_);
    const auto large = std::ranges::find_if_not(turned_, [](float x) { return std::isfinite(x); });
    if (large == turned_.end()) return writer.append(bytes_);
    const std::int64_t i = large - turned_.begin();
    return data_error(fmt::format("{}: expected numbers that {} holds, found {} at element {}; fp32 holds it",
                                  entry.name, entry.dtype == "BF16" ? "bf16" : "fp16", values[std::size_t(i)],
                                  row * columns + i));
  }

  Status write_index() {
    nlohmann::ordered_json index;
    index["metadata"]["total_size"] = bytes_in_all_;
    for (const Shard& shard : shards_)
      for (const Entry& entry : shard.entries) index["weight_map"][entry.name] = shard.file;
    return checkpoint::write_file(checkpoint::disk(), folder_ / index_file,
                                  json_text(index, {.indent = 2, .strict = true}) + "\n");
  }

  const config::Model& model_;
  const run::ReadParameter& read_;
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

Status export_hugging_face(const config::Model& model, const run::ReadParameter& read, const std::filesystem::path& out,
                           const HuggingFaceExport& options) {
  const config::Model theirs = config::defaults_of(model.family());
  if (model.family().file.moe_type.empty() && model.has_moe() && model.router != theirs.router)
    return config_error(fmt::format("model.router: expected \"{}\", as {} has it at Hugging Face, found \"{}\"",
                                    name(theirs.router), model.family().name, name(model.router)));
  Export files(model, read, options);
  LANCET_TRY(run::check_new_folder(out, files.plan()));
  LANCET_ASSIGN(run::NewFolder folder, run::NewFolder::create(out));
  LANCET_TRY(files.write(folder.path()));
  if (options.tokenizer) LANCET_TRY(run::copy_tokenizer(*options.tokenizer, folder.path()));
  return folder.commit();
}

}  // namespace lancet::models
