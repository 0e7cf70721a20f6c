// GPT-2's pattern cuts a text into pre-tokens:
//
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//
// Every character belongs to one: letters, numbers, the rest, and white space are each taken by a branch. White space
// stands only alone in a pre-token or first in it, so none spans a place with white space after something else; and
// the only lookahead is from white space.
#pragma once
#include <cstddef>
#include <memory>
#include <string_view>

namespace lancet::data {

// One thread each (it holds the matcher's scratch); the compiled pattern is shared by all.
class Pretokens {
 public:
  Pretokens();

  // Begins on a text that is valid UTF-8 and outlives the walk.
  void start(std::string_view text);
  // The next pre-token; empty at the end.
  std::string_view next();

 private:
  struct FreeScratch {
    void operator()(void* scratch) const;
  };
  std::unique_ptr<void, FreeScratch> scratch_;
  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace lancet::data
