// Added tokens divide a text into parts that are encoded each alone, in four steps: the normalizer changes it; Splitter
// cuts it into pre-tokens; a cache returns the ids of a pre-token seen before; BPE merges the bytes or characters of a
// new one. Where characters are merged, a pre-token may be a whole text, and it is cut into words: before a character
// that no token has behind another one, such as "▁", and around characters without a token. BPE repeatedly
// merges the pair of lowest rank, the leftmost of equals, until no pair of neighbours has a rank. Pre-tokens up to 64
// bytes scan all pairs for each merge. Longer ones use a doubly linked list of tokens and a heap of candidate pairs by
// (rank, position); a candidate whose tokens were merged meanwhile is skipped. The cache is emptied when it exceeds 16
// MiB.
//
// A pre-token above 256 bytes, such as a run of letters without a space, is merged in blocks of that size (or of four
// of the longest tokens), so that time and memory grow with its length alone. BPE never merges across the border of two
// tokens that it returns side by side, so a list of tokens is what BPE returns for their text if and only if it returns
// each two neighbours for theirs. A block loses its last quarter, whose tokens the text after it could change, and the
// next block begins there; the two tokens at the border are checked. Where no border of a block passes, the block
// doubles.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <queue>
#include <span>

#include "lancet/base/utf8.h"
#include "lancet/data/tokenizer.h"
#include "text.h"
#include "tokenizer_tables.h"

namespace lancet::data {
namespace {

constexpr std::size_t kMostIds = std::size_t{2} << 20;          // before they are taken
constexpr std::size_t kScanBytes = 64, kLeastBlockBytes = 256;  // of a pre-token
constexpr std::size_t kCacheBytes = std::size_t{16} << 20;      // of text and ids

// Removes what single words may not touch: letters, marks, digits, connectors, joiners, and letters in circles.
const Split& word_split() {
  static const Split split =
      *Split::make(R"([\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{200c}\x{200d}\x{24b6}-\x{24e9}\x{1f130}-\x{1f149}\x{1f150}-)"
                   R"(\x{1f169}\x{1f170}-\x{1f189}])",
                   true, SplitBehavior::removed);
  return split;
}

// The tokens that merges of a word start from: of its bytes, or of its characters, each of which has one. Returns their
// number, at most the bytes of the word.
std::size_t symbols_of(const TokenizerTables& tables, std::string_view word, TokenId* symbols) {
  std::size_t count = 0;
  if (tables.pipeline.byte_level) {
    for (; count < word.size(); ++count) symbols[count] = tables.byte_ids[static_cast<unsigned char>(word[count])];
  } else {
    for (std::size_t at = 0; at < word.size(); ++count) symbols[count] = tables.character(next_character(word, at)).id;
  }
  return count;
}

// Quadratic, without an allocation.
void merge_by_scanning(const TokenizerTables& tables, std::string_view word, std::vector<TokenId>& ids) {
  TokenId token[kScanBytes];
  const PairTable::Entry* pair[kScanBytes];  // pair[i]: token[i] with token[i+1]
  std::size_t n = symbols_of(tables, word, token);
  for (std::size_t i = 0; i + 1 < n; ++i) pair[i] = tables.pairs.find({token[i], token[i + 1]});
  while (n > 1) {
    std::size_t best = n;
    std::int32_t best_rank = INT32_MAX;
    for (std::size_t i = 0; i + 1 < n; ++i) {
      if (pair[i] != nullptr && pair[i]->rank < best_rank) {
        best = i;
        best_rank = pair[i]->rank;
      }
    }
    if (best == n) break;
    token[best] = pair[best]->result;
    std::copy(token + best + 2, token + n, token + best + 1);
    if (best + 2 < n) std::copy(pair + best + 2, pair + n - 1, pair + best + 1);
    --n;
    if (best > 0) pair[best - 1] = tables.pairs.find({token[best - 1], token[best]});
    if (best + 1 < n) pair[best] = tables.pairs.find({token[best], token[best + 1]});
  }
  ids.insert(ids.end(), token, token + n);
}

// Merges in n log n.
class HeapMerger {
 public:
  HeapMerger(const TokenizerTables& tables, std::string_view word) : tables_(tables) {
    LANCET_CHECK(word.size() < INT32_MAX, "a pre-token of {} bytes", word.size());
    std::vector<TokenId> symbols(word.size());
    const auto n = static_cast<std::int32_t>(symbols_of(tables, word, symbols.data()));
    for (std::int32_t i = 0; i < n; ++i) nodes_.push_back({symbols[std::size_t(i)], i - 1, i + 1 < n ? i + 1 : -1});
    std::vector<Candidate> candidates;
    candidates.reserve(nodes_.size());
    for (std::int32_t i = 0; i + 1 < n; ++i)
      if (const auto found = candidate(i)) candidates.push_back(*found);
    heap_ = std::priority_queue<Candidate>(std::less<Candidate>(), std::move(candidates));
  }

