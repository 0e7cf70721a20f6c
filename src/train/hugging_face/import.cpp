#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "config.h"
#include "files.h"
#include "lancet/base/random.h"
#include "lancet/model/gpt2_moe.h"
#include "lancet/model/initialize.h"
#include "lancet/train/hugging_face.h"
#include "names.h"
#include "values.h"

namespace lancet::train {

using namespace hugging_face;

runtime::TensorStore make_whole_store(const config::Model& model) {
  runtime::TensorStore store;
  store.add(model::build_forward(model, {.mode = model::Mode::generate}));
  return store;
}

config::Model whole_model(const config::Model& model, int ranks) {
  config::Model whole = model;
  if (!model.has_moe()) return whole;
  whole.num_local_experts = model.experts(ranks);
  whole.experts_per_rank.reset();
  return whole;
}

namespace {

struct Wanted {
  Entry entry;
  FoundTensor found;
};

class Import {
 public:
  Import(const std::filesystem::path& folder, const std::optional<Upcycle>& upcycle)
      : folder_(folder), upcycle_(upcycle) {}

  Result<HuggingFaceModel> operator()() {
    HuggingFaceModel model;
    LANCET_ASSIGN(model.config, read_config(folder_ / "config.json"));
    const config::Model dense = model.config.model;
    LANCET_ASSIGN(const TensorFiles files, TensorFiles::open(folder_));
    // Names and shapes first: what is allocated afterwards is then no more than the files hold.
    LANCET_TRY(match(dense, files));
    LANCET_TRY(upcycle(model.config));
    model.config.train.dtype = all_bf16_ ? DType::bf16 : DType::f32;
    model.store = make_whole_store(model.config.model);
    for (const Wanted& wanted : wanted_) LANCET_TRY(read(wanted, model.config.model, model.store));
    if (upcycle_) draw_gates(model.config.model, model.store);
    LANCET_TRY(check_head(files, model.config.model, model.store));
    std::error_code ignored;
    model.has_tokenizer = std::filesystem::exists(folder_ / "vocab.json", ignored) &&
                          std::filesystem::exists(folder_ / "merges.txt", ignored);
    return model;
  }

 private:
  Status match(const config::Model& model, const TensorFiles& files) {
    std::size_t taken = 0;
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
      ++taken;
      return {};
    }));
    return check_rest(files, taken);
  }

  Status check_rest(const TensorFiles& files, std::size_t taken) const {
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
                                  first->file->path().string(), taken, unknown, first->info->name,
                                  unknown > 1 ? ", ..." : ""));
  }

  Status upcycle(config::Config& config) const {
    if (!upcycle_) return {};
    if (config.model.has_moe())
      return config_error(fmt::format("upcycle: expected a dense model in {}, found a mixture of {} experts",
                                      folder_.string(), config.model.experts(1)));
    config.model.moe_layer_freq = upcycle_->layer_freq;
    config.model.num_local_experts = upcycle_->experts;
    config.model.num_experts_per_tok = 1;
    return config::check(config, 1);
  }

  // The file's tensor as f32, in our order.
  Result<std::vector<float>> values_of(const FoundTensor& found, bool transposed) const {
    const checkpoint::TensorInfo& info = *found.info;
    std::vector<std::byte> bytes(info.bytes());
    LANCET_TRY(found.file->read(info, 0, bytes));
    std::vector<float> values(static_cast<std::size_t>(info.shape.elements()));
    to_floats(info.dtype, bytes, values);
    if (!transposed) return values;
    std::vector<float> turned(values.size());
    transpose(values, info.shape[0], info.shape[1], turned);
    return turned;
  }

  Status read(const Wanted& wanted, const config::Model& model, runtime::TensorStore& store) const {
    LANCET_ASSIGN(const std::vector<float> values, values_of(wanted.found, wanted.entry.transposed));
    if (runtime::NamedTensor* parameter = store.find(wanted.entry.parameter)) {
      std::ranges::copy(values, place_of(wanted.entry, floats(*parameter), model.experts(1)).begin());
      return {};
    }
    // A block's FFN that becomes experts.
    std::string name = wanted.entry.parameter;
    name.replace(name.find(".mlp."), 5, ".moe.experts.");
    spread(name, values, floats(store[name]));
    return {};
  }

  static std::span<float> floats(runtime::NamedTensor& tensor) { return tensor.memory.span<float>(); }

  // Copies `values` to every expert; to weights adds noise of the expert's own.
  void spread(const std::string& name, const std::vector<float>& values, std::span<float> experts) const {
    double squares = 0;
    for (float x : values) squares += double(x) * double(x);
    const double deviation = upcycle_->noise * std::sqrt(squares / double(values.size()));
    std::vector<float> noise(values.size());
    for (std::int64_t e = 0; e < upcycle_->experts; ++e) {
      const std::span<float> to = experts.subspan(std::size_t(e) * values.size(), values.size());
      std::ranges::copy(values, to.begin());
      if (!name.ends_with(".weight") || deviation == 0) continue;
      Philox(upcycle_->seed, stream_of(fmt::format("upcycle.{}.{}", name, e))).normals(0, noise);
      for (std::size_t i = 0; i < values.size(); ++i) to[i] += float(deviation * double(noise[i]));
    }
  }

  void draw_gates(const config::Model& model, runtime::TensorStore& store) const {
    for (const auto& [name, tensor] : store.all())
      if (tensor.kind == ir::TensorKind::parameter && name.ends_with(".moe.gate.weight"))
        model::initialize(model, name, tensor.type, 0, 1, upcycle_->seed, tensor.memory.span<float>());
  }

  // A head of its own would be lost without a word.
  Status check_head(const TensorFiles& files, const config::Model& model, runtime::TensorStore& store) const {
    const auto at = files.tensors().find(tied_head);
    if (at == files.tensors().end()) return {};
    const checkpoint::TensorInfo& info = *at->second.info;
    const Shape shape{model.vocab_size, model.n_embd};
    if (info.shape != shape || !is_weight_type(info.dtype))
      return data_error(fmt::format("{}: {}: expected [{}] of F32, F16 or BF16, found {}",
                                    at->second.file->path().string(), info.name, to_string(shape), to_string(info)));
    LANCET_ASSIGN(const std::vector<float> head, values_of(at->second, false));
    if (!std::equal(head.begin(), head.end(), floats(store["wte.weight"]).begin()))
      return data_error(fmt::format("{}: {}: expected the values of wte.weight (a tied head), found others",
                                    at->second.file->path().string(), info.name));
    return {};
  }

  const std::filesystem::path& folder_;
  const std::optional<Upcycle>& upcycle_;
  std::vector<Wanted> wanted_;
  bool all_bf16_ = true;
};

}  // namespace

Result<HuggingFaceModel> import_hugging_face(const std::filesystem::path& folder,
                                             const std::optional<Upcycle>& upcycle) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored))
    return data_error(
        fmt::format("{}: expected a folder with config.json and model.safetensors, found no folder", folder.string()));
  return Import(folder, upcycle)();
}

}  // namespace lancet::train
