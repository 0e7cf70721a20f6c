#include "lancet/data/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "lancet/base/hash.h"
#include "lancet/base/utf8.h"
#include "text.h"
#include "tokenizer_tables.h"

namespace lancet::data {
namespace {

// What the ids of a text depend on beside tokens and merges; empty for GPT-2's tokenizers.
std::string describe(const TokenizerTables& tables) {
  const Pipeline& pipeline = tables.pipeline;
  std::string text;
  for (const auto* steps : {&pipeline.normalizer, &pipeline.prepare})
    for (const TextStep& step : *steps)
      text +=
          fmt::format("step {} {} {} {} {}\n", int(step.kind), step.from, step.to, step.unless_there, step.first_only);
  if (pipeline.splits != std::vector{Split::gpt2()})
    for (const Split& split : pipeline.splits) text += fmt::format("{}\n", split.description());
  if (pipeline.ignore_merges) text += "ignore merges\n";
  if (!pipeline.byte_level)
    text += fmt::format("characters {} {} {}\n", pipeline.byte_fallback, pipeline.fuse_unknown, pipeline.unknown);
  for (const AddedToken& token : tables.added)
    if (token.lstrip || token.rstrip || token.single_word || (token.normalized && !pipeline.normalizer.empty()))
      text += fmt::format("added {} {} {} {} {}\n", token.id, token.normalized, token.lstrip, token.rstrip,
                          token.single_word);
  return text;
}

std::uint64_t hash_of(const TokenizerTables& tables) {
  std::string content = fmt::format("{} tokens\n", tables.tokens.size());
  for (const std::string& token : tables.tokens) content += fmt::format("{} {}\n", token.size(), token);
  for (const Merge& merge : tables.merges) content += fmt::format("{} {}\n", merge.left, merge.right);
  return hash64(content + describe(tables));
}

// The ASCII characters before which the ids of a text may be cut, if another than white space comes before: no
// pre-token, or no token of a pre-token that is the whole text, spans that position, and no pattern looks across it.
// Empty where nothing is known of the patterns.
std::string safe_cuts(const TokenizerTables& tables) {
  const Pipeline& pipeline = tables.pipeline;
  bool writes_spaces = false;  // as "▁"
  for (const auto* steps : {&pipeline.normalizer, &pipeline.prepare})
    for (const TextStep& step : *steps) {
      const bool is_space = step.kind == TextStep::Kind::replace && step.from == " " && step.to == "▁";
      if (step.kind == TextStep::Kind::replace && (pipeline.byte_level || !is_space)) return "";
      writes_spaces = writes_spaces || is_space;
    }
  std::vector<std::string> patterns;
  for (const Split& split : pipeline.splits) {
    patterns.push_back(split.pattern());
    if (split.behavior() != SplitBehavior::isolated && pipeline.byte_level) return "";
    if (const auto at = patterns.back().find("\\p{N}{1,3}"); at != std::string::npos) patterns.back().erase(at + 5, 5);
  }
  if (!pipeline.byte_level)
    return writes_spaces && tables.character(U'▁').begins_words && !pipeline.ignore_merges &&
                   (patterns.empty() || patterns == std::vector<std::string>{"▁"})
               ? " "
               : "";
  if (pipeline.splits == std::vector{Split::gpt2()}) return std::string(kWhiteSpace);
  static const std::vector<std::vector<std::string>> known{
      // Llama 3, Qwen 2 and 3
      {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
      // DeepSeek
      {R"(\p{N})", "[一-龥぀-ゟ゠-ヿ]+",
       R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^)"
       "\r\n"
       R"(\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[)"
       "\r\n"
       R"(]*|\s*[)"
       "\r\n"
       R"(]+|\s+(?!\S)|\s+)"}};
  return std::ranges::count(known, patterns) > 0 ? " \t" : "";
}

// made: by id, whether a merge makes it. Added tokens are whole characters, so that a text falls apart into whole
// characters around them.
void find_added(TokenizerTables& tables, const std::vector<bool>& made, TokenizerParts& parts) {
  tables.added = std::move(parts.added);
  std::vector<bool> is_added(tables.tokens.size());
  for (const AddedToken& token : tables.added) is_added[std::size_t(token.id)] = true;
  for (std::size_t id = 0; parts.infers_added && id < tables.tokens.size(); ++id) {
    const std::string& token = tables.tokens[id];
    if (token.size() > 1 && !is_added[id] && (!made[id] || std::ranges::count(tables.ends, TokenId(id))) &&
        first_invalid_utf8(token) == token.size())
      tables.added.push_back({.id = TokenId(id), .content = token});
  }
  for (std::uint32_t i = 0; i < tables.added.size(); ++i) {
    const AddedToken& token = tables.added[i];
    std::string buffer;
    if (token.normalized)
      tables.normalized_added.insert(apply(tables.pipeline.normalizer, token.content, {}, buffer), i);
    else
      tables.raw_added.insert(token.content, i);
  }
}

// The byte that a token "<0x0A>" stands for; -1: none.
int named_byte(std::string_view token) {
  int byte = -1;
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>' || token.find_first_of("abcdef") != token.npos)
    return -1;
  const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, byte, 16);
  return end == token.data() + 5 ? byte : -1;
}

// What merges start from: the tokens of bytes or characters.
Status find_symbols(TokenizerTables& tables, const std::vector<bool>& made, std::size_t of_model) {
  tables.byte_ids.fill(-1);
  if (tables.pipeline.byte_level) {
    for (int byte = 0; byte < 256; ++byte) {
      const char c = static_cast<char>(byte);
      tables.byte_ids[std::size_t(byte)] = tables.find({&c, 1});
      if (tables.byte_ids[std::size_t(byte)] < 0)
        return data_error(fmt::format("expected a token for every byte, found none for 0x{:02x}", byte));
    }
    return {};
  }
  const auto character = [&](char32_t c) -> TokenizerTables::Character& {
    return c < tables.characters.size() ? tables.characters[c] : tables.other_characters[c];
  };
  for (std::size_t id = 0; id < of_model; ++id) {
    const std::string& token = tables.tokens[id];
    if (const int byte = named_byte(token); byte >= 0 && tables.pipeline.byte_fallback)
      tables.byte_ids[std::size_t(byte)] = TokenId(id);
    if (first_character(token) == token) {
      std::size_t at = 0;
      character(next_character(token, at)).id = TokenId(id);
    }
    char32_t previous = 0;
    for (std::size_t at = 0; made[id] && at < token.size();) {
      const bool is_first = at == 0;
      const char32_t c = next_character(token, at);
      if (!is_first && c != previous) character(c).begins_words = false;
      previous = c;
    }
  }
  for (const Merge& merge : tables.merges)
    for (const TokenId id : {merge.left, merge.right})
      if (std::ranges::count(tables.byte_ids, id))
        return data_error(
            fmt::format("expected merges of characters, found one of the byte {}", tables.tokens[std::size_t(id)]));
  return {};
}

void find_decoded(TokenizerTables& tables) {
  if (tables.pipeline.byte_level) return;
  for (const std::string& token : tables.tokens) {
    std::string text = token;
    for (const TextStep& step : tables.pipeline.decoder) text = replace_all(text, step.from, step.to);
    const int byte = tables.pipeline.decode_bytes ? named_byte(text) : -1;
    tables.decoded.push_back(byte < 0 ? text : std::string(1, static_cast<char>(byte)));
  }
}

}  // namespace

