// The tables of a tokenizer: tokens by id, merges by rank, and a hash table of the merges by pair.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "lancet/base/check.h"
#include "lancet/data/token.h"

namespace lancet::data {

// Maps a pair to its rank and result; open addressing, at most half full.
class PairTable {
 public:
  struct Entry {
    Merge pair;
    std::int32_t rank = -1;
    TokenId result = -1;  // -1: a free slot
  };

  explicit PairTable(std::size_t pairs = 0);
  void insert(Merge pair, std::int32_t rank, TokenId result);  // the pair must be new
  const Entry* find(Merge pair) const {
    for (std::size_t s = start(pair);; s = (s + 1) & (slots_.size() - 1)) {
      const Entry& entry = slots_[s];
      if (entry.result < 0) return nullptr;
      if (entry.pair == pair) return &entry;
    }
  }

 private:
  std::size_t start(Merge pair) const {
    const auto key = std::uint64_t(std::uint32_t(pair.left)) << 32 | std::uint32_t(pair.right);
    return (key * 0x9E3779B97F4A7C15u) >> shift_;
  }
  std::vector<Entry> slots_;  // a power of two
  int shift_ = 60;
};

struct TokenizerTables {
  std::vector<std::string> tokens;  // bytes by id
  std::vector<Merge> merges;        // by rank
  std::array<TokenId, 256> byte_ids{};
  PairTable pairs;
  TokenId eos = -1;
  std::uint64_t hash = 0;
};

}  // namespace lancet::data
