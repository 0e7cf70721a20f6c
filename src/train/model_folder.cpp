#include "lancet/train/model_folder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "lancet/base/log.h"
#include "lancet/model/gpt2_moe.h"

namespace lancet::train {
namespace {

namespace fs = std::filesystem;
using checkpoint::Checkpoint;
using checkpoint::TensorInfo;

constexpr std::string_view own_tokenizer = "tokenizer";  // in a run folder

Result<Checkpoint> newest_whole(const fs::path& checkpoints) {
  const auto steps = checkpoint::steps_in(checkpoints);
  for (const std::int64_t step : steps) {
    auto opened = Checkpoint::open(checkpoints / checkpoint::folder_name(step));
    if (opened.ok()) return opened;
    log::warn("{}; an older checkpoint is looked for", opened.error().message);
  }
  return data_error(fmt::format("{}: expected a whole checkpoint, found {}", checkpoints.string(),
                                steps.empty() ? "none" : fmt::format("{} that are damaged", steps.size())));
}

Result<Checkpoint> open_checkpoint(const fs::path& from) {
  std::error_code ignored;
  if (!fs::is_directory(from, ignored))
    return data_error(fmt::format("{}: expected the folder of a run or a checkpoint, found no folder", from.string()));
  if (fs::exists(from / "manifest.json", ignored)) return Checkpoint::open(from);
  if (fs::is_directory(from / "checkpoints", ignored)) return newest_whole(from / "checkpoints");
  return data_error(fmt::format(
      "{}: expected checkpoints/ (a run) or manifest.json (a checkpoint), found neither{}", from.string(),
      fs::exists(from / "model.safetensors", ignored) ? "; lancet import reads Hugging Face's folders" : ""));
}

std::optional<fs::path> find_tokenizer(const config::Config& config, const fs::path& checkpoint) {
  std::error_code ignored;
  const fs::path own = fs::absolute(checkpoint / "").parent_path().parent_path().parent_path() / own_tokenizer;
  for (const fs::path& folder : {fs::path(config.data.tokenizer), own})
    if (!folder.empty() && fs::exists(folder / "vocab.json", ignored)) return folder;
  return {};
}

std::string expert_name(std::string name, std::int64_t expert) {
  constexpr std::string_view word = ".experts.";
  return name.insert(name.find(word) + word.size(), fmt::format("{}.", expert));
}
bool is_expert(std::string_view name) { return name.find(".experts.") != std::string_view::npos; }

// Where values of a checkpoint's tensor go: `count` elements of a parameter from `first` on.
class Loader {
 public:
  Loader(const Checkpoint& checkpoint, const config::Model& model) : checkpoint_(checkpoint), model_(model) {}

  Status want(const std::string& name, Shape shape, runtime::NamedTensor& parameter, std::int64_t first) {
    const std::string master = name + ".master";
    const std::string& source = checkpoint_.find(master) ? master : name;
    const TensorInfo* info = checkpoint_.find(source);
    if (!info)
      return data_error(fmt::format("{}: expected the tensor {} [{}], found none of that name",
                                    checkpoint_.path().string(), name, to_string(shape)));
    Shape unpadded = shape;
    if (name == "wte.weight") unpadded.set(0, model_.vocab_size);
    if ((info->shape != shape && info->shape != unpadded) || (info->dtype != "F32" && info->dtype != "BF16"))
      return data_error(fmt::format("{}: {}: expected [{}] of F32 or BF16, found {}", checkpoint_.path().string(),
                                    source, to_string(shape), to_string(*info)));
    sinks_[source] = [&parameter, first, is_float = info->dtype == "F32"](std::uint64_t at,
                                                                          std::span<const std::byte> bytes) -> Status {
      const std::size_t size = is_float ? 4 : 2;
      for (std::size_t i = 0; i < bytes.size() / size; ++i) {
        const std::size_t to = static_cast<std::size_t>(first) + at / size + i;
        const float value = is_float ? element<float>(bytes, i) : to_f32(element<bf16>(bytes, i));
        if (parameter.type.dtype == DType::bf16)
          parameter.memory.as<bf16>()[to] = from_f32<bf16>(value);
        else
          parameter.memory.as<float>()[to] = value;
      }
      return {};
    };
    return {};
  }

  Status read() const { return checkpoint_.read(sinks_); }

 private:
  template <class T>
  static T element(std::span<const std::byte> bytes, std::size_t i) {
    T value;
    std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
    return value;
  }

