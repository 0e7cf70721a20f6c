// PairCounts: the state of the tokenizer's training. It holds the words (distinct pre-tokens) as tokens, and counts how
// often each pair of neighbouring tokens occurs.
#pragma once
#include <cstdint>
#include <queue>
#include <span>
#include <unordered_map>
#include <vector>

#include "lancet/data/tokenizer.h"

namespace lancet::data {

class PairCounts {
 public:
  // Adds a word, as token ids, that occurs `count` times in the text.
  void add_word(std::span<const TokenId> tokens, std::int64_t count);

  struct Best {
    Merge pair;
    std::int64_t count = 0;  // 0: no pair is left
  };
  // Removes and returns the most frequent pair, the smallest of equals. The pair is returned again only after a merge
  // has raised its count.
  Best pop();

  // Replaces every occurrence of the pair by `result`, from left to right in each word.
  void merge(Merge pair, TokenId result);

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

  void merge_in(std::uint32_t word, Merge pair, TokenId result);
  void gain(TokenId left, TokenId right, std::uint32_t word, std::int64_t count);
  void lose(TokenId left, TokenId right, std::int64_t count);

  std::vector<TokenId> tokens_;  // all words, end to end; a word only shrinks
  std::vector<Word> words_;
  std::unordered_map<std::uint64_t, Pair, KeyHash> pairs_;
  std::priority_queue<Candidate> heap_;
  std::vector<std::uint64_t> raised_;  // keys whose count rose since they were last put on the heap
};

}  // namespace lancet::data
