// Special tokens divide a text into parts that are encoded each alone, in three steps: Pretokens cuts it into
// pre-tokens; a cache returns the ids of a pre-token seen before; BPE merges the bytes of a new one. BPE repeatedly
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

#include "lancet/data/tokenizer.h"
#include "text.h"
#include "tokenizer_tables.h"

namespace lancet::data {
namespace {

constexpr std::size_t kMostIds = std::size_t{2} << 20;          // before they are taken
constexpr std::size_t kScanBytes = 64, kLeastBlockBytes = 256;  // of a pre-token
constexpr std::size_t kCacheBytes = std::size_t{16} << 20;      // of text and ids

// Quadratic, without an allocation.
void merge_by_scanning(const TokenizerTables& tables, std::string_view word, std::vector<TokenId>& ids) {
  TokenId token[kScanBytes];
  const PairTable::Entry* pair[kScanBytes];  // pair[i]: token[i] with token[i+1]
  std::size_t n = word.size();
  for (std::size_t i = 0; i < n; ++i) token[i] = tables.byte_ids[static_cast<unsigned char>(word[i])];
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
  HeapMerger(const TokenizerTables& tables, std::string_view word) : tables_(tables), nodes_(word.size()) {
    LANCET_CHECK(word.size() < INT32_MAX, "a pre-token of {} bytes", word.size());
    const auto n = static_cast<std::int32_t>(word.size());
    for (std::int32_t i = 0; i < n; ++i)
      nodes_[std::size_t(i)] = {tables.byte_ids[static_cast<unsigned char>(word[std::size_t(i)])], i - 1,
                                i + 1 < n ? i + 1 : -1};
    std::vector<Candidate> candidates;
    candidates.reserve(word.size());
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
  std::shared_ptr<const TokenizerTables> tables;
  SpecialTokens special;
  std::size_t block_bytes = kLeastBlockBytes;  // at least those of four tokens
  Pretokens pretokens;
  // Pre-token number i has the ids cached_ids[cached_ends[i-1], cached_ends[i]).
  BytesTable cached;
  std::vector<std::uint32_t> cached_ends;
  std::vector<TokenId> cached_ids;
  const std::function<void()>* take = nullptr;

  // Without special tokens.
  void encode_words(std::string_view text, std::vector<TokenId>& ids) {
    pretokens.start(text);
    for (auto word = pretokens.next(); !word.empty(); word = pretokens.next()) encode_word(word, ids);
  }

 private:
  void append(std::span<const TokenId> more, std::vector<TokenId>& ids) const {
    ids.insert(ids.end(), more.begin(), more.end());
    if (ids.size() >= kMostIds) (*take)();
  }

  void encode_word(std::string_view word, std::vector<TokenId>& ids) {
    if (word.size() > block_bytes) return merge_in_blocks(word, ids);
    if (cached.arena_bytes() + cached_ids.size() * sizeof(TokenId) > kCacheBytes) clear_cache();
    const std::uint32_t number = cached.find_or_add(word);
    if (number == cached_ends.size()) {
      merge(word, cached_ids);
      cached_ends.push_back(static_cast<std::uint32_t>(cached_ids.size()));
    }
    const std::uint32_t begin = number == 0 ? 0 : cached_ends[number - 1];
    append(std::span(cached_ids).subspan(begin, cached_ends[number] - begin), ids);
  }

  void merge_in_blocks(std::string_view word, std::vector<TokenId>& ids) const {
    std::vector<TokenId> block, next;
    std::size_t size = block_bytes;
    merge(word.substr(0, size), block);
    while (word.size() > size) {
      std::size_t kept = block.size(), bytes = size;
      next.clear();
      do {
        bytes -= tables->tokens[std::size_t(block[--kept])].size();
        if (bytes > size / 4 * 3) continue;
        next.clear();
        merge(word.substr(bytes, block_bytes), next);
      } while (kept > 0 && (next.empty() || !are_neighbours(block[kept - 1], next.front())));
      size = kept > 0 ? block_bytes : 2 * size;
      if (kept > 0) {
        append(std::span(block).first(kept), ids);
        word.remove_prefix(bytes);
        block.swap(next);
      } else {
        block.clear();
        merge(word.substr(0, size), block);
      }
    }
    append(block, ids);
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

Encoder::Encoder(const Tokenizer& tokenizer, SpecialTokens special) : state_(std::make_unique<State>()) {
  state_->tables = tokenizer.tables_;
  state_->special = special;
  for (const std::string& token : state_->tables->tokens)
    state_->block_bytes = std::max(state_->block_bytes, 4 * token.size());
}
Encoder::~Encoder() = default;
Encoder::Encoder(Encoder&&) noexcept = default;
Encoder& Encoder::operator=(Encoder&&) noexcept = default;

Status Encoder::encode(std::string_view text, std::vector<TokenId>& ids, std::uint64_t first_byte,
                       const std::function<void()>& take) {
  if (const std::size_t bad = first_invalid_utf8(text); bad != text.size()) return not_utf8(text, bad, first_byte);
  state_->take = &take;
  const TokenizerTables& tables = *state_->tables;
  std::size_t done = 0;
  for (std::size_t at = 0; state_->special == SpecialTokens::ids && at < text.size();) {
    const TokenId id = tables.special_at(text.substr(at));
    if (id < 0) {
      ++at;
      continue;
    }
    state_->encode_words(text.substr(done, at - done), ids);
    ids.push_back(id);
    done = at += tables.tokens[std::size_t(id)].size();
  }
  state_->encode_words(text.substr(done), ids);
  return {};
}

}  // namespace lancet::data
