// open() looks up the pieces (layout.h) of each parameter among the files' tensors, in whichever of its layouts the
// folder has, so that all names, types and shapes are known to be right before memory is allocated.
// read() takes any range of a parameter's elements: in each piece, the range's rows are neighbours, and all elements
// between the first and the last of them are read at once. What is read is in f32 and then goes, row by row, to its
// places. A tensor of the transpose is read whole, turned and kept for the next range.
#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <set>

#include "files.h"
#include "lancet/base/files.h"
#include "lancet/base/json.h"
#include "lancet/base/log.h"
#include "lancet/base/shown.h"
#include "lancet/checkpoint/safetensors.h"
#include "lancet/comm/collect.h"
#include "lancet/config/hugging_face.h"
#include "lancet/models/hugging_face.h"
#include "lancet/run/checkpoint_tensors.h"
#include "layout.h"

namespace lancet::models {
namespace {

using checkpoint::TensorInfo;

std::string where(const FoundTensor& found) {
  return fmt::format("{}: {}", found.file->path().string(), found.info->name);
}

Status check_type(const FoundTensor& found, const Shape& shape) {
  if (found.info->shape == shape && is_weight_type(found.info->dtype)) return {};
  return data_error(fmt::format("{}: expected [{}] of F32, F16 or BF16, found {}", where(found), to_string(shape),
                                to_string(*found.info)));
}

}  // namespace

struct HuggingFaceFolder::Parts {
  struct Located {
    Layout layout, exported;
    std::vector<const FoundTensor*> tensors;  // of each piece
  };

  std::filesystem::path path;
  config::Config config;
  const config::FileFormat* format = nullptr;
  TensorFiles files;
  std::map<std::string, Located> parameters;
  std::vector<std::byte> bytes;
  std::vector<float> values, turned;
  const FoundTensor* kept = nullptr;  // whose transpose is in `turned`

  static Result<std::unique_ptr<Parts>> open(const std::filesystem::path& folder,
                                             std::span<const std::string> accepted) {
    std::error_code ignored;
    if (!std::filesystem::is_directory(folder, ignored))
      return data_error(fmt::format("{}: expected a folder with config.json and model.safetensors, found no folder",
                                    folder.string()));
    auto parts = std::make_unique<Parts>();
    parts->path = folder;
    LANCET_ASSIGN(parts->config, config::read_hugging_face(folder / "config.json", accepted));
    parts->format = &parts->config.model.family().file;
    LANCET_ASSIGN(parts->files, TensorFiles::open(folder, parts->format->prefix));
    LANCET_TRY(parts->match());
    return parts;
  }

  void warn() const {
    if (const std::string text = config::warning_of_factor(config.model); !text.empty())
      log::warn("{}: {}", (path / "config.json").string(), text);
  }

  Status match() {
    std::set<const FoundTensor*> known;
    bool all_bf16 = true;
    for (const model::Parameter& parameter : model::parameters(config.model)) {
      LANCET_ASSIGN(Located located, locate(parameter));
      for (const FoundTensor* found : located.tensors) {
        known.insert(found);
        all_bf16 = all_bf16 && found->info->dtype == "BF16";
      }
      parameters.emplace(parameter.name, std::move(located));
    }
    config.train.dtype = all_bf16 ? DType::bf16 : DType::f32;
    return check_rest(known);
  }

  Result<Located> locate(const model::Parameter& parameter) const {
    std::vector<Layout> layouts = layouts_of(config.model, parameter);
    const auto is_there = [&](const Layout& layout) {
      return !layout.pieces.empty() && files.find(layout.pieces.front().tensor);
    };
    const auto found = std::ranges::find_if(layouts, is_there);
    Located located{found == layouts.end() ? layouts.front() : *found, layouts.front(), {}};
    for (const Piece& piece : located.layout.pieces) {
      const FoundTensor* tensor = files.find(piece.tensor);
      if (!tensor)
        return data_error(fmt::format("{}: expected tensor {} [{}], found none of that name", files.origin().string(),
                                      piece.tensor, to_string(piece.shape)));
      LANCET_TRY(check_type(*tensor, piece.shape));
      located.tensors.push_back(tensor);
    }
    return located;
  }