  void run(std::vector<TokenId>& ids) {
    while (!heap_.empty()) {
      const Candidate top = heap_.top();
      heap_.pop();
      Node& left = nodes_[std::size_t(top.at)];
      if (left.token != top.pair.left || left.next < 0) continue;  // merged meanwhile
      Node& right = nodes_[std::size_t(left.next)];
      if (right.token != top.pair.right) continue;
      left.token = top.result;
      right.token = -1;
      left.next = right.next;
      if (left.next >= 0) nodes_[std::size_t(left.next)].previous = top.at;
      for (const std::int32_t at : {left.previous, top.at})
        if (const auto found = at < 0 ? std::nullopt : candidate(at)) heap_.push(*found);
    }
    for (std::int32_t i = 0; i >= 0; i = nodes_[std::size_t(i)].next) ids.push_back(nodes_[std::size_t(i)].token);
  }

 private:
  struct Node {
    TokenId token;
    std::int32_t previous, next;
  };
  struct Candidate {
    std::int32_t rank, at;
    Merge pair;
    TokenId result;
    bool operator<(const Candidate& other) const {  // std::priority_queue pops the greatest
      return rank != other.rank ? rank > other.rank : at > other.at;
    }
  };

  std::optional<Candidate> candidate(std::int32_t at) const {
    const Node& left = nodes_[std::size_t(at)];
    if (left.next < 0) return {};
    const Merge pair{left.token, nodes_[std::size_t(left.next)].token};
    const auto* found = tables_.pairs.find(pair);
    return found ? std::optional(Candidate{found->rank, at, pair, found->result}) : std::nullopt;
  }

  const TokenizerTables& tables_;
  std::vector<Node> nodes_;
  std::priority_queue<Candidate> heap_;
};

}  // namespace

struct Encoder::State {
  State(std::shared_ptr<const TokenizerTables> from, SpecialTokens how)
      : tables(std::move(from)), special(how), splitter(tables->pipeline.splits) {
    for (const std::string& token : tables->tokens) block_bytes = std::max(block_bytes, 4 * token.size());
  }

  std::shared_ptr<const TokenizerTables> tables;
  SpecialTokens special;
  std::size_t block_bytes = kLeastBlockBytes;  // at least those of four tokens
  Splitter splitter, word_characters{std::span(&word_split(), 1)};
  // Pre-token number i has the ids cached_ids[cached_ends[i-1], cached_ends[i]).
  BytesTable cached;
  std::vector<std::uint32_t> cached_ends;
  std::vector<TokenId> cached_ids;
  const std::function<void()>* take = nullptr;
  std::string normalized, prepared;

  void encode(std::string_view text, bool continues, std::vector<TokenId>& ids) {
    const Pipeline& pipeline = tables->pipeline;
    divide(tables->raw_added, text, {true, continues}, ids, [&](std::string_view raw, PieceStart start) {
      const std::string_view part = apply(pipeline.normalizer, raw, start, normalized);
      divide(tables->normalized_added, part, start, ids, [&](std::string_view words, PieceStart begin) {
        splitter.start(apply(pipeline.prepare, words, begin, prepared));
        for (auto word = splitter.next(); !word.empty(); word = splitter.next())
          pipeline.byte_level ? encode_word(word, ids) : encode_characters(word, ids);
      });
    });
  }

 private:
  // Calls `part` with each text between added tokens.
  template <class Part>
  void divide(const PrefixTree& added, std::string_view text, PieceStart start, std::vector<TokenId>& ids,
              const Part& part) {
    std::size_t done = 0;
    const auto text_before = [&](std::size_t end) {
      if (end > done)
        part(text.substr(done, end - done), PieceStart{start.of_text && done == 0, start.is_inside && done == 0});
    };
    for (std::size_t at = 0; special == SpecialTokens::ids && !added.empty() && at < text.size();) {
      const auto found = added.may_begin(text[at]) ? added.longest(text.substr(at)) : PrefixTree::Found{};
      if (found.number < 0) {
        ++at;
        continue;
      }
      const AddedToken& token = tables->added[std::size_t(found.number)];
      std::size_t begin = at, end = at + found.size;
      at = end;
      if (token.single_word &&
          (is_word(last_character(text.substr(0, begin))) || is_word(first_character(text.substr(end)))))
        continue;
      for (std::string_view c;
           token.lstrip && begin > done && is_white_space(c = last_character(text.substr(0, begin)));)
        begin -= c.size();
      for (std::string_view c; token.rstrip && is_white_space(c = first_character(text.substr(end)));) end += c.size();
      text_before(begin);
      ids.push_back(token.id);
      done = end;
    }
    text_before(text.size());
  }

  void append(std::span<const TokenId> more, std::vector<TokenId>& ids) const {
    ids.insert(ids.end(), more.begin(), more.end());
    if (ids.size() >= kMostIds) (*take)();
  }

  bool is_word(std::string_view character) {
    word_characters.start(character);
    return !character.empty() && word_characters.next().empty();
  }

