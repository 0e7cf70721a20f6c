// Reads and writes vocab.json and merges.txt in GPT-2's format, and reads what Hugging Face's files beside them say of
// added tokens and of the tokens at which texts begin and end.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <map>
#include <set>
#include <system_error>
#include <unordered_map>

#include "lancet/base/files.h"
#include "lancet/base/json.h"
#include "lancet/base/log.h"
#include "lancet/base/shown.h"
#include "lancet/data/tokenizer.h"
#include "text.h"
#include "tokenizer_tables.h"

namespace lancet::data {

namespace fs = std::filesystem;

namespace {

bool has_special_form(std::string_view token) {
  return token.size() > 2 &&
         ((token.front() == '<' && token.back() == '>') || (token.front() == '[' && token.back() == ']'));
}

// The bytes of each id. The name of a special token need not be in byte letters. An empty string marks an id that was
// not read yet.
Result<std::vector<std::string>> read_vocabulary(const fs::path& path) {
  LANCET_ASSIGN(const std::string content, read_file(path, "a tokenizer's vocabulary"));
  LANCET_ASSIGN(const nlohmann::json json, parse_json(content, path.string(), ExitCode::data));
  if (!json.is_object())
    return data_error(
        fmt::format("{}: expected an object of tokens and ids, found {}", path.string(), json.type_name()));
  std::vector<std::string> tokens(json.size());
  for (const auto& [letters, id] : json.items()) {
    if (!id.is_number_integer() || id < 0 || id >= tokens.size())
      return data_error(fmt::format("{}: expected the ids 0..{}, found {} for token {}", path.string(),
                                    tokens.size() - 1, shown(id), shown(letters)));
    std::string& token = tokens[id.get<std::size_t>()];
    if (!token.empty())
      return data_error(fmt::format("{}: expected each id once, found {} again for token {}", path.string(),
                                    json_text(id, {.strict = true}), shown(letters)));
    auto bytes = from_letters(letters);
    if (!bytes && has_special_form(letters)) bytes = letters;
    if (!bytes || bytes->empty())
      return data_error(
          fmt::format("{}: expected GPT-2's byte letters, found token {}", path.string(), shown(letters)));
    token = std::move(*bytes);
  }
  return tokens;
}

Result<std::vector<Merge>> read_merges(const fs::path& path, const std::vector<std::string>& tokens) {
  LANCET_ASSIGN(const std::string content, read_file(path, "a tokenizer's merges"));
  std::unordered_map<std::string_view, TokenId> ids;
  for (std::size_t id = 0; id < tokens.size(); ++id) ids.emplace(tokens[id], static_cast<TokenId>(id));
  const auto id_of = [&](std::string_view letters) -> TokenId {
    const auto bytes = from_letters(letters);
    const auto it = bytes ? ids.find(*bytes) : ids.end();
    return it == ids.end() ? -1 : it->second;
  };
  std::vector<Merge> merges;
  std::string_view rest = content;
  if (constexpr std::string_view mark = "\xef\xbb\xbf"; rest.starts_with(mark)) rest.remove_prefix(mark.size());
  for (int number = 1; !rest.empty(); ++number) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || (number == 1 && line.starts_with("#version"))) continue;
    const std::size_t space = line.find(' ');
    if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos)
      return data_error(
          fmt::format("{}: expected two tokens, found {} on line {}", path.string(), shown(line), number));
    const Merge merge{id_of(line.substr(0, space)), id_of(line.substr(space + 1))};
    if (merge.left < 0 || merge.right < 0)
      return data_error(fmt::format("{}: expected tokens of the vocabulary, found {} on line {}", path.string(),
                                    shown(line), number));
    merges.push_back(merge);
  }
  return merges;
}

// The object in a file that a folder may lack; an empty one if it does.
Result<nlohmann::json> read_object(const fs::path& path, const char* what) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return nlohmann::json::object();
  LANCET_ASSIGN(const std::string content, read_file(path, what));
  LANCET_ASSIGN(auto json, parse_json(content, path.string(), ExitCode::data, JsonComments::ignored));
  if (!json.is_object())
    return data_error(fmt::format("{}: expected a JSON object, found {}", path.string(), json.type_name()));
  return json;
}

