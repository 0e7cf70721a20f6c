// Reads part of a text file in chunks that end where the text may be cut (utf8.h), in bounded memory.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>

#include "lancet/base/result.h"

namespace lancet::data {

// The bytes [begin, end) of a file.
struct TextPart {
  std::filesystem::path path;
  std::uint64_t begin = 0, end = 0;
};

// The whole of a text file; data error: missing, not a regular file, empty.
Result<TextPart> whole_text(const std::filesystem::path& path);

// The first place at or after `from` in the part where a document begins (after "<|endoftext|>", if `documents`) or,
// where none does, a line; the part's end where there is neither.
Result<std::uint64_t> next_start(const TextPart& part, std::uint64_t from, bool documents);

class TextReader {
 public:
  static Result<TextReader> open(TextPart part, std::size_t chunk_bytes);
  ~TextReader();
  TextReader(TextReader&& other) noexcept;
  TextReader& operator=(TextReader&&) = delete;

  // The next chunk, empty at the end. A chunk is longer than chunk_bytes only where no cut is found in it.
  Status next(std::string& chunk);
  std::uint64_t position() const { return position_; }  // of the next chunk's first byte in the file

 private:
  TextReader(TextPart part, std::size_t chunk_bytes, int fd);
  Status fill(std::size_t wanted);  // rest_ has `wanted` bytes, or all that are left
  TextPart part_;
  std::size_t chunk_bytes_;
  int fd_;
  std::uint64_t position_;
  std::string rest_;  // read, not yet handed out; begins at position_
};

}  // namespace lancet::data
