// GPT-2's byte-level BPE. Text is cut into pre-tokens by GPT-2's pattern, and each pre-token's bytes are
// merged by rank; the ids are those of the original tokenizer for every valid UTF-8 text. (Letters and numbers are
// those of PCRE2's Unicode version; only code points assigned after it could be cut otherwise.)
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lancet/base/result.h"

namespace lancet::data {

using TokenId = std::int32_t;  // the element type of the model's input tensor

inline constexpr std::string_view kEndOfText = "<|endoftext|>";

// How encode reads the characters "<|endoftext|>" in a text: as text, or as the special token.
enum class Special : std::uint8_t { as_text, as_token };

// The merge of two neighbouring tokens; its rank is its place in the list.
struct Merge {
  TokenId left = -1, right = -1;
  friend bool operator==(const Merge&, const Merge&) = default;
};

// Immutable: threads share one. A copy shares its tables.
class Tokenizer {
 public:
  // From `folder`/vocab.json and `folder`/merges.txt. Data errors: a file that is missing or malformed (with its
  // line), ids that are not 0..n-1, a byte without a token, a merge whose parts or result have no token, a token that
  // a lost merge made. Tokens in <> or [], and those of `folder`/added_tokens.json, where it is there, need no merge.
  static Result<Tokenizer> load(const std::filesystem::path& folder);

  // tokens: each id's bytes; every single byte is among them, and "<|endoftext|>", the special token, may be.
  static Result<Tokenizer> make(std::vector<std::string> tokens, std::vector<Merge> merges);

  // Writes vocab.json and merges.txt in GPT-2's format, each whole or not at all; makes the folder.
  Status save(const std::filesystem::path& folder) const;

  // For many texts use an Encoder, which remembers. Data error: text is not UTF-8 (with the byte's offset).
  Result<std::vector<TokenId>> encode(std::string_view text, Special special = Special::as_text) const;

  // The bytes of the ids, one after the other. They need not be whole UTF-8 characters: a character can span
  // tokens (complete_utf8 helps a stream). Data error: an id outside the vocabulary.
  Result<std::string> decode(std::span<const TokenId> ids) const;
  std::string_view bytes(TokenId id) const;  // of one token; id is in [0, vocab_size)

  int vocab_size() const;
  TokenId eos() const;                    // the id of <|endoftext|>, -1 where the vocabulary has none
  std::uint64_t hash() const;             // of tokens and merges: the same for the same ids on every text
  std::span<const Merge> merges() const;  // by rank

  struct Tables;

 private:
  friend class Encoder;
  std::shared_ptr<const Tables> tables_;
};

// Encodes, and remembers the ids of pre-tokens it has seen (bounded memory). One thread each.
class Encoder {
 public:
  explicit Encoder(const Tokenizer& tokenizer, Special special = Special::as_text);
  ~Encoder();
  Encoder(Encoder&&) noexcept;
  Encoder& operator=(Encoder&&) noexcept;

  // Appends the ids of `text` to `ids`; on an error `ids` is as it was. first_byte: the place of text in its source,
  // for the error's message.
  Status encode(std::string_view text, std::vector<TokenId>& ids, std::uint64_t first_byte = 0);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The length of the longest prefix of `bytes` that does not end inside a UTF-8 character: what a stream can print.
std::size_t complete_utf8(std::string_view bytes);
// Each byte that is not part of a valid character becomes U+FFFD.
std::string replace_invalid_utf8(std::string_view bytes);

}  // namespace lancet::data