// A token of tokenizer_config.json: its text, or an object with the text.
std::string content_of(const nlohmann::json& token) {
  const nlohmann::json text = token.is_object() ? token.value("content", nlohmann::json()) : token;
  return text.is_string() ? text.get<std::string>() : "";
}

bool flag_of(const nlohmann::json& token, const char* field) {
  return token.is_object() && token.value(field, nlohmann::json()) == true;
}

// Appends the added tokens that the vocabulary lacks, and lists those that are not listed yet.
Status read_added_tokens(const fs::path& folder, TokenizerParts& parts) {
  const fs::path list = folder / "added_tokens.json", config = folder / "tokenizer_config.json";
  LANCET_ASSIGN(const auto listed, read_object(list, "a tokenizer's added tokens"));
  LANCET_ASSIGN(const auto configured, read_object(config, "a tokenizer's config"));
  std::map<std::string, std::string> by_text;  // the id, as its file writes it
  std::map<std::string, nlohmann::json> fields;
  for (const auto& [token, id] : listed.items()) by_text[token] = json_text(id);
  const auto decoder = configured.value("added_tokens_decoder", nlohmann::json::object());
  for (const auto& [id, token] : decoder.items()) {
    const auto [at, is_new] = by_text.emplace(content_of(token), id);
    if (!is_new && at->second != id)
      return data_error(fmt::format("{}: expected the id {} of {} for the added token {}, found {}", config.string(),
                                    at->second, list.filename().string(), shown(at->first), shown(id)));
    fields[at->first] = token;
  }
  std::vector<std::string>& tokens = parts.tokens;
  std::set<TokenId> known;
  for (const AddedToken& token : parts.added) known.insert(token.id);
  std::map<std::size_t, std::string> by_id;
  for (const auto& [token, text] : by_text) {
    std::size_t id = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
    const bool is_id = error == std::errc() && end == text.data() + text.size() && !token.empty();
    if (!is_id || (id >= tokens.size() && by_id.contains(id)) ||
        (id < tokens.size() && tokens[id] != token && from_letters(token) != tokens[id]))
      return data_error(fmt::format("{}: expected an id of its own for the added token {}, found {}",
                                    (listed.contains(token) ? list : config).string(), shown(token), shown(text)));
    const bool is_new = id >= tokens.size();
    if (is_new) by_id.emplace(id, token);
    if (known.contains(TokenId(id))) continue;
    const nlohmann::json& of = fields[token];
    parts.added.push_back({.id = TokenId(id),
                           .content = is_new ? token : tokens[id],
                           .normalized = flag_of(of, "normalized"),
                           .lstrip = flag_of(of, "lstrip"),
                           .rstrip = flag_of(of, "rstrip"),
                           .single_word = flag_of(of, "single_word")});
  }
  for (const auto& [id, token] : by_id) {
    if (id != tokens.size())
      return data_error(fmt::format("{}: expected added tokens with the ids from {} on, found {} for {}",
                                    (listed.contains(token) ? list : config).string(), tokens.size(), id,
                                    shown(token)));
    tokens.push_back(token);
  }
  return {};
}

bool is_prefix(const TextStep& step) { return step.kind == TextStep::Kind::prepend; }

