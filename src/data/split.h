// Cuts a text into pre-tokens by patterns, each of which cuts what the one before it left.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lancet/base/result.h"

namespace lancet::data {

// What becomes of the matches; the text between them is always a piece. contiguous: neighbouring matches are one piece.
enum class SplitBehavior { isolated, removed, merged_with_previous, merged_with_next, contiguous };

// A pattern, compiled for PCRE2; threads share it.
class Split {
 public:
  // pattern: a regular expression in Oniguruma's syntax, which tokenizer.json has, or a text. inverted: what does not
  // match counts as the match. Data error: PCRE2 would read it otherwise than Oniguruma, or not at all.
  static Result<Split> make(std::string pattern, bool is_regex, SplitBehavior behavior, bool inverted = false);

  // GPT-2's:
  //
  //   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
  //
  // Every character belongs to a match, since letters, numbers, other characters and white space each match a branch.
  static const Split& gpt2();

  const std::string& pattern() const { return pattern_; }
  SplitBehavior behavior() const { return behavior_; }
  std::string description() const;  // equal of equal splits
  friend bool operator==(const Split& a, const Split& b) { return a.description() == b.description(); }

 private:
  friend class Splitter;
  std::string pattern_;
  bool is_regex_ = true, inverted_ = false;
  SplitBehavior behavior_ = SplitBehavior::isolated;
  std::shared_ptr<void> code_;
};

// Each thread needs its own, since it holds the matcher's scratch.
class Splitter {
 public:
  explicit Splitter(std::span<const Split> splits);  // which outlive it

  // Starts on a text, which must be valid UTF-8 and outlive the calls of next().
  void start(std::string_view text);
  std::string_view next() { return next(levels_.size()); }  // empty at the end

 private:
  struct Piece {
    std::string_view text;
    bool is_match = false;
  };
  struct Level {
    const Split* split = nullptr;
    std::shared_ptr<void> scratch = {};
    std::string_view text = {};  // the piece of the level before
    std::size_t at = 0;          // text[at:] is not cut yet
    Piece held = {};             // the match behind the piece that was returned
  };
  std::string_view next(std::size_t levels);  // of the first levels
  static Piece cut(Level& level);             // the next match, or the text before it
  static Piece find(Level& level);
  std::vector<Level> levels_;
  std::string_view text_;
};

}  // namespace lancet::data
