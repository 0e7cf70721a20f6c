// The heap holds candidates (count, pair). A count that rises puts the pair on the heap again (in the next pop()); a
// count that falls does not, so a candidate's count may be too high. pop() takes the top, compares it with the pair's
// current count, and pushes it back with that count if it was too high: the first exact candidate is the most frequent
// pair. merge() visits only the words that may contain the pair (Pair::words) and updates the counts of the
// neighbouring pairs.
#include "pair_counts.h"

#include <algorithm>

namespace lancet::data {
namespace {

std::uint64_t key_of(TokenId left, TokenId right) {
  return std::uint64_t(std::uint32_t(left)) << 32 | std::uint32_t(right);
}

Merge pair_of(std::uint64_t key) { return {TokenId(key >> 32), TokenId(key & 0xFFFFFFFFu)}; }

}  // namespace

void PairCounts::add_word(std::span<const TokenId> tokens, std::int64_t count) {
  const auto word = static_cast<std::uint32_t>(words_.size());
  words_.push_back({tokens_.size(), static_cast<std::uint32_t>(tokens.size()), count});
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  for (std::size_t i = 0; i + 1 < tokens.size(); ++i) gain(tokens[i], tokens[i + 1], word, count);
}

PairCounts::Best PairCounts::pop() {
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

void PairCounts::merge(Merge pair, TokenId result) {
  const auto found = pairs_.find(key_of(pair.left, pair.right));
  if (found == pairs_.end()) return;
  const std::vector<std::uint32_t> words = std::move(found->second.words);
  found->second = {};
  for (const std::uint32_t word : words) merge_in(word, pair, result);
  pairs_[key_of(pair.left, pair.right)] = {};  // lose() also counted the pair itself down, as in "aaa"
}

void PairCounts::merge_in(std::uint32_t number, Merge pair, TokenId result) {
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

void PairCounts::gain(TokenId left, TokenId right, std::uint32_t word, std::int64_t count) {
  Pair& pair = pairs_[key_of(left, right)];
  pair.count += count;
  if (pair.words.empty() || pair.words.back() != word) pair.words.push_back(word);
  raised_.push_back(key_of(left, right));
}

void PairCounts::lose(TokenId left, TokenId right, std::int64_t count) { pairs_[key_of(left, right)].count -= count; }

}  // namespace lancet::data
