// Byte-pair encoding: GPT-2's vocab.json and merges.txt, and Hugging Face's tokenizer.json. Added tokens divide a text;
// what is between them is normalized and cut into pre-tokens, and the bytes or characters of each are merged by rank.
// The ids are those of the original tokenizer for every valid UTF-8 text. (Letters and numbers are those of PCRE2's
// Unicode version; only code points assigned after it could be cut differently.)
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

// How the added tokens that a text names are read: each as its id, or as the letters of its name.
enum class SpecialTokens { ids, text };

// The files beside vocab.json and merges.txt, or in their place, that describe the tokenizer, and that copies of it
// take.
inline constexpr std::array<const char*, 6> kDescriptions{"added_tokens.json",     "tokenizer.json",
                                                          "tokenizer_config.json", "special_tokens_map.json",
                                                          "chat_template.jinja",   "generation_config.json"};

// The ids below vocab_size that a model's file of JSON names as bos_token_id and eos_token_id. None where there is no
// such file. Data error: it is malformed.
Result<TextBounds> bounds_in(const std::filesystem::path& file, int vocab_size);
// Those of generation_config.json, then of config.json, of which the first with such an id counts.
Result<TextBounds> model_bounds(const std::filesystem::path& folder, int vocab_size);

struct TokenizerParts;
struct TokenizerTables;

// Immutable: threads share one. A copy shares its tables.
class Tokenizer {
 public:
  // Reads `folder`/tokenizer.json or, without it, vocab.json and merges.txt, and where they exist
  // - added tokens, which need no merge and may follow those of the vocabulary: added_tokens.json, and
  //   added_tokens_decoder of tokenizer_config.json. Tokens of vocab.json in <> or [] need no merge either;
  // - what begins and ends texts: tokenizer_config.json, then generation_config.json, then config.json. The tokenizer
  //   is sound without the latter two: if one is malformed, a warning says that they are left out.
  // Data errors: a file that is missing or malformed (with its line), a field of tokenizer.json that is not understood,
  // ids that are not 0..n-1, a byte without a token, a merge whose parts or result have no token, a token of vocab.json
  // whose merge is missing.
  static Result<Tokenizer> load(const std::filesystem::path& folder);

  // With GPT-2's pipeline. tokens: the bytes of each id. Every single byte must be a token. "<|endoftext|>", if it is a
  // token, ends texts. Data errors: see load().
  static Result<Tokenizer> make(std::vector<std::string> tokens, std::vector<Merge> merges);

  // Writes vocab.json and merges.txt in GPT-2's format, which holds a tokenizer of GPT-2's pipeline; creates the
  // folder. Both files are on the disk before either replaces an old one. A process that is killed in between leaves no
  // merges.txt, and so never files of two tokenizers.
  Status save(const std::filesystem::path& folder) const;

  // bos(), if adds_bos() and the text does not begin with it, and the ids of the text. Of added tokens that begin at
  // one byte the longest is read. An Encoder is faster for many texts, since it has a cache. Data error: text is not
  // UTF-8 (with the byte's offset).
  Result<std::vector<TokenId>> encode(std::string_view text, SpecialTokens special = SpecialTokens::ids) const;

  // The concatenated bytes of the ids. They may end inside a UTF-8 character, since a character can span tokens (see
  // complete_utf8). Data error: an id outside the vocabulary.
  Result<std::string> decode(std::span<const TokenId> ids) const;
  // Of one token in a text, or where a text begins (some tokenizers then drop a space). None from vocab_size() on:
  // embeddings may be larger.
  std::string_view bytes(TokenId id, bool at_start = false) const;

  int vocab_size() const;
  TokenId bos() const;                    // begins a text; -1: none
  TokenId eos() const;                    // ends a text of the training data, and is one of ends(); -1: none
  std::span<const TokenId> ends() const;  // at which generation stops
  bool adds_bos() const;                  // texts begin with bos()
  bool adds_eos() const;                  // texts end with eos(); encode() leaves it out, since a prompt continues
  std::span<const AddedToken> added() const;
  std::string_view cut_before() const;    // the ASCII characters before which the ids of a text may be cut: text.h
  std::uint64_t hash() const;             // of tokens and merges; tokenizers with equal hashes encode alike
  std::span<const Merge> merges() const;  // by rank

 private:
  friend class Encoder;
  static Result<Tokenizer> make(TokenizerParts parts);
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
  // for the error's message. take: called whenever `ids` has grown to millions, which it may take out. continues: the
  // text continues another that ended at a safe cut (Tokenizer::cut_before).
  Status encode(
      std::string_view text, std::vector<TokenId>& ids, std::uint64_t first_byte = 0,
      const std::function<void()>& take = [] {}, bool continues = false);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lancet::data
