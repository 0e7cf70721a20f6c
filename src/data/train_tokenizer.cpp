// Training first counts the distinct pre-tokens of all texts (WordCounts), so the memory does not grow with the text.
// Each word then starts as a list of bytes, and PairCounts counts the pairs of neighbours over all words. A loop takes
// the most frequent pair, gives it the next id, and merges it in all words that contain it, until the vocabulary is
// full or the best pair occurs fewer than min_count times. A pair whose bytes already are a token is skipped. Ids are
// assigned as in GPT-2: 256 bytes in GPT-2's order, then merges, then <|endoftext|>.
#include "lancet/data/train_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <unordered_set>

#include "pair_counts.h"
#include "pretokens.h"
#include "text_reader.h"
#include "tokenizer_tables.h"
#include "utf8.h"

namespace lancet::data {
namespace {

constexpr std::size_t kChunkBytes = std::size_t{4} << 20;
// Longer pre-tokens (runs without a space) are counted in pieces, which bounds the cost of a merge per word.
constexpr std::size_t kLongestWord = 256;

// Distinct words and how often each occurs.
class WordCounts {
 public:
  explicit WordCounts(Special special) : special_(special) {}

  Status add(std::string_view text, std::uint64_t first_byte) {
    if (const std::size_t bad = first_invalid_utf8(text); bad != text.size()) return not_utf8(text, bad, first_byte);
    while (special_ == Special::as_token) {
      const std::size_t found = text.find(kEndOfText);
      if (found == std::string_view::npos) break;
      count(text.substr(0, found));
      text.remove_prefix(found + kEndOfText.size());
    }
    count(text);
    return {};
  }

  PairCounts pairs(const std::array<TokenId, 256>& id_of_byte) const {
    PairCounts out;
    std::vector<TokenId> tokens;
    for (std::uint32_t word = 0; word < words_.size(); ++word) {
      tokens.clear();
      for (const char c : words_.at(word)) tokens.push_back(id_of_byte[static_cast<unsigned char>(c)]);
      out.add_word(tokens, counts_[word]);
    }
    return out;
  }

 private:
  void count(std::string_view text) {
    pretokens_.start(text);
    for (auto word = pretokens_.next(); !word.empty(); word = pretokens_.next()) {
      for (; word.size() > kLongestWord; word.remove_prefix(kLongestWord)) count_word(word.substr(0, kLongestWord));
      count_word(word);
    }
  }

  void count_word(std::string_view word) {
    const std::uint32_t number = words_.find_or_add(word);
    if (number == counts_.size()) counts_.push_back(0);
    ++counts_[number];
  }

  Special special_;
  Pretokens pretokens_;
  BytesTable words_;
  std::vector<std::int64_t> counts_;
};

Result<Tokenizer> learn(const WordCounts& words, const TrainTokenizerOptions& options) {
  std::vector<std::string> tokens;
  std::array<TokenId, 256> id_of_byte{};
  for (const std::uint8_t byte : byte_order()) {
    id_of_byte[byte] = static_cast<TokenId>(tokens.size());
    tokens.emplace_back(1, static_cast<char>(byte));
  }
  PairCounts pairs = words.pairs(id_of_byte);
  std::unordered_set<std::string> known(tokens.begin(), tokens.end());
  known.emplace(kEndOfText);
  std::vector<Merge> merges;
  const int wanted = options.vocab_size - 257;
  while (static_cast<int>(merges.size()) < wanted) {
    const auto best = pairs.pop();
    if (best.count < std::max<std::int64_t>(options.min_count, 1)) break;
    std::string bytes = tokens[std::size_t(best.pair.left)] + tokens[std::size_t(best.pair.right)];
    // "a" "bc" may form a token that "ab" "c" made before; GPT-2's format has one merge per token.
    if (!known.insert(bytes).second) continue;
    pairs.merge(best.pair, static_cast<TokenId>(tokens.size()));
    tokens.push_back(std::move(bytes));
    merges.push_back(best.pair);
    if (options.progress && merges.size() % 256 == 0) options.progress(static_cast<int>(merges.size()), wanted);
  }
  tokens.emplace_back(kEndOfText);
  return Tokenizer::make(std::move(tokens), std::move(merges));
}

Status check(const TrainTokenizerOptions& options) {
  if (options.vocab_size >= 257) return {};
  return config_error(fmt::format("expected a vocabulary of at least 257 (the bytes and {}), found {}", kEndOfText,
                                  options.vocab_size));
}

}  // namespace

Result<Tokenizer> train_tokenizer(std::string_view text, const TrainTokenizerOptions& options) {
  LANCET_TRY(check(options));
  if (text.empty()) return data_error("expected a text to train a tokenizer on, found an empty one");
  WordCounts words(options.special);
  LANCET_TRY(words.add(text, 0));
  return learn(words, options);
}

Result<Tokenizer> train_tokenizer(const std::vector<std::filesystem::path>& texts,
                                  const TrainTokenizerOptions& options) {
  LANCET_TRY(check(options));
  if (texts.empty()) return config_error("expected a text to train a tokenizer on, found none");
  WordCounts words(options.special);
  std::string chunk;
  for (const auto& path : texts) {
    LANCET_ASSIGN(TextPart part, whole_text(path));
    LANCET_ASSIGN(TextReader reader, TextReader::open(std::move(part), kChunkBytes));
    for (;;) {
      const std::uint64_t first_byte = reader.position();
      LANCET_TRY(reader.next(chunk));
      if (chunk.empty()) break;
      if (const auto added = words.add(chunk, first_byte); !added)
        return data_error(fmt::format("{}: {}", path.string(), added.error().message));
    }
  }
  return learn(words, options);
}

}  // namespace lancet::data
