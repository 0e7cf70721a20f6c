// Turns the bytes of tokens into text that a terminal can show at any time.
#pragma once
#include <string>
#include <string_view>

#include "lancet/data/tokenizer.h"

namespace lancet::cli {

// A character that spans tokens is held back until it is whole; bytes that are no character become U+FFFD.
class TextStream {
 public:
  std::string push(std::string_view bytes) {
    held_ += bytes;
    const std::size_t complete = data::complete_utf8(held_);
    const std::string text = data::replace_invalid_utf8(std::string_view(held_).substr(0, complete));
    held_.erase(0, complete);
    return text;
  }
  std::string finish() { return data::replace_invalid_utf8(std::exchange(held_, {})); }

 private:
  std::string held_;
};

}  // namespace lancet::cli