void PairTable::insert(Merge pair, std::int32_t rank, TokenId result) {
  std::size_t s = start(pair);
  while (slots_[s].result >= 0) s = (s + 1) & (slots_.size() - 1);
  slots_[s] = {pair, rank, result};
}

PairTable::PairTable(std::size_t pairs) {
  std::size_t size = 16;
  while (size < pairs * 2) size *= 2;
  slots_.resize(size);
  shift_ = 64;
  for (; size > 1; size /= 2) --shift_;
}

TokenId TokenizerTables::find(std::string_view bytes) const {
  const auto it = std::ranges::lower_bound(by_bytes, bytes, {},
                                           [&](TokenId id) { return std::string_view(tokens[std::size_t(id)]); });
  return it != by_bytes.end() && tokens[std::size_t(*it)] == bytes ? *it : -1;
}

Result<Tokenizer> Tokenizer::make(std::vector<std::string> tokens, std::vector<Merge> merges) {
  const std::size_t count = tokens.size();
  return make(TokenizerParts{.tokens = std::move(tokens), .of_model = count, .merges = std::move(merges)});
}

Result<Tokenizer> Tokenizer::make(TokenizerParts parts) {
  auto tables = std::make_shared<TokenizerTables>();
  tables->tokens = std::move(parts.tokens);
  tables->pipeline = std::move(parts.pipeline);
  const auto& tokens = tables->tokens;
  const auto bytes_of = [&](TokenId id) { return std::string_view(tokens[std::size_t(id)]); };
  for (std::size_t id = 0; id < parts.of_model; ++id) tables->by_bytes.push_back(TokenId(id));
  std::ranges::stable_sort(tables->by_bytes, {}, bytes_of);
  for (std::size_t i = 0; i < tables->by_bytes.size(); ++i) {
    const TokenId id = tables->by_bytes[i], before = i > 0 ? tables->by_bytes[i - 1] : -1;
    const bool is_again = before >= 0 && bytes_of(before) == bytes_of(id);
    if (bytes_of(id).empty() || is_again)
      return data_error(fmt::format("expected each token once and not empty, found token {} {}", id,
                                    is_again ? fmt::format("equal to token {}", before) : "empty"));
  }
  const auto known = [&](TokenId id) { return id >= 0 && static_cast<std::size_t>(id) < tokens.size(); };
  tables->ends = std::move(parts.bounds.ends);
  if (const auto end = std::ranges::find_if(tables->ends, known); end != tables->ends.end()) {
    tables->eos = *end;
  } else if (const auto it = std::ranges::find(tokens, kEndOfText); it != tokens.end()) {
    tables->eos = TokenId(it - tokens.begin());
    tables->ends.push_back(tables->eos);
  }
  tables->bos = known(parts.bounds.begin) ? parts.bounds.begin : tables->eos;
  std::vector<bool> made(tokens.size());
  tables->pairs = PairTable(parts.merges.size());
  for (std::size_t rank = 0; rank < parts.merges.size(); ++rank) {
    const Merge& merge = parts.merges[rank];
    if (!known(merge.left) || !known(merge.right))
      return data_error(fmt::format("merge {}: expected ids below {}, found {} and {}", rank, tokens.size(), merge.left,
                                    merge.right));
    const TokenId result = tables->find(std::string(bytes_of(merge.left)) + std::string(bytes_of(merge.right)));
    if (result < 0)
      return data_error(
          fmt::format("merge {}: expected a token for what {} and {} make, found none", rank, merge.left, merge.right));
    if (const auto* first = tables->pairs.find(merge))
      return data_error(fmt::format("merge {}: expected a new pair, found that of merge {}", rank, first->rank));
    tables->pairs.insert(merge, static_cast<std::int32_t>(rank), result);
    made[static_cast<std::size_t>(result)] = true;
  }
  tables->merges = std::move(parts.merges);
  LANCET_TRY(find_symbols(*tables, made, parts.of_model));
  find_added(*tables, made, parts);
  find_decoded(*tables);
  tables->cut_before = safe_cuts(*tables);
  tables->hash = hash_of(*tables);
  Tokenizer tokenizer;
  tokenizer.tables_ = std::move(tables);
  return tokenizer;
}

