// TextReader: reads part of a text file, in bounded memory, in chunks that end at safe cuts (last_safe_cut in utf8.h).
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>

#include "lancet/base/files.h"
#include "lancet/base/result.h"

namespace lancet::data {

// The bytes [begin, end) of a file, or all bytes of a stream.
struct TextPart {
  static constexpr std::uint64_t unknown = ~std::uint64_t{0};  // the end of a stream
  std::filesystem::path path;
  std::uint64_t begin = 0, end = 0;
  bool is_stream() const { return end == unknown; }
};

// A whole text file, or a stream that is open (is_open_stream). Data error: missing, neither of the two, empty.
Result<TextPart> whole_text(const std::filesystem::path& path);

// The first position at or after `from` in the part at which a document begins (after "<|endoftext|>", if `documents`),
// else a line; the part's end if neither begins there.
Result<std::uint64_t> next_start(const TextPart& part, std::uint64_t from, bool documents);

class TextReader {
 public:
  static Result<TextReader> open(TextPart part, std::size_t chunk_bytes);

  // The next chunk; empty at the end. A chunk is longer than chunk_bytes only if it contains no safe cut.
  Status next(std::string& chunk);
  std::uint64_t position() const { return position_; }  // of the next chunk's first byte in the file

 private:
  TextReader(TextPart part, std::size_t chunk_bytes, Descriptor file)
      : part_(std::move(part)), chunk_bytes_(chunk_bytes), file_(std::move(file)), position_(part_.begin) {}
  Status fill(std::size_t wanted);  // reads until rest_ has `wanted` bytes, or all that are left
  Status end_at(std::uint64_t end);
  TextPart part_;
  std::size_t chunk_bytes_;
  Descriptor file_;
  std::uint64_t position_;
  std::string rest_;  // read but not returned yet; begins at position_
};

}  // namespace lancet::data
