// An import first matches the names, types and shapes of all tensors with config.json's model, so that memory is
// allocated only for weights that the files hold. Then it reads tensor by tensor: to f32, transposed if it is a Conv1D
// weight, into the store. Upcycling writes the tensors of a dense FFN to every expert with noise, and draws the gates'
// weights. The head must be tied: it is compared with the embedding after that was read.
#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <new>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "files.h"
#include "lancet/base/json.h"
#include "lancet/base/log.h"
#include "lancet/base/random.h"
#include "lancet/checkpoint/safetensors.h"
#include "lancet/data/tokenizer.h"
#include "lancet/model/transformer.h"
#include "lancet/models/hugging_face.h"
#include "lancet/run/checkpoint_tensors.h"
#include "lancet/run/rank_device.h"
#include "lancet/run/run_folder.h"

namespace lancet::models {
namespace {

// Bytes of the whole model's parameters in f32.
std::int64_t weight_bytes(const ir::Program& program) {
  std::int64_t bytes = 0;
  for (const ir::Tensor& tensor : program.tensors)
    if (tensor.kind == ir::TensorKind::parameter) bytes += ir::bytes(tensor.type);
  return bytes;
}

// Of one rank, which holds all of each tensor.
ir::Program whole_program(const config::Model& model) {
  ir::Program program = model::build_forward(model, {.mode = model::Mode::generate});
  for (ir::Tensor& tensor : program.tensors) tensor.sharding.reset();
  return program;
}

Status check_whole_memory(const ir::Program& program) {
  std::int64_t largest = 0;
  for (const ir::Tensor& tensor : program.tensors) {
    if (tensor.kind != ir::TensorKind::parameter) continue;
    const std::int64_t experts =
        run::holds_experts(tensor.name) ? tensor.type.shape[0] : 1;  // files hold them one by one
    largest = std::max(largest, ir::bytes(tensor.type) / experts);
  }
  constexpr std::int64_t copies = 3;  // of the tensor being read: as in the file, as f32, transposed
  return run::check_memory(weight_bytes(program) + copies * largest, 1, "the whole model in fp32");
}

Result<runtime::TensorStore> make_store(const ir::Program& program) {
  try {
    runtime::TensorStore store;
    store.add(program);
    return store;
  } catch (const std::bad_alloc&) {
    return config_error(fmt::format("expected {} MB of memory for the whole model in fp32, found less",
                                    weight_bytes(program) / 1'000'000));
  }
}

// A tensor of a Hugging Face file, and the parameter of the model that it is or is part of.
struct Entry {
  std::string name;          // without "transformer."
  Shape shape;               // in the file
  std::string parameter;     // name in the model
  std::int64_t expert = -1;  // of the parameter's first axis; -1: the file's tensor is the whole parameter
  bool transposed = false;   // a Conv1D: [in, out] in the file, [out, in] here
  // Offset of the values in the parameter, in bytes of f32. In a padded vocabulary the real tokens come first.
  std::size_t first_byte() const {
    return expert < 0 ? 0 : sizeof(float) * std::size_t(expert) * std::size_t(shape.elements());
  }
};

// The names are those of the model, but each expert is a tensor of its own. Of a padded vocabulary, the file holds the
// rows of real tokens alone.
Entry entry_of(const config::Model& model, const model::Parameter& parameter, std::int64_t expert) {
  const std::string_view name = parameter.name;
  Entry entry{expert < 0 ? parameter.name : run::expert_name(name, expert), {}, parameter.name, expert};
  for (int axis = expert < 0 ? 0 : 1; axis < parameter.shape.rank(); ++axis)
    entry.shape.push_back(parameter.shape[axis]);
  for (const char* layer : {".c_attn.weight", ".c_proj.weight", ".c_fc.weight"})
    entry.transposed = entry.transposed || name.ends_with(layer);
  if (entry.transposed) entry.shape = {entry.shape[1], entry.shape[0]};
  if (name == "wte.weight") entry.shape.set(0, model.vocab_size);
  return entry;
}

// Calls f(entry) for all tensors in the order in which the model uses them, expert by expert, until the first error.
Status for_each_entry(const config::Model& model, const std::function<Status(const Entry&)>& f) {
  const std::vector<model::Parameter> all = model::parameters(model);
  for (auto first = all.begin(), next = first; first != all.end(); first = next) {
    next = std::find_if_not(first, all.end(), [](const model::Parameter& parameter) { return parameter.is_experts; });
    for (std::int64_t expert = 0; first != next && expert < first->shape[0]; ++expert)
      for (auto of_layer = first; of_layer != next; ++of_layer) LANCET_TRY(f(entry_of(model, *of_layer, expert)));
    if (first == next) LANCET_TRY(f(entry_of(model, *next++, -1)));
  }
  return {};
}

// True for the causal masks of attention, which older files contain and which carry no weights.
bool is_buffer(std::string_view name) {
  return name.starts_with("h.") && (name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias"));
}

struct Wanted {
  Entry entry;
  FoundTensor found;
};

class Import {
 public:
  Import(const std::filesystem::path& folder, const std::optional<Upcycle>& upcycle, const ImportWatch& watch)
      : folder_(folder), upcycle_(upcycle), watch_(watch) {}

  Result<HuggingFaceModel> operator()() {
    HuggingFaceModel model;
    LANCET_ASSIGN(model.config, read_config(folder_ / "config.json"));
    const config::Model dense = model.config.model;
    LANCET_ASSIGN(TensorFiles files, TensorFiles::open(folder_));
    LANCET_TRY(match(dense, files));
    LANCET_TRY(upcycle(model.config));
    model.config.train.dtype = all_bf16_ ? DType::bf16 : DType::f32;
    const ir::Program program = whole_program(model.config.model);
    for (const model::Parameter& p : model::parameters(model.config.model)) parameters_.emplace(p.name, p);
    bytes_in_all_ = weight_bytes(program);
    LANCET_TRY(check_whole_memory(program));
    LANCET_TRY(watch_.begin(bytes_in_all_));
    LANCET_ASSIGN(model.store, make_store(program));
    std::ranges::stable_sort(wanted_, {}, [](const Wanted& wanted) { return wanted.found.file->path(); });
    for (const Wanted& wanted : wanted_) LANCET_TRY(read(files, wanted, model.store));
    if (upcycle_) LANCET_TRY(draw_missing(model.store));
    LANCET_TRY(check_head(files, model.config.model, model.store));
    if (written_ < bytes_in_all_) watch_.progress(bytes_in_all_, bytes_in_all_);  // padding rows stay zero
    model.tokenizer = tokenizer();
    const auto named = data::model_bounds(folder_, std::numeric_limits<data::TokenId>::max());
    if (named.ok()) {
      LANCET_ASSIGN(model.bounds, data::model_bounds(folder_, int(dense.vocab_size)));
      if (const auto past = std::ranges::find_if(named->ends, [&](auto id) { return id >= dense.vocab_size; });
          past != named->ends.end())
        log::warn("{}: eos_token_id: expected ids below the model's {}, found {}; such ids are left out",
                  folder_.string(), dense.vocab_size, *past);
    } else if (!model.tokenizer) {  // which would have said so
      log::warn("{}; the model is imported without the ids that end texts", named.error().message);
    }
    return model;
  }

 private:
  Status match(const config::Model& model, const TensorFiles& files) {
    LANCET_TRY(for_each_entry(model, [&](const Entry& entry) -> Status {
      const auto at = files.tensors().find(entry.name);
      if (at == files.tensors().end())
        return data_error(fmt::format("{}: expected tensor {} [{}], found none of that name", files.origin().string(),
                                      entry.name, to_string(entry.shape)));
      const checkpoint::TensorInfo& info = *at->second.info;
      if (info.shape != entry.shape || !is_weight_type(info.dtype))
        return data_error(fmt::format("{}: {}: expected [{}] of F32, F16 or BF16, found {}",
                                      at->second.file->path().string(), info.name, to_string(entry.shape),
                                      to_string(info)));
      all_bf16_ = all_bf16_ && info.dtype == "BF16";
      wanted_.push_back({entry, at->second});
      return {};
    }));
    return check_rest(files);
  }

  Status check_rest(const TensorFiles& files) const {
    std::set<std::string_view> known;
    for (const Wanted& wanted : wanted_) known.insert(wanted.entry.name);
    std::size_t unknown = 0;
    const FoundTensor* first = nullptr;
    for (const auto& [name, found] : files.tensors()) {
      if (known.count(name) || is_buffer(name) || name == tied_head) continue;
      if (unknown++ == 0) first = &found;
    }
    if (!first) return {};
    return data_error(fmt::format("{}: expected the {} tensors of config.json's model, found {} more: {}{}",
                                  first->file->path().string(), wanted_.size(), unknown, first->info->name,
                                  unknown > 1 ? ", ..." : ""));
  }

  Status upcycle(config::Config& config) const {
    if (!upcycle_) return {};
    if (config.model.has_moe())
      return config_error(fmt::format("upcycle: expected a dense model in {}, found a mixture of {} experts",
                                      folder_.string(), config.model.num_local_experts.value()));
    config.model.moe_layer_freq = upcycle_->layer_freq;
    config.model.num_local_experts = upcycle_->experts;
    config.model.num_experts_per_tok = 1;
    return config::check(config, 1);
  }

  // The file's tensor as f32, transposed if asked for; valid until the next call. Data error: a value is not finite.
  Result<std::span<const float>> values_of(TensorFiles& files, const FoundTensor& found, bool transposed) {
    const checkpoint::TensorInfo& info = *found.info;
    values_.resize(static_cast<std::size_t>(info.shape.elements()));
    if (info.dtype == "F32") {
      LANCET_TRY(files.read(found, std::as_writable_bytes(std::span(values_))));
    } else {
      bytes_.resize(info.bytes());
      LANCET_TRY(files.read(found, bytes_));
      to_floats(info.dtype, bytes_, values_);
    }
    if (const Status finite = checkpoint::check_finite(info, 0, std::as_bytes(std::span(values_))); !finite.ok())
      return data_error(fmt::format("{}: {}", found.file->path().string(), finite.error().message));
    if (!transposed) return std::span<const float>(values_);
    turned_.resize(values_.size());
    transpose(values_, info.shape[0], info.shape[1], turned_);
    return std::span<const float>(turned_);
  }

  Status write(runtime::TensorStore& store, const runtime::NamedTensor& tensor, std::size_t at,
               std::span<const float> values) {
    LANCET_TRY(store.write(tensor, at, std::as_bytes(values)));
    written_ += std::int64_t(values.size_bytes());
    watch_.progress(written_, bytes_in_all_);
    return {};
  }

  Status read(TensorFiles& files, const Wanted& wanted, runtime::TensorStore& store) {
    LANCET_ASSIGN(const std::span<const float> values, values_of(files, wanted.found, wanted.entry.transposed));
    std::string name = wanted.entry.parameter;
    const bool upcycled = !parameters_.contains(name);  // the store has experts in place of this block's dense FFN
    if (upcycled) name.replace(name.find(".mlp."), 5, ".moe.experts.");
    found_.insert(name);
    return upcycled ? spread(name, values, store) : write(store, store[name], wanted.entry.first_byte(), values);
  }

  Status spread(const std::string& name, std::span<const float> values, runtime::TensorStore& store) {
    double squares = 0;
    for (float x : values) squares += double(x) * double(x);
    const double deviation = upcycle_->noise * std::sqrt(squares / double(values.size()));
    const bool noisy = parameters_.at(name).deviation && deviation != 0;
    std::vector<float> mine(noisy ? values.size() : 0);
    for (std::int64_t e = 0; e < upcycle_->experts; ++e) {
      if (noisy) {
        Philox(upcycle_->seed, stream_of(fmt::format("upcycle.{}.{}", name, e))).normals(0, mine);
        for (std::size_t i = 0; i < values.size(); ++i) mine[i] = values[i] + float(deviation * double(mine[i]));
      }
      LANCET_TRY(write(store, store[name], std::size_t(e) * values.size_bytes(),
                       noisy ? std::span<const float>(mine) : values));
    }
    return {};
  }

  // Draws what a dense model has not: the gates.
  Status draw_missing(runtime::TensorStore& store) {
    std::vector<float> values;
    for (const auto& [name, parameter] : parameters_) {
      if (found_.contains(name)) continue;
      values.resize(static_cast<std::size_t>(parameter.shape.elements()));
      model::initialize(parameter, upcycle_->seed, ir::held_elements(parameter.shape, {}, {}, 0), values);
      LANCET_TRY(write(store, store[name], 0, values));
    }
    return {};
  }

  // None, with a warning, if the folder's tokenizer is not complete or not sound: the weights are of use without it.
  std::optional<run::ModelTokenizer> tokenizer() const {
    std::error_code ignored;
    if (std::ranges::none_of(std::array{"vocab.json", "merges.txt", "tokenizer.json"},
                             [&](const char* file) { return std::filesystem::exists(folder_ / file, ignored); }))
      return {};
    auto tokenizer = data::Tokenizer::load(folder_);
    if (tokenizer.ok()) return run::ModelTokenizer{folder_, *std::move(tokenizer)};
    log::warn("{}; the model is imported without its tokenizer", tokenizer.error().message);
    return {};
  }

  // Refuses a head that differs from the embedding, since it would be lost.
  Status check_head(TensorFiles& files, const config::Model& model, runtime::TensorStore& store) {
    const auto at = files.tensors().find(tied_head);
    if (at == files.tensors().end()) {
      LANCET_ASSIGN(const bool tied, has_tied_head(folder_ / "config.json"));
      if (tied) return {};
      return config_error(
          fmt::format("{}: tie_word_embeddings: expected true, or {} with the values of wte.weight, "
                      "found false and no such tensor",
                      (folder_ / "config.json").string(), tied_head));
    }
    const checkpoint::TensorInfo& info = *at->second.info;
    const Shape shape{model.vocab_size, model.n_embd};
    if (info.shape != shape || !is_weight_type(info.dtype))
      return data_error(fmt::format("{}: {}: expected [{}] of F32, F16 or BF16, found {}",
                                    at->second.file->path().string(), info.name, to_string(shape), to_string(info)));
    LANCET_ASSIGN(const std::span<const float> head, values_of(files, at->second, false));
    std::vector<float> embedding(head.size());
    LANCET_TRY(store.read(store["wte.weight"], 0, std::as_writable_bytes(std::span(embedding))));
    if (!std::ranges::equal(head, embedding))
      return data_error(fmt::format("{}: {}: expected the values of wte.weight (a tied head), found others",
                                    at->second.file->path().string(), info.name));
    return {};
  }

  const std::filesystem::path& folder_;
  const std::optional<Upcycle>& upcycle_;
  const ImportWatch& watch_;
  std::int64_t written_ = 0, bytes_in_all_ = 0;
  std::vector<Wanted> wanted_;
  std::map<std::string, model::Parameter> parameters_;  // of the model that is made
  std::set<std::string> found_;                         // those that the files hold
  bool all_bf16_ = true;
  std::vector<std::byte> bytes_;  // of the tensor being read
  std::vector<float> values_, turned_;
};

}  // namespace

Result<runtime::TensorStore> make_whole_store(const config::Model& model) {
  const ir::Program program = whole_program(model);
  LANCET_TRY(check_whole_memory(program));
  return make_store(program);
}

Result<HuggingFaceModel> import_hugging_face(const std::filesystem::path& folder, const std::optional<Upcycle>& upcycle,
                                             const ImportWatch& watch) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored))
    return data_error(
        fmt::format("{}: expected a folder with config.json and model.safetensors, found no folder", folder.string()));
  return Import(folder, upcycle, watch)();
}

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
    static_cast<void>(for_each_entry(model_, [&](const Entry& entry) -> Status {
      const std::int64_t bytes = entry.shape.elements() * size_of(options_.dtype);
      if (shards_.empty() || (shards_.back().bytes > 0 && bytes > options_.shard_bytes - shards_.back().bytes))
        shards_.emplace_back();
      shards_.back().bytes += bytes;
      shards_.back().entries.push_back(entry);
      bytes_in_all_ += bytes;
      return {};
    }));
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
    LANCET_TRY(store_.read(store_[entry.parameter], entry.first_byte(), std::as_writable_bytes(std::span(values_))));
    std::span<const float> values = values_;
    if (entry.transposed) {
      turned_.resize(values.size());
      transpose(values, entry.shape[1], entry.shape[0], turned_);
      values = turned_;
    }
    if (options_.dtype == DType::f32) return writer.append(std::as_bytes(values));
    const auto large =
        std::ranges::find_if_not(values, [](float x) { return std::isfinite(to_f32(from_f32<bf16>(x))); });
    if (large != values.end())
      return data_error(fmt::format("{}: expected numbers that bf16 holds, found {} at element {}; fp32 holds it",
                                    name_of(entry), *large, large - values.begin()));
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
  if (model.model_type != &config::families::gpt2)
    return config_error(fmt::format(
        "model.model_type: expected \"gpt2\", the one family that is exported, found \"{}\"", model.family().name));
  Export files(model, store, options);
  LANCET_TRY(run::check_new_folder(out, files.plan()));
  LANCET_ASSIGN(run::NewFolder folder, run::NewFolder::create(out));
  LANCET_TRY(files.write(folder.path()));
  if (options.tokenizer) LANCET_TRY(run::copy_tokenizer(*options.tokenizer, folder.path()));
  return folder.commit();
}

}  // namespace lancet::models
