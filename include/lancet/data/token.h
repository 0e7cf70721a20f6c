// Tokens and their merges, as a tokenizer numbers them, and those that mean something of their own.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace lancet::data {

using TokenId = std::int32_t;  // the element type of the model's input tensor

// The merge of two neighbouring tokens; its rank is its index in the list of merges.
struct Merge {
  TokenId left = -1, right = -1;
  friend bool operator==(const Merge&, const Merge&) = default;
};

// A token that is found in a text before the rest is encoded.
struct AddedToken {
  TokenId id = -1;
  std::string content;
  bool normalized = false;              // found in the normalized text, as its content normalized
  bool lstrip = false, rstrip = false;  // takes the white space before, after it
  bool single_word = false;             // not beside a letter, digit or the like
};

// Special tokens: those that begin a text, and at which it ends, the one of the training data first. Ids without a
// token are allowed.
struct TextBounds {
  TokenId begin = -1;  // -1: the first of `ends`
  std::vector<TokenId> ends = {};

  // Adds those of a source that comes after this one.
  void add(TokenId begin_too, std::span<const TokenId> ends_too);
};

}  // namespace lancet::data