// What the tokenizer's own config says comes first, and generation also stops where the model's says.
Status read_bounds(const fs::path& folder, TokenizerParts& parts) {
  TextBounds& bounds = parts.bounds;  // of a template of tokenizer.json
  Pipeline& pipeline = parts.pipeline;
  const fs::path own = folder / "tokenizer_config.json";
  LANCET_ASSIGN(const auto configured, read_object(own, "a tokenizer's config"));
  const auto named = [&](const char* field) {
    const auto it = std::ranges::find(parts.tokens, content_of(configured.value(field, nlohmann::json())));
    return it == parts.tokens.end() ? TokenId(-1) : TokenId(it - parts.tokens.begin());
  };
  const TokenId begin = named("bos_token"), end = named("eos_token");
  for (auto [field, token, adds, name] : {std::tuple("add_bos_token", begin, &pipeline.adds_bos, "bos_token"),
                                          std::tuple("add_eos_token", end, &pipeline.adds_eos, "eos_token")}) {
    const nlohmann::json wanted = configured.value(field, nlohmann::json());
    if (!wanted.is_boolean()) continue;
    if (wanted && token < 0)
      return data_error(fmt::format("{}: {}: expected a token of the vocabulary, since {} is true, found {}",
                                    own.string(), name, field, shown(configured.value(name, nlohmann::json()))));
    *adds = wanted;
    if (wanted && token == begin) bounds.begin = begin;
    if (wanted && token == end) bounds.ends = {end};
  }
  bounds.add(begin, end >= 0 ? std::span(&end, 1) : std::span<const TokenId>());
  const bool prefixes =
      std::ranges::any_of(pipeline.normalizer, &is_prefix) || std::ranges::any_of(pipeline.prepare, &is_prefix);
  if (configured.value("add_prefix_space", nlohmann::json()) == true && !prefixes)
    log::warn("{}: add_prefix_space is not applied", own.string());
  const auto of_model = model_bounds(folder, int(parts.tokens.size()));
  if (of_model.ok())
    bounds.add(of_model->begin, of_model->ends);
  else
    log::warn("{}; the ids that it and the model's other config name are left out", of_model.error().message);
  return {};
}

// Checks that no merge is missing. Every token must be a byte, the result of a merge, or an added token. If merges are
// missing, the first of them merged two tokens that can still be made. So a token is refused if no merge makes it
// although two such tokens form its bytes, unless it is marked as added. A token that no such pair forms needs no mark.
Status check_belong_together(const fs::path& folder, const Tokenizer& tokenizer, const std::set<TokenId>& added) {
  std::vector<bool> made(std::size_t(tokenizer.vocab_size()));
  std::unordered_map<std::string_view, TokenId> ids;
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    ids.emplace(tokenizer.bytes(id), id);
    made[std::size_t(id)] = tokenizer.bytes(id).size() == 1;
  }
  for (const Merge& merge : tokenizer.merges())
    made[std::size_t(ids.at(std::string(tokenizer.bytes(merge.left)) + std::string(tokenizer.bytes(merge.right))))] =
        true;
  const auto is_made = [&](std::string_view token) {
    const auto it = ids.find(token);
    return it != ids.end() && made[std::size_t(it->second)];
  };
  std::size_t expected = 0;
  TokenId first = -1;
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::string_view token = tokenizer.bytes(id);
    if (token.size() == 1 || has_special_form(token) || added.contains(id)) continue;
    ++expected;
    for (std::size_t cut = 1; first < 0 && !made[std::size_t(id)] && cut < token.size(); ++cut)
      if (is_made(token.substr(0, cut)) && is_made(token.substr(cut))) first = id;
  }
  if (first < 0) return {};
  return data_error(
      fmt::format("{}: expected {} merges in merges.txt for the {} tokens of vocab.json, found {}: none makes {} (id "
                  "{}); tokens in <> or [], or in added_tokens.json, need none",
                  folder.string(), expected, tokenizer.vocab_size(), tokenizer.merges().size(),
                  shown(to_letters(std::string(tokenizer.bytes(first)))), first));
}

}  // namespace

void TextBounds::add(TokenId begin_too, std::span<const TokenId> ends_too) {
  if (begin < 0) begin = begin_too;
  for (const TokenId end : ends_too)
    if (std::ranges::count(ends, end) == 0) ends.push_back(end);
}

