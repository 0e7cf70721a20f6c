// The tables of a tokenizer: how it reads a text, tokens by id, merges by rank, and a hash table of the merges by pair.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lancet/base/check.h"
#include "lancet/base/hash.h"
#include "lancet/base/result.h"
#include "lancet/data/token.h"
#include "normalize.h"
#include "split.h"

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

// How a tokenizer reads a text and writes one: the parts of tokenizer.json, of which GPT-2's vocab.json and merges.txt
// are the default. In the order of a text's way:
struct Pipeline {
  std::vector<TextStep> normalizer = {};  // on a text between added tokens that are not normalized
  std::vector<TextStep> prepare = {};     // of the pre-tokenizer: on a text between all added tokens
  std::vector<Split> splits = {Split::gpt2()};
  bool byte_level = true;              // a pre-token's bytes are merged, else its characters
  bool ignore_merges = false;          // a pre-token that is a token is not merged
  bool byte_fallback = false;          // a character without a token is read as its bytes, "<0x0A>"
  bool fuse_unknown = false;           // neighbouring characters without a token are one `unknown`
  TokenId unknown = -1;                // -1: characters without a token are left out
  std::vector<TextStep> decoder = {};  // replaces in the text of each token
  bool decode_bytes = false;           // "<0x0A>" is that byte
  int strip_spaces = 0;                // at the start of a decoded text
  bool adds_bos = false, adds_eos = false;
};

// What a tokenizer is made of.
struct TokenizerParts {
  std::vector<std::string> tokens;  // bytes by id, as a text has them after the pipeline's changes
  std::size_t of_model = 0;         // the first of them, which alone merges can make; those after them are added
  std::vector<Merge> merges;
  TextBounds bounds = {};
  std::vector<AddedToken> added = {};
  bool infers_added = true;  // tokens that no merge makes, or that end texts, are added tokens, too
  Pipeline pipeline = {};
};

// Reads tokenizer.json. Data errors: Tokenizer::load().
Result<TokenizerParts> read_tokenizer_json(const std::filesystem::path& path);

// Finds the longest of a set of texts that another text begins with.
class PrefixTree {
 public:
  void insert(std::string_view text, std::uint32_t number) {
    std::uint32_t at = 0;
    for (const char c : text) {
      std::uint32_t next = child(at, c);
      if (next == 0) {
        next = static_cast<std::uint32_t>(nodes_.size());
        nodes_[at].children.emplace_back(c, next);
        nodes_.emplace_back();
      }
      at = next;
    }
    if (nodes_[at].number < 0) nodes_[at].number = number;
    if (!text.empty()) begins_[static_cast<unsigned char>(text.front())] = true;
  }
  bool empty() const { return nodes_.size() == 1; }
  bool may_begin(char c) const { return begins_[static_cast<unsigned char>(c)]; }
  struct Found {
    std::int64_t number = -1;  // -1: none
    std::size_t size = 0;
  };
  Found longest(std::string_view text) const {
    Found found;
    std::uint32_t at = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
      at = child(at, text[i]);
      if (at == 0) break;
      if (nodes_[at].number >= 0) found = {nodes_[at].number, i + 1};
    }
    return found;
  }

 private:
  struct Node {
    std::int64_t number = -1;
    std::vector<std::pair<char, std::uint32_t>> children = {};
  };
  std::uint32_t child(std::uint32_t node, char c) const {  // 0: none
    for (const auto& [first, next] : nodes_[node].children)
      if (first == c) return next;
    return 0;
  }
  std::vector<Node> nodes_{1};
  std::array<bool, 256> begins_{};
};

struct TokenizerTables {
  std::vector<std::string> tokens;   // bytes by id, as a text has them after the pipeline's changes
  std::vector<std::string> decoded;  // their bytes in a decoded text; empty: the same
  std::vector<Merge> merges;         // by rank
  Pipeline pipeline;
  PairTable pairs;
  // Of one byte: the token of the byte itself, or "<0x0A>" where characters are merged. -1: none.
  std::array<TokenId, 256> byte_ids{};
  // Where characters are merged: the token of each, and which of them no token has behind another character. A
  // position before such a character is a border of words.
  struct Character {
    TokenId id = -1;
    bool begins_words = true;
  };
  std::unordered_map<char32_t, Character> other_characters;
  std::vector<Character> characters = std::vector<Character>(0x3000);  // those below 0x3000
  std::vector<TokenId> by_bytes;                                       // the model's tokens in the order of their bytes
  std::vector<AddedToken> added;
  PrefixTree raw_added, normalized_added;  // numbers are indices of `added`
  TokenId bos = -1, eos = -1;
  std::vector<TokenId> ends;
  std::string cut_before;  // of last_safe_cut(); empty: no text may be cut
  std::uint64_t hash = 0;

  const Character& character(char32_t c) const {
    static const Character none;
    if (c < characters.size()) return characters[c];
    const auto it = other_characters.find(c);
    return it == other_characters.end() ? none : it->second;
  }
  TokenId find(std::string_view bytes) const;  // a token of the model; -1: none
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
