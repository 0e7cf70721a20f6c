// The tables of a tokenizer: tokens by id, merges by rank, and a hash table of the merges by pair.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lancet/base/check.h"
#include "lancet/base/hash.h"
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
  TokenId bos = -1, eos = -1;
  std::vector<TokenId> ends;
  std::vector<TokenId> special;                        // by first byte, longer ones first
  std::array<std::uint32_t, 257> special_from_byte{};  // those that begin with byte b are special[[b], [b + 1])
  std::uint64_t hash = 0;

  // The longest special token that the text begins with; -1: none.
  TokenId special_at(std::string_view text) const {
    const auto first = static_cast<unsigned char>(text.front());
    for (std::uint32_t i = special_from_byte[first]; i < special_from_byte[first + 1]; ++i)
      if (text.starts_with(tokens[std::size_t(special[i])])) return special[i];
    return -1;
  }
};

// BytesTable: numbers distinct byte strings 0, 1, 2, ... in the order of their first look-up. An open-addressing hash
// table over one arena, made for millions of look-ups of pre-tokens.
class BytesTable {
 public:
  // The string's number. A new string gets the number size() had before the call.
  std::uint32_t find_or_add(std::string_view bytes) {
    if ((ends_.size() + 1) * 2 > slots_.size()) grow();
    const std::uint64_t hash = hash64(bytes);
    const auto tag = static_cast<std::uint32_t>(hash >> 32);
    const std::size_t mask = slots_.size() - 1;
    for (std::size_t s = hash & mask;; s = (s + 1) & mask) {
      Slot& slot = slots_[s];
      if (slot.number == kFree) {
        slot = {tag, static_cast<std::uint32_t>(ends_.size())};
        arena_.append(bytes);
        ends_.push_back(arena_.size());
        return slot.number;
      }
      if (slot.tag == tag && at(slot.number) == bytes) return slot.number;
    }
  }

  std::string_view at(std::uint32_t number) const {
    const std::size_t begin = number == 0 ? 0 : ends_[number - 1];
    return std::string_view(arena_).substr(begin, ends_[number] - begin);
  }
  std::size_t size() const { return ends_.size(); }
  std::size_t arena_bytes() const { return arena_.size(); }
  void clear() {
    slots_.assign(slots_.size(), Slot{});
    ends_.clear();
    arena_.clear();
  }

 private:
  static constexpr std::uint32_t kFree = UINT32_MAX;
  struct Slot {
    std::uint32_t tag = 0, number = kFree;
  };

  void grow() {
    slots_.assign(slots_.empty() ? 1024 : slots_.size() * 2, Slot{});
    const std::size_t mask = slots_.size() - 1;
    for (std::uint32_t i = 0; i < ends_.size(); ++i) {
      const std::uint64_t hash = hash64(at(i));
      std::size_t s = hash & mask;
      while (slots_[s].number != kFree) s = (s + 1) & mask;
      slots_[s] = {static_cast<std::uint32_t>(hash >> 32), i};
    }
  }

  std::vector<Slot> slots_;        // a power of two, at most half full
  std::vector<std::size_t> ends_;  // string i is arena_[ends_[i-1], ends_[i])
  std::string arena_;
};

}  // namespace lancet::data
