// What a tokenizer changes in a text before it cuts it into pre-tokens.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace lancet::data {

struct TextStep {
  enum class Kind { nfc, prepend, replace };
  Kind kind = Kind::nfc;
  std::string from = {}, to = {};  // replace: every `from`; prepend: `to`
  bool unless_there = false;       // prepend: not where the text begins with `to`
  bool first_only = false;         // prepend: only where the whole text begins, not after an added token

  friend bool operator==(const TextStep&, const TextStep&) = default;
};

// Where a piece of a text begins.
struct PieceStart {
  bool of_text = true;     // with the text
  bool is_inside = false;  // nowhere: it continues the piece of another call
};

std::string replace_all(std::string_view text, std::string_view from, std::string_view to);

// The text after the steps: `text` itself where they change nothing, else in `buffer`.
std::string_view apply(std::span<const TextStep> steps, std::string_view text, PieceStart start, std::string& buffer);

}  // namespace lancet::data
