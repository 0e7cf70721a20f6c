// Parses JSON text to a Config: first the syntax, then the overrides of --set, then each key against the table, and
// each value against its type and range.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <set>

#include "fields.h"
#include "lancet/base/files.h"
#include "lancet/base/json.h"
#include "lancet/base/shown.h"
#include "lancet/base/utf8.h"
#include "lancet/config/hugging_face.h"

namespace lancet::config {
namespace {

using nlohmann::json;

constexpr std::size_t most_bytes = 16 << 20;  // of a file
constexpr std::size_t most_shown = 60;        // characters of a key or an assignment in an error

// Field names of other trainers and the fields that they correspond to.
constexpr std::pair<std::string_view, std::string_view> foreign_words[] = {
    {"learning_rate", "train.lr"},
    {"batch_size", "train.micro_batch_size"},
    {"max_steps", "train.steps"},
    {"train_iters", "train.steps"},
    {"precision", "train.dtype"},
    {"max_grad_norm", "train.clip_grad"},
    {"warmup_steps", "train.lr_warmup_steps"},
    {"hidden_size", "model.n_embd"},
    {"num_hidden_layers", "model.n_layer"},
    {"num_layers", "model.n_layer"},
    {"num_attention_heads", "model.n_head"},
    {"num_experts", "model.num_local_experts"},
    {"topk", "model.num_experts_per_tok"},
    {"top_k", "model.num_experts_per_tok"},
};

// Levenshtein's distance: the fewest insertions, deletions and replacements of a character that turn `a` into `b`.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row.back();
}

// The known path nearest to an unknown one. The distance of the keys counts most and that of the sections breaks ties,
// so "train.n_layer" gives model.n_layer. A key that is part of a known one ("warmup_steps") has a distance of at
// most 2.
std::string nearest(std::string_view path) {
  for (const auto& [word, known] : foreign_words)
    if (key_of(path) == word) return std::string(known);
  std::set<std::string_view> candidates;
  for (const Field& field : fields()) {
    candidates.insert(field.path);
    if (!section_of(field.path).empty()) candidates.insert(section_of(field.path));
  }
  std::string_view best;
  std::size_t best_score = ~std::size_t{0};
  for (std::string_view known : candidates) {
    const bool part = key_of(path).size() >= 4 && key_of(known).find(key_of(path)) != std::string_view::npos;
    const std::size_t distance = edit_distance(key_of(path), key_of(known));
    const std::size_t score = 4 * (part ? std::min<std::size_t>(2, distance) : distance) +
                              std::min<std::size_t>(3, edit_distance(section_of(path), section_of(known)));
    if (score < best_score) best = known, best_score = score;
  }
  return std::string(best);
}

Error unknown_key(std::string_view origin, std::string_view path) {
  return config_error(
      fmt::format("{}: unknown key '{}'; the nearest known key is '{}'", origin, cut(path, most_shown), nearest(path)));
}

// "expected <what>, found <value>" of one field. where: "c.json: train.lr", "--set train.lr".
Error wrong(std::string_view where, std::string_view expected, const json& value) {
  return config_error(fmt::format("{}: expected {}, found {}", where, expected, shown(value)));
}

std::string kind_text(std::string_view kind, const std::string& range, bool nullable) {
  return fmt::format("{}{}{}{}", kind, range.empty() ? "" : " ", range, nullable ? " or null" : "");
}

Result<std::int64_t> read_integer(std::string_view where, const Range& range, const json& value, bool nullable) {
  const std::string limits = std::isfinite(range.max)
                                 ? to_string(range)
                                 : fmt::format("in [{}, {}]", range.min, std::numeric_limits<std::int64_t>::max());
  const std::string expected = kind_text("an integer", limits, nullable);
  std::int64_t x = 0;
  if (value.is_number_unsigned() && value.get<std::uint64_t>() <= std::uint64_t{INT64_MAX}) {
    x = std::int64_t(value.get<std::uint64_t>());
  } else if (value.is_number_integer() && !value.is_number_unsigned()) {
    x = value.get<std::int64_t>();
  } else if (const double d = value.is_number_float() ? value.get<double>() : 0.5;
             d == std::floor(d) && std::abs(d) < 9e15) {
    x = std::int64_t(d);  // an integer may be written as 1e6
  } else {
    return wrong(where, expected, value);
  }
  if (!range.contains(double(x))) return wrong(where, expected, value);
  return x;
}

Result<double> read_number(std::string_view where, const Range& range, const json& value, bool nullable) {
  const std::string expected = kind_text("a number", to_string(range), nullable);
  if (!value.is_number()) return wrong(where, expected, value);
  const double x = value.get<double>();
  if (!std::isfinite(x) || !range.contains(x)) return wrong(where, expected, value);
  if (x > 0 && x < std::numeric_limits<float>::min())  // fp32, which computes with it, may take it for 0
    return wrong(where, expected + ", and if positive at least 1.2e-38, fp32's least", value);
  return x;
}

struct Reader {
  std::string_view where;
  const Range& range;
  const json& value;