Result<TextBounds> bounds_in(const fs::path& file, int vocab_size) {
  const auto is_id = [](const nlohmann::json& id) {
    return id.is_number_integer() && id >= 0 && id <= std::numeric_limits<TokenId>::max();
  };
  LANCET_ASSIGN(const auto config, read_object(file, "a model's config"));
  const nlohmann::json begin = config.value("bos_token_id", nlohmann::json());
  nlohmann::json ends = config.value("eos_token_id", nlohmann::json());
  if (ends.is_null()) ends = nlohmann::json::array();
  if (!ends.is_array()) ends = nlohmann::json::array({ends});
  if (const auto wrong = std::ranges::find_if_not(ends, [&](const auto& id) { return is_id(id) || id == -1; });
      wrong != ends.end())
    return data_error(
        fmt::format("{}: eos_token_id: expected an id or a list of ids, found {}", file.string(), shown(*wrong)));
  TextBounds bounds;
  if (is_id(begin) && begin < vocab_size) bounds.begin = begin.get<TokenId>();
  for (const nlohmann::json& id : ends)
    if (is_id(id) && id < vocab_size) bounds.ends.push_back(id.get<TokenId>());
  return bounds;
}

Result<TextBounds> model_bounds(const fs::path& folder, int vocab_size) {
  LANCET_ASSIGN(TextBounds bounds, bounds_in(folder / "generation_config.json", vocab_size));
  LANCET_ASSIGN(TextBounds others, bounds_in(folder / "config.json", vocab_size));
  if (bounds.begin < 0) bounds.begin = others.begin;
  if (bounds.ends.empty()) bounds.ends = std::move(others.ends);
  return bounds;
}

Result<Tokenizer> Tokenizer::load(const fs::path& folder) {
  std::error_code ignored;
  const bool is_json = fs::exists(folder / "tokenizer.json", ignored);
  TokenizerParts parts;
  if (is_json) {
    LANCET_ASSIGN(parts, read_tokenizer_json(folder / "tokenizer.json"));
  } else {
    LANCET_ASSIGN(parts.tokens, read_vocabulary(folder / "vocab.json"));
    LANCET_ASSIGN(parts.merges, read_merges(folder / "merges.txt", parts.tokens));
    parts.of_model = parts.tokens.size();
  }
  LANCET_TRY(read_added_tokens(folder, parts));
  LANCET_TRY(read_bounds(folder, parts));
  std::set<TokenId> added;
  for (const AddedToken& token : parts.added) added.insert(token.id);
  auto tokenizer = make(std::move(parts));
  if (!tokenizer) return data_error(fmt::format("{}: {}", folder.string(), tokenizer.error().message));
  if (!is_json) LANCET_TRY(check_belong_together(folder, *tokenizer, added));
  return tokenizer;
}

Status Tokenizer::save(const fs::path& folder) const {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return data_error(fmt::format("{}: cannot create the folder: {}", folder.string(), error.message()));
  std::vector<std::string> letters;
  letters.reserve(tables_->tokens.size());
  for (const std::string& token : tables_->tokens) letters.push_back(to_letters(token));
  std::string vocabulary = "{";
  for (std::size_t id = 0; id < letters.size(); ++id)
    vocabulary += fmt::format("{}{}: {}", id == 0 ? "" : ", ",
                              json_text(nlohmann::json(letters[id]), {.ascii = true, .strict = true}), id);
  vocabulary += "}";
  std::string merges = "#version: 0.2\n";
  for (const Merge& merge : tables_->merges)
    merges += fmt::format("{} {}\n", letters[std::size_t(merge.left)], letters[std::size_t(merge.right)]);
  LANCET_ASSIGN(AtomicFile vocabulary_file, AtomicFile::create(folder / "vocab.json"));
  LANCET_ASSIGN(AtomicFile merges_file, AtomicFile::create(folder / "merges.txt"));
  LANCET_TRY(vocabulary_file.append(vocabulary.data(), vocabulary.size()));
  LANCET_TRY(merges_file.append(merges.data(), merges.size()));
  LANCET_TRY(vocabulary_file.sync());
  LANCET_TRY(merges_file.sync());
  LANCET_TRY(merges_file.remove_old());
  LANCET_TRY(vocabulary_file.commit());
  return merges_file.commit();
}

}  // namespace lancet::data
