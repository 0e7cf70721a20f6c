// vocab.json and merges.txt, as GPT-2 has them.
#include <fmt/format.h>

#include <system_error>
#include <unordered_map>

#include "byte_letters.h"
#include "lancet/base/atomic_file.h"
#include "lancet/base/json.h"
#include "lancet/base/log.h"
#include "lancet/base/shown.h"
#include "lancet/data/tokenizer.h"
#include "tokenizer_tables.h"

namespace lancet::data {

namespace fs = std::filesystem;

namespace {

// Bytes by id. A null json value marks an id that has not come yet.
Result<std::vector<std::string>> read_vocabulary(const fs::path& path) {
  LANCET_ASSIGN(const std::string content, read_file(path, "a tokenizer's vocabulary"));
  LANCET_ASSIGN(const nlohmann::json json, parse_json(content, path.string(), ExitCode::data));
  if (!json.is_object()) {
    return data_error(
        fmt::format("{}: expected an object of tokens and ids, found {}", path.string(), json.type_name()));
  }
  std::vector<std::string> tokens(json.size());
  for (const auto& [letters, id] : json.items()) {
    if (!id.is_number_integer() || id < 0 || id >= tokens.size()) {
      return data_error(fmt::format("{}: expected the ids 0..{}, found {} for token {}", path.string(),
                                    tokens.size() - 1, shown(id), shown(letters)));
    }
    std::string& token = tokens[id.get<std::size_t>()];
    if (!token.empty()) {
      return data_error(fmt::format("{}: expected each id once, found {} again for token {}", path.string(), id.dump(),
                                    shown(letters)));
    }
    auto bytes = from_letters(letters);
    if (!bytes || bytes->empty()) {
      return data_error(
          fmt::format("{}: expected GPT-2's byte letters, found token {}", path.string(), shown(letters)));
    }
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
  for (int number = 1; !rest.empty(); ++number) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || (number == 1 && line.starts_with("#version"))) continue;
    const std::size_t space = line.find(' ');
    if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) {
      return data_error(
          fmt::format("{}: expected two tokens, found {} on line {}", path.string(), shown(line), number));
    }
    const Merge merge{id_of(line.substr(0, space)), id_of(line.substr(space + 1))};
    if (merge.left < 0 || merge.right < 0) {
      return data_error(fmt::format("{}: expected tokens of the vocabulary, found {} on line {}", path.string(),
                                    shown(line), number));
    }
    merges.push_back(merge);
  }
  return merges;
}

}  // namespace

Result<Tokenizer> Tokenizer::load(const fs::path& folder) {
  LANCET_ASSIGN(auto tokens, read_vocabulary(folder / "vocab.json"));
  LANCET_ASSIGN(auto merges, read_merges(folder / "merges.txt", tokens));
  const std::size_t made = merges.size() + 256, all = tokens.size();
  auto tokenizer = make(std::move(tokens), std::move(merges));
  if (tokenizer.ok() && made + 1 < all)  // 1: <|endoftext|>
    log::warn("{}: {} tokens of vocab.json come from no merge of merges.txt: is that file cut?", folder.string(),
              all - 1 - made);
  if (!tokenizer) return data_error(fmt::format("{}: {}", folder.string(), tokenizer.error().message));
  return tokenizer;
}

Status Tokenizer::save(const fs::path& folder) const {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return data_error(fmt::format("{}: cannot make this folder: {}", folder.string(), error.message()));
  std::vector<std::string> letters;
  letters.reserve(tables_->tokens.size());
  for (const std::string& token : tables_->tokens) letters.push_back(to_letters(token));

  std::string vocabulary = "{";
  for (std::size_t id = 0; id < letters.size(); ++id) {
    vocabulary += fmt::format("{}{}: {}", id == 0 ? "" : ", ", nlohmann::json(letters[id]).dump(-1, ' ', true), id);
  }
  vocabulary += "}";
  std::string merges = "#version: 0.2\n";
  for (const Merge& merge : tables_->merges) {
    merges += fmt::format("{} {}\n", letters[std::size_t(merge.left)], letters[std::size_t(merge.right)]);
  }
  LANCET_TRY(write_file(folder / "vocab.json", vocabulary));
  return write_file(folder / "merges.txt", merges);
}

}  // namespace lancet::data
