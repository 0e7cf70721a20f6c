#include "lancet/data/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "lancet/base/hash.h"
#include "tokenizer_tables.h"

namespace lancet::data {
namespace {

std::uint64_t hash_of(const TokenizerTables& tables) {
  std::string content = fmt::format("{} tokens\n", tables.tokens.size());
  for (const std::string& token : tables.tokens) content += fmt::format("{} {}\n", token.size(), token);
  for (const Merge& merge : tables.merges) content += fmt::format("{} {}\n", merge.left, merge.right);
  return hash64(content);
}

// made: by id, whether a merge makes it. Special tokens are whole characters, so that a text falls apart into whole
// characters around them.
void find_special(TokenizerTables& tables, const std::vector<bool>& made, const std::vector<TokenId>& added) {
  for (std::size_t id = 0; id < tables.tokens.size(); ++id) {
    const std::string& token = tables.tokens[id];
    const bool is_special =
        !made[id] || std::ranges::count(tables.ends, TokenId(id)) || std::ranges::count(added, TokenId(id));
    if (token.size() > 1 && is_special && first_invalid_utf8(token) == token.size())
      tables.special.push_back(TokenId(id));
  }
  const auto first = [&](TokenId id) { return static_cast<unsigned char>(tables.tokens[std::size_t(id)].front()); };
  std::ranges::sort(tables.special, [&](TokenId a, TokenId b) {
    const std::size_t size_a = tables.tokens[std::size_t(a)].size(), size_b = tables.tokens[std::size_t(b)].size();
    return first(a) != first(b) ? first(a) < first(b) : size_a != size_b ? size_a > size_b : a < b;
  });
  for (const TokenId id : tables.special) ++tables.special_from_byte[first(id) + 1u];
  for (std::size_t byte = 0; byte < 256; ++byte) tables.special_from_byte[byte + 1] += tables.special_from_byte[byte];
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

Result<Tokenizer> Tokenizer::make(std::vector<std::string> tokens, std::vector<Merge> merges, TextBounds bounds) {
  auto tables = std::make_shared<TokenizerTables>();
  tables->pairs = PairTable(merges.size());
  std::unordered_map<std::string_view, TokenId> ids;
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    const auto [it, added] = ids.emplace(tokens[id], static_cast<TokenId>(id));
    if (!added || tokens[id].empty())
      return data_error(fmt::format("expected each token once and not empty, found token {} {}", id,
                                    added ? "empty" : fmt::format("equal to token {}", it->second)));
  }
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    const auto it = ids.find(std::string_view(&c, 1));
    if (it == ids.end())
      return data_error(fmt::format("expected a token for every byte, found none for 0x{:02x}", byte));
    tables->byte_ids[static_cast<std::size_t>(byte)] = it->second;
  }
  const auto known = [&](TokenId id) { return id >= 0 && static_cast<std::size_t>(id) < tokens.size(); };
  tables->ends = std::move(bounds.ends);
  if (const auto end = std::ranges::find_if(tables->ends, known); end != tables->ends.end()) {
    tables->eos = *end;
  } else if (const auto it = ids.find(kEndOfText); it != ids.end()) {
    tables->eos = it->second;
    tables->ends.push_back(it->second);
  }
  tables->bos = known(bounds.begin) ? bounds.begin : tables->eos;
  std::vector<bool> made(tokens.size());
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const Merge& merge = merges[rank];
    if (!known(merge.left) || !known(merge.right))
      return data_error(fmt::format("merge {}: expected ids below {}, found {} and {}", rank, tokens.size(), merge.left,
                                    merge.right));
    const auto it =
        ids.find(tokens[static_cast<std::size_t>(merge.left)] + tokens[static_cast<std::size_t>(merge.right)]);
    if (it == ids.end())
      return data_error(
          fmt::format("merge {}: expected a token for what {} and {} make, found none", rank, merge.left, merge.right));
    if (const auto* first = tables->pairs.find(merge))
      return data_error(fmt::format("merge {}: expected a new pair, found that of merge {}", rank, first->rank));
    tables->pairs.insert(merge, static_cast<std::int32_t>(rank), it->second);
    made[static_cast<std::size_t>(it->second)] = true;
  }
  tables->tokens = std::move(tokens);
  tables->merges = std::move(merges);
  tables->hash = hash_of(*tables);
  find_special(*tables, made, bounds.added);
  Tokenizer tokenizer;
  tokenizer.tables_ = std::move(tables);
  return tokenizer;
}

Result<std::vector<TokenId>> Tokenizer::encode(std::string_view text, SpecialTokens special) const {
  std::vector<TokenId> ids;
  LANCET_TRY(Encoder(*this, special).encode(text, ids));
  return ids;
}

Result<std::string> Tokenizer::decode(std::span<const TokenId> ids) const {
  std::string text;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab_size())
      return data_error(fmt::format("expected ids below {}, found {} at position {}", vocab_size(), ids[i], i));
    text += bytes(ids[i]);
  }
  return text;
}

std::string_view Tokenizer::bytes(TokenId id) const {
  LANCET_CHECK(id >= 0, "token {} of {}", id, vocab_size());
  return id < vocab_size() ? std::string_view(tables_->tokens[static_cast<std::size_t>(id)]) : "";
}

int Tokenizer::vocab_size() const { return static_cast<int>(tables_->tokens.size()); }
TokenId Tokenizer::bos() const { return tables_->bos; }
TokenId Tokenizer::eos() const { return tables_->eos; }
std::span<const TokenId> Tokenizer::ends() const { return tables_->ends; }
std::span<const TokenId> Tokenizer::special() const { return tables_->special; }
std::uint64_t Tokenizer::hash() const { return tables_->hash; }
std::span<const Merge> Tokenizer::merges() const { return tables_->merges; }

Status check_same(const TokenizerId& expected, const TokenizerId& found) {
  if (expected.hash == 0 || found.hash == 0 || expected.hash == found.hash) return {};
  return data_error(fmt::format("{}: expected the tokenizer of {} ({}), found another ({})", found.of, expected.of,
                                hex(expected.hash), hex(found.hash)));
}

}  // namespace lancet::data
