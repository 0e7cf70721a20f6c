// Training first counts the distinct pre-tokens of all texts (WordCounts), so the memory does not grow with the text.
// Each word then starts as a list of bytes, and PairCounts counts the pairs of neighbours over all words. A loop takes
// the most frequent pair, gives it the next id, and merges it in all words that contain it, until the vocabulary is
// full or the best pair occurs fewer than min_count times. A pair whose bytes already are a token is skipped. Ids are
// assigned as in GPT-2: 256 bytes in GPT-2's order, then merges, then <|endoftext|>.
#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <cstdint>
#include <queue>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "lancet/data/tokenize.h"
#include "lancet/data/tokenizer.h"
#include "text.h"
#include "tokenizer_tables.h"

namespace lancet::data {
namespace {

std::uint64_t key_of(TokenId left, TokenId right) {
  return std::uint64_t(std::uint32_t(left)) << 32 | std::uint32_t(right);
}

Merge pair_of(std::uint64_t key) { return {TokenId(key >> 32), TokenId(key & 0xFFFFFFFFu)}; }

// The state of the tokenizer's training: holds the words (distinct pre-tokens) as tokens, and counts how
// often each pair of neighbouring tokens occurs.
//
// The heap holds candidates (count, pair). A count that rises puts the pair on the heap again (in the next pop()); a
// count that falls does not, so a candidate's count may be too high. pop() takes the top, compares it with the pair's
// current count, and pushes it back with that count if it was too high: the first exact candidate is the most frequent
// pair. merge() visits only the words that may contain the pair (Pair::words) and updates the counts of the
// neighbouring pairs.
class PairCounts {
 public:
  // Adds a word, as token ids, that occurs `count` times in the text.
  void add_word(std::span<const TokenId> tokens, std::int64_t count) {
    const auto word = static_cast<std::uint32_t>(words_.size());
    words_.push_back({tokens_.size(), static_cast<std::uint32_t>(tokens.size()), count});
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    for (std::size_t i = 0; i + 1 < tokens.size(); ++i) gain(tokens[i], tokens[i + 1], word, count);
  }

  struct Best {
    Merge pair;
    std::int64_t count = 0;  // 0: no pair is left
  };
  // Removes and returns the most frequent pair, the smallest of equals. The pair is returned again only after a merge
  // has raised its count.
  Best pop() {
    std::sort(raised_.begin(), raised_.end());
    raised_.erase(std::unique(raised_.begin(), raised_.end()), raised_.end());
    for (const std::uint64_t key : raised_) heap_.push({pairs_[key].count, key});
    raised_.clear();
    while (!heap_.empty()) {
      const Candidate top = heap_.top();
      heap_.pop();
      const std::int64_t count = pairs_[top.key].count;
      if (count == top.count && count > 0) return {pair_of(top.key), count};
      if (count < top.count && count > 0) heap_.push({count, top.key});
    }
    return {};
  }

  // Replaces every occurrence of the pair by `result`, from left to right in each word.
  void merge(Merge pair, TokenId result) {
    const auto found = pairs_.find(key_of(pair.left, pair.right));
    if (found == pairs_.end()) return;
    const std::vector<std::uint32_t> words = std::move(found->second.words);
    found->second = {};
    for (const std::uint32_t word : words) merge_in(word, pair, result);
    pairs_[key_of(pair.left, pair.right)] = {};  // lose() also counted the pair itself down, as in "aaa"
  }

 private:
  struct Word {
    std::size_t begin = 0;  // in tokens_
    std::uint32_t length = 0;
    std::int64_t count = 0;
  };
  struct Pair {
    std::int64_t count = 0;
    std::vector<std::uint32_t> words;  // words in which it occurs or did; may have repeats
  };
  struct Candidate {
    std::int64_t count;
    std::uint64_t key;
    bool operator<(const Candidate& other) const {  // std::priority_queue pops the greatest
      return count != other.count ? count < other.count : key > other.key;
    }
  };
  struct KeyHash {
    std::size_t operator()(std::uint64_t key) const { return (key * 0x9E3779B97F4A7C15u) >> 16; }
  };