  Status operator()(std::int64_t* x) const {
    LANCET_ASSIGN(*x, read_integer(where, range, value, false));
    return {};
  }
  Status operator()(double* x) const {
    LANCET_ASSIGN(*x, read_number(where, range, value, false));
    return {};
  }
  Status operator()(std::optional<std::int64_t>* x) const {
    if (value.is_null()) return x->reset(), Status{};
    LANCET_ASSIGN(*x, read_integer(where, range, value, true));
    return {};
  }
  Status operator()(std::optional<double>* x) const {
    if (value.is_null()) return x->reset(), Status{};
    LANCET_ASSIGN(*x, read_number(where, range, value, true));
    return {};
  }
  Status operator()(std::vector<std::int64_t>* x) const {
    if (!value.is_array()) return wrong(where, "a list of integers", value);
    x->clear();
    for (const json& each : value) {
      LANCET_ASSIGN(const std::int64_t number, read_integer(where, range, each, false));
      x->push_back(number);
    }
    return {};
  }
  Status operator()(std::optional<RopeScaling>* x) const {
    if (value.is_null()) return x->reset(), Status{};
    if (!value.is_object()) return wrong(where, "an object {...} or null", value);
    x->emplace();
    for (const RopeKey& key : rope_keys()) {
      const auto found = value.find(key.name);
      const std::string inner = fmt::format("{}.{}", where, key.name);
      const bool missing = found == value.end();
      if (key.needed_by((*x)->rope_type) && (missing || found->is_null()))
        return config_error(fmt::format("{}: expected a value, found {}", inner, missing ? "none" : "null"));
      if (missing || !key.of((*x)->rope_type)) continue;
      LANCET_TRY(std::visit(Reader{inner, key.range, *found}, key.slot(**x)));
    }
    for (const auto& [name, ignored] : value.items())
      if (std::ranges::none_of(rope_keys(), [&, &name = name](const RopeKey& key) {
            return key.name == name && key.of((*x)->rope_type);
          }))
        return config_error(fmt::format("{}: unknown key '{}' of rope_type {}", where, cut(name, most_shown),
                                        config::name((*x)->rope_type)));
    return {};
  }
  Status operator()(bool* x) const {
    if (!value.is_boolean()) return wrong(where, "true or false", value);
    *x = value.get<bool>();
    return {};
  }
  Status operator()(std::string* x) const {
    if (!value.is_string()) return wrong(where, "a string", value);
    *x = value.get<std::string>();
    // A file's text is UTF-8, but --set accepts any bytes, which the run's config.json could not hold.
    if (first_invalid_utf8(*x) < x->size())
      return config_error(fmt::format("{}: expected a string in UTF-8, found {}", where, shown(*x)));
    if (x->find('\0') != x->npos) return wrong(where, "a string without NUL", value);
    return {};
  }
  Status operator()(const Choice& choice) const {
    if (value.is_string())
      for (std::size_t i = 0; i < choice.words.size(); ++i)
        if (choice.words[i] == value.get_ref<const std::string&>()) return choice.set(choice.target, int(i)), Status{};
    return wrong(where, fmt::format("one of \"{}\"", fmt::join(choice.words, "\", \"")), value);
  }
};

Result<json> read_syntax(std::string_view text, std::string_view origin) {
  LANCET_ASSIGN(json root, parse_json(text, origin, ExitCode::config, JsonComments::ignored));
  if (!root.is_object())
    return config_error(fmt::format("{}: expected a JSON object {{...}}, found {}", origin, shown(root)));
  return root;
}

// Applies an assignment such as "train.lr=1e-4" to the parsed file.
Status apply(json& root, const std::string& assignment) {
  const auto equals = assignment.find('=');
  const std::string path = assignment.substr(0, equals);
  const std::string origin = "--set " + cut(assignment, most_shown);
  if (equals == assignment.npos || path.empty())
    return config_error(fmt::format("{}: expected key=value, as in --set train.lr=1e-4", origin));
  if (!find_field(path)) {
    if (is_section(path))
      return config_error(fmt::format("{}: '{}' is a section, expected {}.<key>", origin, path, path));
    return unknown_key(origin, path);
  }
  const std::string text = assignment.substr(equals + 1);
  const auto parsed = parse_json(text, origin, ExitCode::config);
  const json value = parsed.ok() ? *parsed : json(text);
  const std::string section(section_of(path)), key(key_of(path));
  if (section.empty()) {
    root[key] = value;
  } else {
    json& object = root[section];
    if (object.is_null()) object = json::object();
    if (object.is_object()) object[key] = value;  // otherwise read_fields reports the error in the file
  }
  return {};
}

// The source of each value, for errors.
struct Origin {
  std::string_view file;
  std::set<std::string> overridden;  // paths set by --set
  std::string of(std::string_view path) const {
    if (overridden.contains(std::string(path))) return fmt::format("--set {}", path);
    return fmt::format("{}: {}", file, path);
  }
};

Status read_value(Config& config, const json& value, std::string_view path, const Origin& origin) {
  const Family& family = config.model.family();
  const Field* field = find_field(path, family);
  if (!field && find_field(path)) {
    const std::string other = in_names_of(family, std::string(path));
    return config_error(fmt::format("{}: expected a field of model.model_type \"{}\", found one of others{}",
                                    origin.of(path), family.name, other == path ? "" : "; here it is " + other));
  }
  if (!field) return unknown_key(origin.file, path);
  const std::string where = origin.of(path);
  return std::visit(Reader{where, field->range, value}, field->slot(config));
}

// The model's family comes first: it says which fields there are, and their defaults.
Status read_type(Config& config, const json& root, const Origin& origin) {
  const auto model = root.find("model");
  if (model == root.end() || !model->is_object() || !model->contains("model_type")) return {};
  LANCET_TRY(read_value(config, (*model)["model_type"], "model.model_type", origin));
  config.model = defaults_of(config.model.family());
  return {};
}

Status read_fields(Config& config, const json& root, const Origin& origin) {
  for (const auto& [key, value] : root.items()) {
    if (!is_section(key)) {
      if (key.find('.') != key.npos && find_field(key))
        return config_error(fmt::format("{}: expected {{\"{}\": {{\"{}\": ...}}}}, found the key '{}' at the top level",
                                        origin.file, section_of(key), key_of(key), key));
      LANCET_TRY(read_value(config, value, key, origin));
      continue;
    }
    if (!value.is_object())
      return config_error(fmt::format("{}: {}: expected an object {{...}}, found {}", origin.file, key, shown(value)));
    for (const auto& [inner, inner_value] : value.items())
      LANCET_TRY(read_value(config, inner_value, key + "." + inner, origin));
  }
  return {};
}

// The folder whose config.json a run's model.from stands for.
std::filesystem::path folder_of(const std::string& from, const std::string& run_dir) {
  std::error_code ignored;
  const std::filesystem::path run = run_dir, kept = run / source_folder;
  const bool resumes = !run_dir.empty() && std::filesystem::exists(run / "checkpoints", ignored) &&
                       std::filesystem::exists(kept / "config.json", ignored);
  return resumes ? kept : std::filesystem::path(from);
}

// The model of the folder that model.from names; nothing without it.
Status read_from(Config& config, const json& root, const Origin& origin, std::span<const std::string> accepted,
                 std::string run_dir) {
  const auto model = root.find("model");
  if (model == root.end() || !model->is_object() || !model->contains("from")) return {};
  LANCET_TRY(read_value(config, (*model)["from"], "model.from", origin));
  const std::string from = config.model.from;
  if (from.empty()) return {};
  for (const auto& [key, value] : model->items())
    if (key != "from" && std::ranges::find(training_fields(), key) == training_fields().end())
      return config_error(fmt::format("{}: expected no such field beside model.from, whose folder has it, found {}",
                                      origin.of("model." + key), shown(value)));
  if (const auto log = root.find("log"); log != root.end() && log->is_object())
    if (const auto at = log->find("run_dir"); at != log->end() && at->is_string() && *at != "") run_dir = *at;
  const std::filesystem::path folder = folder_of(from, run_dir), file = folder / "config.json";
  LANCET_ASSIGN(config, folder == from ? read_hugging_face(file, accepted) : read_accepted(file));
  if (!config.model.experts_choose()) config.model.capacity_factor.reset();
  config.model.router_group_size.reset();
  const Train trained = config.train;
  config.train = {};
  config.train.seq_len = trained.seq_len;
  config.train.lr = trained.lr;
  return {};
}

Result<Config> config_of(const json& root, const Origin& origins, std::span<const std::string> accepted = {},
                         const std::string& run_dir = {}) {
  Config config;
  LANCET_TRY(read_from(config, root, origins, accepted, run_dir));
  LANCET_TRY(read_type(config, root, origins));
  LANCET_TRY(read_fields(config, root, origins));
  Model& model = config.model;
  if (model.experts_per_rank && model.num_local_experts)
    return config_error(fmt::format("{} and {}: expected one of the two, found both",
                                    origins.of("model.experts_per_rank"), origins.of("model.num_local_experts")));
  if (model.has_moe() && !model.experts_per_rank && !model.num_local_experts) model.experts_per_rank = 2;
  if (config.train.seq_len == 0) config.train.seq_len = model.n_positions;
  return config;
}

// run_dir: replaces an empty log.run_dir.
Result<Config> parse_in(std::string_view text, std::string_view origin, std::span<const std::string> overrides,
                        std::span<const std::string> accepted, const std::string& run_dir) {
  LANCET_ASSIGN(json root, read_syntax(text, origin));
  Origin origins{origin, {}};
  for (const std::string& assignment : overrides) {
    LANCET_TRY(apply(root, assignment));
    origins.overridden.insert(assignment.substr(0, assignment.find('=')));
  }
  LANCET_ASSIGN(Config config, config_of(root, origins, accepted, run_dir));
  if (config.log.run_dir.empty()) config.log.run_dir = run_dir;
  return config;
}

}  // namespace

