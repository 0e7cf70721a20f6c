// A bound on texts from others' files, before a parser recurses into them.
#pragma once
#include <string_view>

namespace lancet::train::hugging_face {

// Whether brackets nest deeper than `most`, counted without a look at quotes.
inline bool is_deep(std::string_view text, int most) {
  int depth = 0;
  for (const char c : text) {
    depth += c == '[' || c == '{';
    depth -= c == ']' || c == '}';
    if (depth > most) return true;
  }
  return false;
}

}  // namespace lancet::train::hugging_face