  Status check_rest(const std::set<const FoundTensor*>& known) const {
    std::size_t unknown = 0;
    const FoundTensor* first = nullptr;
    for (const auto& [name, found] : files.tensors()) {
      const auto ends = [&name = name](std::string_view end) { return name.ends_with(end); };
      if (known.count(&found) || name == head || std::ranges::any_of(format->buffers, ends)) continue;
      if (unknown++ == 0) first = &found;
    }
    if (!first) return {};
    return data_error(fmt::format("{}: expected the {} tensors of config.json's model, found {} more: {}{}",
                                  first->file->path().string(), known.size(), unknown, first->info->name,
                                  unknown > 1 ? ", ..." : ""));
  }

  // Elements of a file's tensor, valid until the next call.
  Result<std::span<const float>> elements_of(const FoundTensor& found, std::int64_t first, std::int64_t count) {
    const TensorInfo& info = *found.info;
    const auto each = std::size_t(checkpoint::element_bytes(info.dtype));
    values.resize(std::size_t(count));
    bytes.resize(values.size() * each);
    LANCET_TRY(files.read(found, std::uint64_t(first) * each, bytes));
    to_floats(info.dtype, bytes, values);
    const std::uint64_t at = std::uint64_t(first) * sizeof(float);
    if (const Status finite = checkpoint::check_finite(info, at, std::as_bytes(std::span(values))); !finite.ok())
      return data_error(fmt::format("{}: {}", found.file->path().string(), finite.error().message));
    return std::span<const float>(values);
  }

  // The same of the transpose.
  Result<std::span<const float>> turned_elements_of(const FoundTensor& found, std::int64_t first, std::int64_t count) {
    if (kept != &found) {
      kept = nullptr;
      const Shape& shape = found.info->shape;
      LANCET_ASSIGN(const std::span<const float> all, elements_of(found, 0, shape.elements()));
      turned.resize(all.size());
      transpose(all, shape[0], shape[1], turned);
      kept = &found;
    }
    return std::span<const float>(turned).subspan(std::size_t(first), std::size_t(count));
  }

