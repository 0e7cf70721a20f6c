// Text: finds positions at which it may be cut, and reads it from files.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lancet/base/files.h"
#include "lancet/base/result.h"
#include "lancet/base/utf8.h"

namespace lancet::data {

// The data error for the byte at `invalid` (first_invalid_utf8()). first_byte: the offset of `text` in its source.
Error not_utf8(std::string_view text, std::size_t invalid, std::uint64_t first_byte = 0);

inline constexpr std::string_view kWhiteSpace = " \t\n\v\f\r";  // of ASCII
bool is_white_space(std::string_view character);                // Unicode's White_Space
std::string_view last_character(std::string_view text);         // of valid UTF-8; empty: of an empty text
std::string_view first_character(std::string_view text);

// The last position p > 0 that follows a character other than white space (and "▁", which tokenizers write for a space)
// and precedes one of the ASCII characters `before`; 0 if none does. A tokenizer says (TokenizerTables::cut_before)
// before which of them the ids of the two parts, concatenated, are those of the whole.
std::size_t last_safe_cut(std::string_view text, std::string_view before);

// GPT-2's byte letters: vocab.json and merges.txt write each byte of a token as one visible character. Visible Latin-1
// bytes are written as themselves; the other 68 as U+0100, U+0101, ... in the order of the bytes.

// The 256 bytes in the order of GPT-2's first 256 ids: those written as themselves, then the rest.
const std::array<std::uint8_t, 256>& byte_order();

std::string to_letters(std::string_view bytes);
std::optional<std::string> from_letters(std::string_view letters);  // nullopt: a character that is not a byte letter

// The bytes [begin, end) of a file, or all bytes of a stream.
struct TextPart {
  static constexpr std::uint64_t unknown = ~std::uint64_t{0};  // the end of a stream
  std::filesystem::path path;
  std::uint64_t begin = 0, end = 0;
  bool is_stream() const { return end == unknown; }
};

// A whole text file, or a stream that is open (is_open_stream). Data error: missing, neither of the two, empty.
Result<TextPart> whole_text(const std::filesystem::path& path);

// The first position at or after `from` in the part at which a line begins; the part's end if none does.
Result<std::uint64_t> next_line(const TextPart& part, std::uint64_t from);

// Reads part of a text file, in bounded memory, in chunks that end at safe cuts (last_safe_cut).
class TextReader {
 public:
  // cut_before: of last_safe_cut(). uncut: texts in which no chunk ends.
  static Result<TextReader> open(TextPart part, std::size_t chunk_bytes, std::string_view cut_before,
                                 std::vector<std::string> uncut = {});

  // The next chunk; empty at the end. A chunk is longer than chunk_bytes only if it contains no safe cut.
  Status next(std::string& chunk);
  std::uint64_t position() const { return position_; }  // of the next chunk's first byte in the file

 private:
  TextReader(TextPart part, std::size_t chunk_bytes, std::string_view cut_before, std::vector<std::string> uncut,
             Descriptor file)
      : part_(std::move(part)),
        chunk_bytes_(chunk_bytes),
        cut_before_(cut_before),
        uncut_(std::move(uncut)),
        file_(std::move(file)),
        position_(part_.begin) {}
  Status fill(std::size_t wanted);  // reads until rest_ has `wanted` bytes, or all that are left
  Status end_at(std::uint64_t end);
  std::size_t last_cut(std::string_view text) const;
  TextPart part_;
  std::size_t chunk_bytes_;
  std::string cut_before_;
  std::vector<std::string> uncut_;
  Descriptor file_;
  std::uint64_t position_;
  std::string rest_;  // read but not returned yet; begins at position_
};

}  // namespace lancet::data