  void merge_in(std::uint32_t number, Merge pair, TokenId result) {
    Word& word = words_[number];
    TokenId* token = tokens_.data() + word.begin;
    std::uint32_t kept = 0;
    for (std::uint32_t i = 0; i < word.length;) {
      if (i + 1 == word.length || token[i] != pair.left || token[i + 1] != pair.right) {
        token[kept++] = token[i++];
        continue;
      }
      if (kept > 0) {
        lose(token[kept - 1], pair.left, word.count);
        gain(token[kept - 1], result, number, word.count);
      }
      if (i + 2 < word.length) {
        lose(pair.right, token[i + 2], word.count);
        gain(result, token[i + 2], number, word.count);
      }
      token[kept++] = result;
      i += 2;
    }
    word.length = kept;
  }
  void gain(TokenId left, TokenId right, std::uint32_t word, std::int64_t count) {
    Pair& pair = pairs_[key_of(left, right)];
    pair.count += count;
    if (pair.words.empty() || pair.words.back() != word) pair.words.push_back(word);
    raised_.push_back(key_of(left, right));
  }
  void lose(TokenId left, TokenId right, std::int64_t count) { pairs_[key_of(left, right)].count -= count; }

  std::vector<TokenId> tokens_;  // all words, end to end; a word only shrinks
  std::vector<Word> words_;
  std::unordered_map<std::uint64_t, Pair, KeyHash> pairs_;
  std::priority_queue<Candidate> heap_;
  std::vector<std::uint64_t> raised_;  // keys whose count rose since they were last put on the heap
};

constexpr std::size_t kChunkBytes = std::size_t{4} << 20;
// Longer pre-tokens (runs without a space) are counted in pieces, which bounds the cost of a merge per word.
constexpr std::size_t kLongestWord = 256;

// Distinct words and how often each occurs.
class WordCounts {
 public:
  Status add(std::string_view text, SpecialTokens special, std::uint64_t first_byte) {
    if (const std::size_t bad = first_invalid_utf8(text); bad != text.size()) return not_utf8(text, bad, first_byte);
    for (std::size_t found; special == SpecialTokens::ids && (found = text.find(kEndOfText)) != text.npos;) {
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
    splitter_.start(text);
    for (auto word = splitter_.next(); !word.empty(); word = splitter_.next()) {
      for (; word.size() > kLongestWord; word.remove_prefix(kLongestWord)) count_word(word.substr(0, kLongestWord));
      count_word(word);
    }
  }

  void count_word(std::string_view word) {
    const std::uint32_t number = words_.find_or_add(word);
    if (number == counts_.size()) counts_.push_back(0);
    ++counts_[number];
  }

  Splitter splitter_{std::span(&Split::gpt2(), 1)};
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
  WordCounts words;
  LANCET_TRY(words.add(text, options.special, 0));
  return learn(words, options);
}

Result<Tokenizer> train_tokenizer(const std::vector<std::filesystem::path>& texts,
                                  const TrainTokenizerOptions& options) {
  LANCET_TRY(check(options));
  if (texts.empty()) return config_error("expected a text to train a tokenizer on, found none");
  WordCounts words;
  std::string chunk;
  for (const auto& path : texts) {
    LANCET_ASSIGN(TextPart part, whole_text(path));
    LANCET_ASSIGN(TextReader reader, TextReader::open(std::move(part), kChunkBytes, kWhiteSpace));
    for (;;) {
      const std::uint64_t first_byte = reader.position();
      LANCET_TRY(reader.next(chunk));
      if (chunk.empty()) break;
      if (const auto added = words.add(chunk, options.special, first_byte); !added)
        return data_error(fmt::format("{}: {}", path.string(), added.error().message));
    }
  }
  return learn(words, options);
}

}  // namespace lancet::data