  // A pre-token whose characters are merged.
  void encode_characters(std::string_view text, std::vector<TokenId>& ids) {
    if (tables->pipeline.ignore_merges)
      if (const TokenId whole = tables->find(text); whole >= 0) return append(std::span(&whole, 1), ids);
    std::size_t begin = 0;
    char32_t previous = 0;
    bool was_known = true;
    const auto word_before = [&](std::size_t end) {
      const std::string_view word = text.substr(begin, end - begin);
      if (!word.empty()) was_known ? encode_word(word, ids) : encode_unknown(word, ids);
      begin = end;
    };
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t here = at;
      const char32_t c = next_character(text, at);
      const auto& character = tables->character(c);
      const bool is_known = character.id >= 0;
      if (is_known != was_known || (is_known && character.begins_words && c != previous)) word_before(here);
      was_known = is_known;
      previous = c;
    }
    word_before(text.size());
  }

  // Characters without a token: their bytes, or `unknown`, which the original holds back until another or the end.
  void encode_unknown(std::string_view word, std::vector<TokenId>& ids) {
    const TokenId unknown = tables->pipeline.unknown;
    bool is_held = false;
    for (std::size_t at = 0; at < word.size();) {
      const std::size_t here = at;
      next_character(word, at);
      TokenId bytes[4];
      std::size_t count = 0;
      for (std::size_t i = here; i < at; ++i) bytes[count++] = tables->byte_ids[static_cast<unsigned char>(word[i])];
      if (std::find(bytes, bytes + count, -1) == bytes + count) {
        append(std::span(bytes, count), ids);
      } else if (unknown >= 0) {
        if (is_held && !tables->pipeline.fuse_unknown) append(std::span(&unknown, 1), ids);
        is_held = true;
      }
    }
    if (is_held) append(std::span(&unknown, 1), ids);
  }

  void encode_word(std::string_view word, std::vector<TokenId>& ids) {
    if (word.size() > block_bytes) return merge_in_blocks(word, ids);
    if (cached.arena_bytes() + cached_ids.size() * sizeof(TokenId) > kCacheBytes) clear_cache();
    const std::uint32_t number = cached.find_or_add(word);
    if (number == cached_ends.size()) {
      const TokenId whole = tables->pipeline.ignore_merges ? tables->find(word) : -1;
      if (whole >= 0)
        cached_ids.push_back(whole);
      else
        merge(word, cached_ids);
      cached_ends.push_back(static_cast<std::uint32_t>(cached_ids.size()));
    }
    const std::uint32_t begin = number == 0 ? 0 : cached_ends[number - 1];
    append(std::span(cached_ids).subspan(begin, cached_ends[number] - begin), ids);
  }

  void merge_in_blocks(std::string_view word, std::vector<TokenId>& ids) const {
    std::vector<TokenId> block, next;
    std::size_t size = block_bytes;
    merge(front(word, size), block);
    while (word.size() > size) {
      std::size_t kept = block.size(), bytes = front(word, size).size();
      next.clear();
      do {
        bytes -= tables->tokens[std::size_t(block[--kept])].size();
        if (bytes > size / 4 * 3) continue;
        next.clear();
        merge(front(word.substr(bytes), block_bytes), next);
      } while (kept > 0 && (next.empty() || !are_neighbours(block[kept - 1], next.front())));
      size = kept > 0 ? block_bytes : 2 * size;
      if (kept > 0) {
        append(std::span(block).first(kept), ids);
        word.remove_prefix(bytes);
        block.swap(next);
      } else {
        block.clear();
        merge(front(word, size), block);
      }
    }
    append(block, ids);
  }

  // The first bytes of a word, without a part of a character if characters are merged.
  std::string_view front(std::string_view word, std::size_t size) const {
    const std::string_view some = word.substr(0, size);
    return tables->pipeline.byte_level ? some : some.substr(0, complete_utf8(some));
  }

  // True if BPE returns the two tokens for their text.
  bool are_neighbours(TokenId left, TokenId right) const {
    std::vector<TokenId> both;
    merge(tables->tokens[std::size_t(left)] + tables->tokens[std::size_t(right)], both);
    return both == std::vector<TokenId>{left, right};
  }

  void merge(std::string_view word, std::vector<TokenId>& ids) const {
    if (word.size() <= kScanBytes) return merge_by_scanning(*tables, word, ids);
    HeapMerger(*tables, word).run(ids);
  }

  void clear_cache() {
    cached.clear();
    cached_ends.clear();
    cached_ids.clear();
  }
};

Encoder::Encoder(const Tokenizer& tokenizer, SpecialTokens special)
    : state_(std::make_unique<State>(tokenizer.tables_, special)) {}
Encoder::~Encoder() = default;
Encoder::Encoder(Encoder&&) noexcept = default;
Encoder& Encoder::operator=(Encoder&&) noexcept = default;

Status Encoder::encode(std::string_view text, std::vector<TokenId>& ids, std::uint64_t first_byte,
                       const std::function<void()>& take, bool continues) {
  if (const std::size_t bad = first_invalid_utf8(text); bad != text.size()) return not_utf8(text, bad, first_byte);
  state_->take = &take;
  state_->encode(text, continues, ids);
  return {};
}

}  // namespace lancet::data