Result<std::vector<TokenId>> Tokenizer::encode(std::string_view text, SpecialTokens special) const {
  std::vector<TokenId> ids;
  LANCET_TRY(Encoder(*this, special).encode(text, ids));
  if (adds_bos() && (ids.empty() || ids.front() != bos())) ids.insert(ids.begin(), bos());
  return ids;
}

Result<std::string> Tokenizer::decode(std::span<const TokenId> ids) const {
  std::string text;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab_size())
      return data_error(fmt::format("expected ids below {}, found {} at position {}", vocab_size(), ids[i], i));
    text += bytes(ids[i], i == 0);
  }
  return text;
}

std::string_view Tokenizer::bytes(TokenId id, bool at_start) const {
  LANCET_CHECK(id >= 0, "token {} of {}", id, vocab_size());
  if (id >= vocab_size()) return "";
  std::string_view text = (tables_->decoded.empty() ? tables_->tokens : tables_->decoded)[static_cast<std::size_t>(id)];
  for (int i = 0; at_start && i < tables_->pipeline.strip_spaces && text.starts_with(' '); ++i) text.remove_prefix(1);
  return text;
}

int Tokenizer::vocab_size() const { return static_cast<int>(tables_->tokens.size()); }
TokenId Tokenizer::bos() const { return tables_->bos; }
TokenId Tokenizer::eos() const { return tables_->eos; }
std::span<const TokenId> Tokenizer::ends() const { return tables_->ends; }
bool Tokenizer::adds_bos() const { return tables_->pipeline.adds_bos; }
bool Tokenizer::adds_eos() const { return tables_->pipeline.adds_eos; }
std::span<const AddedToken> Tokenizer::added() const { return tables_->added; }
std::string_view Tokenizer::cut_before() const { return tables_->cut_before; }
std::uint64_t Tokenizer::hash() const { return tables_->hash; }
std::span<const Merge> Tokenizer::merges() const { return tables_->merges; }

Status check_same(const TokenizerId& expected, const TokenizerId& found) {
  if (expected.hash == 0 || found.hash == 0 || expected.hash == found.hash) return {};
  return data_error(fmt::format("{}: expected the tokenizer of {} ({}), found another ({})", found.of, expected.of,
                                hex(expected.hash), hex(found.hash)));
}

}  // namespace lancet::data