Result<Config> parse(std::string_view text, std::string_view origin, std::span<const std::string> overrides,
                     std::span<const std::string> accepted) {
  return parse_in(text, origin, overrides, accepted, {});
}

Result<Config> parse_saved(std::string_view text, std::string_view origin) {
  LANCET_ASSIGN(json root, read_syntax(text, origin));
  auto& sections = root.get_ref<json::object_t&>();
  std::erase_if(sections, [](const auto& entry) { return !is_section(entry.first) && !find_field(entry.first); });
  for (auto& section : sections)
    if (section.first != "model" && section.second.is_object())
      std::erase_if(section.second.get_ref<json::object_t&>(),
                    [&](const auto& field) { return !find_field(section.first + "." + field.first); });
  return config_of(root, {origin, {}});
}

Result<Config> load(const std::filesystem::path& file, std::span<const std::string> overrides,
                    std::span<const std::string> accepted) {
  std::error_code ignored;
  const bool exists = std::filesystem::exists(file, ignored), folder = std::filesystem::is_directory(file, ignored);
  const bool regular = std::filesystem::is_regular_file(file, ignored) || is_open_stream(file);
  std::ifstream in;
  if (regular) in.open(file, std::ios::binary);
  if (!regular || !in)
    return config_error(fmt::format("{}: expected a JSON config file, found {}", file.string(),
                                    folder                                       ? "a folder"
                                    : regular                                    ? "nothing that can be read"
                                    : exists                                     ? "no regular file"
                                    : std::filesystem::is_symlink(file, ignored) ? "a link to nothing"
                                                                                 : "no such file"));
  std::string text(most_bytes + 1, '\0');  // it may be a pipe
  in.read(text.data(), std::streamsize(text.size()));
  text.resize(static_cast<std::size_t>(in.gcount()));
  if (text.size() > most_bytes)
    return config_error(
        fmt::format("{}: expected a JSON config file of at most {} MB, found more", file.string(), most_bytes >> 20));
  return parse_in(text, file.string(), overrides, accepted, "runs/" + file.stem().string());
}

}  // namespace lancet::config
