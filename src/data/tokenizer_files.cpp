// Reads and writes vocab.json and merges.txt in GPT-2's format.
#include <fmt/format.h>

#include <set>
#include <system_error>
#include <unordered_map>

#include "lancet/base/files.h"
#include "lancet/base/json.h"
#include "lancet/base/shown.h"
#include "lancet/data/tokenizer.h"
#include "text.h"
#include "tokenizer_tables.h"

namespace lancet::data {

namespace fs = std::filesystem;

namespace {

// The bytes of each id. An empty string marks an id that was not read yet.
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

// The tokens of added_tokens.json, Hugging Face's object of tokens and ids; empty if there is no such file.
Result<std::set<std::string>> read_added_tokens(const fs::path& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return std::set<std::string>();
  LANCET_ASSIGN(const std::string content, read_file(path, "a tokenizer's added tokens"));
  LANCET_ASSIGN(const auto json, parse_json(content, path.string(), ExitCode::data));
  if (!json.is_object())
    return data_error(fmt::format("{}: expected a JSON object of tokens and ids, found none", path.string()));
  std::set<std::string> added;
  for (const auto& [token, id] : json.items()) added.insert(token);
  return added;
}

bool has_special_form(std::string_view token) {
  return token.size() > 2 &&
         ((token.front() == '<' && token.back() == '>') || (token.front() == '[' && token.back() == ']'));
}

// Checks that no merge is missing. Every token must be a byte, the result of a merge, or an added token. If merges are
// missing, the first of them merged two tokens that can still be made. So a token is refused if no merge makes it
// although two such tokens form its bytes, unless it is marked as added. A token that no such pair forms needs no mark.
Status check_belong_together(const fs::path& folder, const Tokenizer& tokenizer) {
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
  LANCET_ASSIGN(const auto added, read_added_tokens(folder / "added_tokens.json"));
  std::size_t expected = 0;
  TokenId first = -1;
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::string_view token = tokenizer.bytes(id);
    if (token.size() == 1 || has_special_form(token) || added.contains(std::string(token))) continue;
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

Result<Tokenizer> Tokenizer::load(const fs::path& folder) {
  LANCET_ASSIGN(auto tokens, read_vocabulary(folder / "vocab.json"));
  LANCET_ASSIGN(auto merges, read_merges(folder / "merges.txt", tokens));
  auto tokenizer = make(std::move(tokens), std::move(merges));
  if (!tokenizer) return data_error(fmt::format("{}: {}", folder.string(), tokenizer.error().message));
  LANCET_TRY(check_belong_together(folder, *tokenizer));
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
  LANCET_TRY(write_file(folder / "vocab.json", vocabulary));
  return write_file(folder / "merges.txt", merges);
}

}  // namespace lancet::data
