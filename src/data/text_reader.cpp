#include "text_reader.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "lancet/base/check.h"
#include "lancet/base/files.h"
#include "lancet/data/tokenizer.h"
#include "utf8.h"

namespace lancet::data {

namespace fs = std::filesystem;

namespace {

// The first position at or after `from` that directly follows a `mark`; the part's end if there is none.
Result<std::uint64_t> after_mark(const TextPart& part, std::uint64_t from, std::string_view mark) {
  constexpr std::size_t kBlock = std::size_t{1} << 20;
  const std::uint64_t begin = from - std::min<std::uint64_t>(from - part.begin, mark.size());
  LANCET_ASSIGN(TextReader reader, TextReader::open({part.path, begin, part.end}, kBlock));
  std::string block;
  std::string tail;  // a mark may span two blocks
  for (;;) {
    LANCET_TRY(reader.next(block));
    if (block.empty()) return part.end;
    tail += block;
    if (const std::size_t found = tail.find(mark); found != std::string::npos)
      return reader.position() - tail.size() + found + mark.size();
    tail.erase(0, tail.size() - std::min(tail.size(), mark.size() - 1));
  }
}

}  // namespace

Result<TextPart> whole_text(const fs::path& path) {
  std::error_code error;
  const auto status = fs::status(path, error);
  if (is_open_stream(path)) return TextPart{path, 0, TextPart::unknown};
  if (!fs::exists(status)) return data_error(fmt::format("{}: expected a text, found no such file", path.string()));
  if (!fs::is_regular_file(status))
    return data_error(fmt::format("{}: expected a text, found no regular file", path.string()));
  const std::uint64_t size = fs::file_size(path, error);
  if (error) return data_error(fmt::format("{}: cannot tell its size: {}", path.string(), error.message()));
  if (size == 0) return data_error(fmt::format("{}: expected a text, found an empty file", path.string()));
  return TextPart{path, 0, size};
}

Result<std::uint64_t> next_start(const TextPart& part, std::uint64_t from, bool documents) {
  if (documents) {
    LANCET_ASSIGN(const std::uint64_t start, after_mark(part, from, kEndOfText));
    if (start < part.end) return start;
  }
  return after_mark(part, from, "\n");
}

Result<TextReader> TextReader::open(TextPart part, std::size_t chunk_bytes) {
  LANCET_CHECK(chunk_bytes > 0 && part.begin <= part.end, "chunks of {} bytes of [{}, {})", chunk_bytes, part.begin,
               part.end);
  Descriptor file(::open(part.path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.is_open()) return data_error(fmt::format("{}: cannot open: {}", part.path.string(), std::strerror(errno)));
  return TextReader(std::move(part), chunk_bytes, std::move(file));
}

Status TextReader::fill(std::size_t wanted) {
  const std::uint64_t left = part_.end - position_;
  std::size_t have = rest_.size();
  rest_.resize(static_cast<std::size_t>(std::min<std::uint64_t>(left, std::max(wanted, have))));
  while (have < rest_.size()) {
    const std::size_t free = rest_.size() - have;
    const ssize_t got = part_.is_stream()
                            ? ::read(file_.get(), rest_.data() + have, free)
                            : ::pread(file_.get(), rest_.data() + have, free, static_cast<off_t>(position_ + have));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return data_error(fmt::format("{}: cannot read: {}", part_.path.string(), std::strerror(errno)));
    if (got == 0) {
      rest_.resize(have);
      return end_at(position_ + have);
    }
    have += static_cast<std::size_t>(got);
  }
  return {};
}

// Where the text ends: known only now for a stream.
Status TextReader::end_at(std::uint64_t end) {
  if (!part_.is_stream())
    return data_error(fmt::format("{}: expected {} bytes, found {}: the file has become shorter", part_.path.string(),
                                  part_.end, end));
  if (end == 0) return data_error(fmt::format("{}: expected a text, found an empty stream", part_.path.string()));
  part_.end = end;
  return {};
}

Status TextReader::next(std::string& chunk) {
  std::size_t cut = 0;
  for (std::size_t wanted = chunk_bytes_; cut == 0; wanted *= 2) {
    LANCET_TRY(fill(wanted));
    const bool all = position_ + rest_.size() == part_.end;
    cut = all && rest_.size() <= wanted ? rest_.size() : last_safe_cut(std::string_view(rest_).substr(0, wanted));
    if (rest_.empty()) break;
  }
  chunk.assign(rest_, 0, cut);
  rest_.erase(0, cut);
  position_ += cut;
  return {};
}

}  // namespace lancet::data