  const Checkpoint& checkpoint_;
  const config::Model& model_;
  std::map<std::string, Checkpoint::Sink> sinks_;
};

// An expert's share of a parameter [E, ...].
Shape without_front(const Shape& shape) {
  Shape rest;
  for (int axis = 1; axis < shape.rank(); ++axis) rest.push_back(shape[axis]);
  return rest;
}

Status write_weights(const fs::path& run, const config::Config& config, runtime::TensorStore& store) {
  struct Piece {
    TensorInfo info;
    std::span<const std::byte> bytes;
  };
  std::vector<Piece> pieces;
  for (const auto& [name, tensor] : store.all()) {
    const auto bytes = tensor.memory.span<const std::byte>();
    const std::int64_t experts = is_expert(name) ? tensor.type.shape[0] : 0;
    if (experts == 0) pieces.push_back({{name, "F32", tensor.type.shape}, bytes});
    const std::size_t each = experts ? bytes.size() / std::size_t(experts) : 0;
    for (std::int64_t e = 0; e < experts; ++e)
      pieces.push_back({{expert_name(name, e), "F32", without_front(tensor.type.shape)},
                        bytes.subspan(std::size_t(e) * each, each)});
  }
  std::vector<TensorInfo> infos;
  for (const Piece& piece : pieces) infos.push_back(piece.info);

  checkpoint::FileSystem& files = checkpoint::disk();
  const fs::path checkpoints = run / "checkpoints", folder = checkpoint::temporary_folder(checkpoints, 0);
  LANCET_TRY(files.make_folder(folder));
  checkpoint::ShardFile shard{.name = "model.safetensors"};
  LANCET_ASSIGN(auto writer, checkpoint::SafetensorsWriter::create(files, folder / shard.name, infos));
  for (const Piece& piece : pieces) LANCET_TRY(writer.append(piece.bytes));
  LANCET_TRY(writer.finish());
  shard.bytes = writer.bytes();
  shard.xxh3 = writer.hash();
  checkpoint::Manifest manifest;
  manifest.seed = config.train.seed;
  manifest.experts = config.model.experts(1);
  manifest.rows = config.train.micro_batch_size * config.train.gradient_accumulation_steps;
  manifest.micro_batch_size = config.train.micro_batch_size;
  manifest.gradient_accumulation_steps = config.train.gradient_accumulation_steps;
  manifest.config = config::to_json(config);
  manifest.files = {shard};
  return checkpoint::commit(files, checkpoints, manifest);
}

}  // namespace

Result<ModelFolder> open_model(const fs::path& from) {
  LANCET_ASSIGN(Checkpoint opened, open_checkpoint(from));
  const checkpoint::Manifest& manifest = opened.manifest();
  auto config = config::parse(manifest.config, (opened.path() / "manifest.json").string());
  if (!config.ok()) return data_error(config.error().message);
  if (config->model.has_moe()) {
    config->model.num_local_experts = manifest.experts;
    config->model.experts_per_rank.reset();
  }
  if (const Status status = config::check(*config, 1); !status.ok())
    return data_error(fmt::format("{}: {}", (opened.path() / "manifest.json").string(), status.error().message));
  auto tokenizer = find_tokenizer(*config, opened.path());
  return ModelFolder{std::move(opened), std::move(*config), std::move(tokenizer)};
}

Status load_parameters(const Checkpoint& checkpoint, const config::Model& model, int rank, int ranks,
                       runtime::TensorStore& store) {
  Loader loader(checkpoint, model);
  for (const auto& [name, tensor] : store.all()) {
    if (tensor.kind != ir::TensorKind::parameter) continue;
    runtime::NamedTensor& parameter = store[name];
    const Shape& shape = tensor.type.shape;
    if (!is_expert(name)) {
      LANCET_TRY(loader.want(name, shape, parameter, 0));
      continue;
    }
    const std::int64_t here = model.experts_on_rank(ranks), each = shape.elements() / here;
    for (std::int64_t e = 0; e < here; ++e)
      LANCET_TRY(loader.want(expert_name(name, rank * here + e), without_front(shape), parameter, e * each));
  }
  return loader.read();
}

Status save_model(const fs::path& run, config::Config config, runtime::TensorStore& store,
                  const std::optional<fs::path>& tokenizer) {
  LANCET_ASSIGN(NewFolder folder, NewFolder::create(run));
  config.log.run_dir = run.string();
  if (tokenizer) {
    LANCET_TRY(copy_tokenizer(*tokenizer, folder.path() / own_tokenizer));
    config.data.tokenizer = (run / own_tokenizer).string();
  }
  LANCET_TRY(checkpoint::write_file(checkpoint::disk(), folder.path() / "config.json", config::to_json(config)));
  LANCET_TRY(write_weights(folder.path(), config, store));
  return folder.commit();
}

Result<NewFolder> NewFolder::create(const fs::path& out) {
  std::error_code error;
  const bool there = fs::symlink_status(out, error).type() != fs::file_type::not_found;
  if (there && !(fs::is_directory(out, error) && fs::is_empty(out, error)))
    return config_error(fmt::format("{}: expected no such folder yet, or an empty one, found {}", out.string(),
                                    fs::is_directory(out, error) ? "files in it" : "something else"));
  const fs::path target = fs::absolute(out / "").parent_path();
  fs::path temporary = target;
  temporary += fmt::format(".{}.tmp", ::getpid());
  LANCET_TRY(checkpoint::disk().make_folder(temporary));
  return NewFolder(target, std::move(temporary));
}

NewFolder::NewFolder(NewFolder&& other) noexcept
    : target_(std::move(other.target_)), temporary_(std::exchange(other.temporary_, {})) {}

NewFolder::~NewFolder() {
  if (!temporary_.empty()) static_cast<void>(checkpoint::disk().remove(temporary_));
}

Status NewFolder::commit() {
  checkpoint::FileSystem& files = checkpoint::disk();
  LANCET_TRY(files.sync_folder(temporary_));
  LANCET_TRY(files.rename(temporary_, target_));
  temporary_.clear();
  return files.sync_folder(target_.parent_path());
}

Status copy_tokenizer(const fs::path& from, const fs::path& to) {
  LANCET_TRY(checkpoint::disk().make_folder(to));
  for (const char* name : {"vocab.json", "merges.txt"}) {
    std::error_code error;
    fs::copy_file(from / name, to / name, error);
    if (error)
      return data_error(fmt::format("{}: expected to copy it to {}, found: {}", (from / name).string(), to.string(),
                                    error.message()));
  }
  return {};
}

}  // namespace lancet::train
