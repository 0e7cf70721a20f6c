// GPT-2's byte-level BPE. Text is cut into pre-tokens by GPT-2's pattern, and each pre-token's bytes are
// merged by rank; the ids are those of the original tokenizer for every valid UTF-8 text. (Letters and numbers are
// those of PCRE2's Unicode version; only code points assigned after it could be cut differently.)
#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/data/token.h"

namespace lancet::data {

inline constexpr std::string_view kEndOfText = "<|endoftext|>";

// How the special tokens that a text names are read: each as its id, or as the letters of its name. A token is special
// if it is more than one byte, and no merge makes it or it is an added token or ends a text.
enum class SpecialTokens { ids, text };

// Special tokens: those that begin a text, and at which it ends, the one of the training data first. Ids without a
// token are allowed.
struct TextBounds {
  TokenId begin = -1;  // -1: the first of `ends`
  std::vector<TokenId> ends = {};
  std::vector<TokenId> added = {};  // special even if a merge makes them

  // Adds those of a source that comes after this one.
  void add(TokenId begin_too, std::span<const TokenId> ends_too);
};

// The files beside vocab.json and merges.txt that describe the tokenizer, and that copies of it take.
inline constexpr std::array<const char*, 6> kDescriptions{"added_tokens.json",     "tokenizer.json",
                                                          "tokenizer_config.json", "special_tokens_map.json",
                                                          "chat_template.jinja",   "generation_config.json"};

// The ids below vocab_size that a model's files name: generation_config.json, then config.json, of which the first with
// such an id counts. None where a folder has neither. Data error: a file that is malformed.
Result<TextBounds> model_bounds(const std::filesystem::path& folder, int vocab_size);

struct TokenizerTables;

// Immutable: threads share one. A copy shares its tables.
class Tokenizer {
 public:
  // Reads `folder`/vocab.json and `folder`/merges.txt, and where they exist
  // - added tokens, which need no merge and may follow those of vocab.json: added_tokens.json, and added_tokens_decoder
  //   of tokenizer_config.json. Tokens in <> or [] need no merge either;
  // - what begins and ends texts: tokenizer_config.json, then generation_config.json, then config.json. The tokenizer
  // is
  //   sound without the latter two: if one is malformed, a warning says that they are left out.
  // Data errors: a file that is missing or malformed (with its line), ids that are not 0..n-1, a byte without a token,
  // a merge whose parts or result have no token, a token whose merge is missing.
  static Result<Tokenizer> load(const std::filesystem::path& folder);

  // tokens: the bytes of each id. Every single byte must be a token. "<|endoftext|>", if it is a token, ends texts
  // unless a token of bounds.ends does. Data errors: see load().
  static Result<Tokenizer> make(std::vector<std::string> tokens, std::vector<Merge> merges, TextBounds bounds = {});

  // Writes vocab.json and merges.txt in GPT-2's format; creates the folder. Both files are on the disk before either
  // replaces an old one. A process that is killed in between leaves no merges.txt, and so never files of two
  // tokenizers.
  Status save(const std::filesystem::path& folder) const;

  // Of special tokens that begin at one byte the longest is read. An Encoder is faster for many texts, since it has a
  // cache. Data error: text is not UTF-8 (with the byte's offset).
  Result<std::vector<TokenId>> encode(std::string_view text, SpecialTokens special = SpecialTokens::ids) const;

  // The concatenated bytes of the ids. They may end inside a UTF-8 character, since a character can span tokens (see
  // complete_utf8). Data error: an id outside the vocabulary.
  Result<std::string> decode(std::span<const TokenId> ids) const;
  std::string_view bytes(TokenId id) const;  // of one token; none from vocab_size() on: embeddings may be larger

  int vocab_size() const;
  TokenId bos() const;                    // begins a text; -1: none
  TokenId eos() const;                    // ends a text of the training data, and is one of ends(); -1: none
  std::span<const TokenId> ends() const;  // at which generation stops
  std::span<const TokenId> special() const;
  std::uint64_t hash() const;             // of tokens and merges; tokenizers with equal hashes encode alike
  std::span<const Merge> merges() const;  // by rank

 private:
  friend class Encoder;
  std::shared_ptr<const TokenizerTables> tables_;
};

// The tokenizer of a file, folder or model.
struct TokenizerId {
  std::uint64_t hash = 0;  // Tokenizer::hash(); 0: unknown
  std::string of;          // path of that file, folder or model, for messages
};
// Data error: both hashes are known and differ.
Status check_same(const TokenizerId& expected, const TokenizerId& found);

// Encodes texts and caches the ids of pre-tokens (bounded memory). Used by one thread at a time.
class Encoder {
 public:
  explicit Encoder(const Tokenizer& tokenizer, SpecialTokens special = SpecialTokens::ids);
  ~Encoder();
  Encoder(Encoder&&) noexcept;
  Encoder& operator=(Encoder&&) noexcept;

  // Appends the ids of `text` to `ids`; on an error `ids` is unchanged. first_byte: the offset of `text` in its source,
  // for the error's message. take: called whenever `ids` has grown to millions, which it may take out.
  Status encode(
      std::string_view text, std::vector<TokenId>& ids, std::uint64_t first_byte = 0,
      const std::function<void()>& take = [] {});

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lancet::data
