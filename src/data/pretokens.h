// Pretokens: cuts a text into pre-tokens by GPT-2's pattern:
//
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//
// Every character belongs to a pre-token, since letters, numbers, other characters and white space each match a branch.
// White space either fills a pre-token or begins it, so no pre-token spans a position with white space after another
// character; and the only lookahead starts from white space.
#pragma once
#include <cstddef>
#include <memory>
#include <string_view>

namespace lancet::data {

// Each thread needs its own, since it holds the matcher's scratch; all share the compiled pattern.
class Pretokens {
 public:
  Pretokens();

  // Starts on a text, which must be valid UTF-8 and outlive the calls of next().
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