  // Those of a piece that are in the range; to: the range's values. step: see HuggingFaceFolder::read.
  Status read(const Piece& piece, const FoundTensor& found, std::int64_t columns, const FlatRange& range,
              std::span<float> to, std::int64_t step) {
    const std::int64_t first_row = range.begin / columns, last_row = (range.end - 1) / columns;
    if (piece.step % step == 0 && (piece.row - first_row) % step != 0) return {};  // not one of the piece's rows
    const std::int64_t first = std::max<std::int64_t>(0, (first_row - piece.row + piece.step - 1) / piece.step);
    if (last_row < piece.row || first_row > piece.row + piece.step * (piece.count - 1)) return {};
    const std::int64_t last = std::min(piece.count - 1, (last_row - piece.row) / piece.step);
    if (first > last) return {};
    // What the range has of row i of the piece.
    const auto of_row = [&](std::int64_t i) {
      const std::int64_t begin = (piece.row + piece.step * i) * columns;
      return FlatRange{std::max(begin, range.begin), std::min(begin + columns, range.end)};
    };
    const auto in_tensor = [&](std::int64_t i, std::int64_t element) {
      return (piece.tensor_row + i) * columns + element - (piece.row + piece.step * i) * columns;
    };
    const std::int64_t begin = in_tensor(first, of_row(first).begin), end = in_tensor(last, of_row(last).end);
    LANCET_ASSIGN(std::span<const float> from, piece.transposed ? turned_elements_of(found, begin, end - begin)
                                                                : elements_of(found, begin, end - begin));
    for (std::int64_t i = first; i <= last; ++i) {
      const FlatRange row = of_row(i);
      std::ranges::copy(from.first(std::size_t(row.size())), to.begin() + (row.begin - range.begin));
      from = from.subspan(std::size_t(row.size()));
    }
    return {};
  }
};

HuggingFaceFolder::HuggingFaceFolder(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
HuggingFaceFolder::HuggingFaceFolder(HuggingFaceFolder&&) noexcept = default;
HuggingFaceFolder& HuggingFaceFolder::operator=(HuggingFaceFolder&&) noexcept = default;
HuggingFaceFolder::~HuggingFaceFolder() = default;
const std::filesystem::path& HuggingFaceFolder::path() const { return parts_->path; }
const config::Config& HuggingFaceFolder::config() const { return parts_->config; }

Result<HuggingFaceFolder> HuggingFaceFolder::open(const std::filesystem::path& folder,
                                                  std::span<const std::string> accepted) {
  LANCET_ASSIGN(auto parts, Parts::open(folder, accepted));
  parts->warn();
  return HuggingFaceFolder(std::move(parts));
}

Result<HuggingFaceFolder> HuggingFaceFolder::open_on_all(const std::filesystem::path& folder, comm::Communicator& world,
                                                         std::span<const std::string> accepted) {
  auto opened = Parts::open(folder, accepted);
  LANCET_TRY(comm::agree(world, opened.ok() ? Status() : Status(opened.error())));
  auto parts = std::move(opened).value();
  std::string headers = config::to_json(parts->config);
  for (const auto& [name, found] : parts->files.tensors())
    headers += fmt::format("{} {}\n", name, found.file->header_hash());
  LANCET_TRY(comm::agree_on(world, fmt::format("the same config.json and tensors in {}", folder.string()), headers,
                            ExitCode::data));
  if (world.rank() == 0) parts->warn();
  return HuggingFaceFolder(std::move(parts));
}

std::vector<std::string> HuggingFaceFolder::parameters() const {
  using Place = std::tuple<std::string, std::uint64_t, std::string>;  // file, offset, parameter
  std::vector<Place> places;
  for (const auto& [name, located] : parts_->parameters) {
    const FoundTensor& first = *located.tensors.front();
    places.emplace_back(first.file->path().string(), first.info->begin, name);
  }
  std::ranges::sort(places);
  std::vector<std::string> names;
  for (Place& place : places) names.push_back(std::move(std::get<2>(place)));
  return names;
}

Status HuggingFaceFolder::read(const std::string& parameter, const FlatRange& elements, std::span<float> to,
                               std::int64_t step) {
  const auto& [layout, exported, tensors] = parts_->parameters.at(parameter);
  std::ranges::fill(to, 0.F);
  if (elements.size() == 0) return {};
  const std::int64_t of_expert = layout.rows * layout.columns;
  const std::int64_t experts = (layout.pieces.back().row + layout.rows) / layout.rows;
  const auto each = std::int64_t(layout.pieces.size()) / experts;  // pieces of an expert
  const std::int64_t last = std::min((elements.end - 1) / of_expert, experts - 1);
  for (std::int64_t i = elements.begin / of_expert * each; i < (last + 1) * each; ++i)
    LANCET_TRY(
        parts_->read(layout.pieces[std::size_t(i)], *tensors[std::size_t(i)], layout.columns, elements, to, step));
  return {};
}

Status HuggingFaceFolder::check_head() {
  const config::Model& model = parts_->config.model;
  const FoundTensor* found = parts_->files.find(head);
  if (!model.tie_word_embeddings) return {};
  const std::filesystem::path file = parts_->path / "config.json";
  if (!found) {
    LANCET_ASSIGN(const nlohmann::ordered_json text, config::read_file_config(file));
    if (text.value("tie_word_embeddings", true)) return {};
    return data_error(fmt::format(
        "{}: tie_word_embeddings: expected true, or {} with the values of the token embedding, found false and no such "
        "tensor",
        file.string(), head));
  }
  LANCET_TRY(check_type(*found, {model.vocab_size, model.n_embd}));
  const std::int64_t all = found->info->shape.elements();
  std::vector<float> embedding;
  for (std::int64_t at = 0, most = 1 << 20; at < all; at += most) {
    const FlatRange range{at, std::min(all, at + most)};
    embedding.resize(std::size_t(range.size()));
    LANCET_TRY(read("wte.weight", range, embedding));
    LANCET_ASSIGN(const std::span<const float> values, parts_->elements_of(*found, at, range.size()));
    if (!std::ranges::equal(values, embedding))
      return data_error(
          fmt::format("{}: expected the values of the token embedding (a tied head), found others", where(*found)));
  }
  return {};
}

std::optional<run::ModelTokenizer> HuggingFaceFolder::tokenizer() const {
  std::error_code ignored;
  if (std::ranges::none_of(std::array{"vocab.json", "merges.txt", "tokenizer.json"},
                           [&](const char* file) { return std::filesystem::exists(path() / file, ignored); }))
    return {};
  auto tokenizer = data::Tokenizer::load(path());
  if (tokenizer.ok()) return run::ModelTokenizer{path(), *std::move(tokenizer)};
  log::warn("{}; the model is imported without its tokenizer", tokenizer.error().message);
  return {};
}

Result<data::TextBounds> HuggingFaceFolder::bounds(bool has_tokenizer) const {
  const std::int64_t vocabulary = config().model.vocab_size;
  const auto named = data::model_bounds(path(), std::numeric_limits<data::TokenId>::max());
  if (!named.ok()) {
    if (!has_tokenizer)  // which would have said so
      log::warn("{}; the model is imported without the ids that end texts", named.error().message);
    return data::TextBounds();
  }
  if (const auto past = std::ranges::find_if(named->ends, [&](auto id) { return id >= vocabulary; });
      past != named->ends.end())
    log::warn("{}: eos_token_id: expected ids below the model's {}, found {}; such ids are left out", path().string(),
              vocabulary, *past);
  return data::model_bounds(path(), int(vocabulary));
}

TensorTypes HuggingFaceFolder::types() const {
  TensorTypes types;
  for (const auto& [name, located] : parts_->parameters) {
    const std::vector<Piece>& exported = located.exported.pieces;
    const bool same = exported.front().tensor == located.layout.pieces.front().tensor;
    for (std::size_t i = 0; i < exported.size(); ++i) {
      const TensorInfo& info = *located.tensors[same ? i : 0]->info;
      types[same ? info.name : exported[i].tensor] = info.dtype;
    }
  }
  if (const FoundTensor* found = parts_->files.find(head)) types[std::string(head)] = found->info->dtype;
  return types;
}

Status HuggingFaceFolder::keep_files(const std::filesystem::path& to) const {
  checkpoint::FileSystem& files = checkpoint::disk();
  LANCET_TRY(files.make_folder(to));
  const auto fill = [&]() -> Status {
    LANCET_TRY(copy_small_files(path(), to, {}));
    const std::string text = json_text(nlohmann::json(types()), {.indent = 1}) + "\n";
    LANCET_TRY(checkpoint::write_file(files, to / types_file, text));
    return files.sync_folder(to);
  };
  Status filled = fill();
  if (!filled.ok()) static_cast<void>(files.remove(to));
  return filled;
}

Result<TensorTypes> kept_types(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / types_file;
  LANCET_ASSIGN(const std::string text, read_file(file, "the types of a model's tensors"));
  LANCET_ASSIGN(const nlohmann::json parsed, parse_json(text, file.string(), ExitCode::data));
  TensorTypes types;
  for (const auto& [name, type] : parsed.items()) {
    if (!type.is_string() || !is_weight_type(type.get<std::string>()))
      return data_error(
          fmt::format("{}: {}: expected F32, F16 or BF16, found {}", file.string(), shown(name), shown(type)));
    types[name] = type;
  }
  return types;
}

Status load_parameters(HuggingFaceFolder& folder, runtime::TensorStore& store) {
  const run::ReadParameter read = std::bind_front(&HuggingFaceFolder::read, &folder);
  for (const std::string& name : folder.parameters()) LANCET_TRY(run::fill_parameter(store, name, read));
  return {};
}

}  // namespace lancet::models
