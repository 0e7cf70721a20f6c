#include "text.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "lancet/base/check.h"

namespace lancet::data {

Error not_utf8(std::string_view text, std::size_t invalid, std::uint64_t first_byte) {
  return data_error(fmt::format("expected text in UTF-8, found byte 0x{:02x} at byte {}",
                                static_cast<unsigned char>(text[invalid]), first_byte + invalid));
}

std::string_view last_character(std::string_view text) {
  std::size_t begin = text.size();
  while (begin > 0 && (static_cast<unsigned char>(text[--begin]) & 0xC0) == 0x80) continue;
  return text.substr(begin);
}

std::string_view first_character(std::string_view text) {
  std::size_t end = 0;
  if (!text.empty()) next_character(text, end);
  return text.substr(0, end);
}

bool is_white_space(std::string_view character) {
  if (character.empty()) return false;
  std::size_t at = 0;
  const char32_t c = next_character(character, at);
  return (c >= '\t' && c <= '\r') || c == ' ' || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

std::size_t last_safe_cut(std::string_view text, std::string_view before) {
  for (std::size_t p = text.size(); p-- > 1;) {
    if (before.find(text[p]) == before.npos) continue;
    const std::string_view last = last_character(text.substr(0, p));
    if (!is_white_space(last) && last != "▁") return p;
  }
  return 0;
}

namespace {

bool is_visible(int byte) { return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE; }

struct Letters {
  std::array<std::uint16_t, 256> of_byte{};
  std::array<std::int16_t, 0x144> byte_of{};  // 0x100 + 68 characters; -1: no byte
  std::array<std::uint8_t, 256> order{};

  Letters() {
    byte_of.fill(-1);
    std::size_t placed = 0;
    int next = 0x100;
    for (const bool visible : {true, false})
      for (int byte = 0; byte < 256; ++byte) {
        if (is_visible(byte) != visible) continue;
        const int letter = visible ? byte : next++;
        of_byte[static_cast<std::size_t>(byte)] = static_cast<std::uint16_t>(letter);
        byte_of[static_cast<std::size_t>(letter)] = static_cast<std::int16_t>(byte);
        order[placed++] = static_cast<std::uint8_t>(byte);
      }
  }
};

const Letters& letters_table() {
  static const Letters table;
  return table;
}

}  // namespace

const std::array<std::uint8_t, 256>& byte_order() { return letters_table().order; }

std::string to_letters(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() * 2);
  for (const char c : bytes) {
    const unsigned letter = letters_table().of_byte[static_cast<unsigned char>(c)];
    if (letter < 0x80) {
      out.push_back(static_cast<char>(letter));
    } else {
      out.push_back(static_cast<char>(0xC0u | (letter >> 6)));
      out.push_back(static_cast<char>(0x80u | (letter & 0x3Fu)));
    }
  }
  return out;
}

std::optional<std::string> from_letters(std::string_view letters) {
  std::string out;
  for (std::size_t i = 0; i < letters.size(); ++i) {
    unsigned letter = static_cast<unsigned char>(letters[i]);
    if (letter >= 0x80) {  // all letters above ASCII are below U+0800: two bytes
      if (letter < 0xC2 || letter >= 0xE0 || i + 1 == letters.size()) return std::nullopt;
      const unsigned low = static_cast<unsigned char>(letters[++i]);
      if ((low & 0xC0u) != 0x80u) return std::nullopt;
      letter = (letter & 0x1Fu) << 6 | (low & 0x3Fu);
    }
    if (letter >= letters_table().byte_of.size() || letters_table().byte_of[letter] < 0) return std::nullopt;
    out.push_back(static_cast<char>(letters_table().byte_of[letter]));
  }
  return out;
}

namespace fs = std::filesystem;

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

Result<std::uint64_t> next_line(const TextPart& part, std::uint64_t from) {
  constexpr std::size_t kBlock = std::size_t{1} << 20;
  const std::uint64_t begin = from - (from > part.begin ? 1 : 0);  // a line begins after the end of another
  LANCET_ASSIGN(TextReader reader, TextReader::open({part.path, begin, part.end}, kBlock, kWhiteSpace));
  for (std::string block;;) {
    LANCET_TRY(reader.next(block));
    if (block.empty()) return part.end;
    if (const std::size_t found = block.find('\n'); found != block.npos)
      return reader.position() - block.size() + found + 1;
  }
}

Result<TextReader> TextReader::open(TextPart part, std::size_t chunk_bytes, std::string_view cut_before,
                                    std::vector<std::string> uncut) {
  LANCET_CHECK(chunk_bytes > 0 && part.begin <= part.end, "chunks of {} bytes of [{}, {})", chunk_bytes, part.begin,
               part.end);
  Descriptor file(::open(part.path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.is_open()) return data_error(fmt::format("{}: cannot open: {}", part.path.string(), std::strerror(errno)));
  return TextReader(std::move(part), chunk_bytes, cut_before, std::move(uncut), std::move(file));
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

// The last safe cut that no text of uncut_ spans, also none that the end of `text` cuts off; 0 if there is none.
std::size_t TextReader::last_cut(std::string_view text) const {
  const auto is_spanned = [&](std::size_t cut) {
    for (const std::string& whole : uncut_)
      for (std::size_t before = 1; before < whole.size() && before <= cut; ++before)
        if (const auto here = text.substr(cut - before, whole.size()); here.size() > before && whole.starts_with(here))
          return true;
    return false;
  };
  std::size_t cut = last_safe_cut(text, cut_before_);
  while (cut > 0 && is_spanned(cut)) cut = last_safe_cut(text.substr(0, cut), cut_before_);
  return cut;
}

Status TextReader::next(std::string& chunk) {
  std::size_t cut = 0;
  for (std::size_t wanted = chunk_bytes_; cut == 0; wanted *= 2) {
    LANCET_TRY(fill(wanted));
    const bool all = position_ + rest_.size() == part_.end;
    cut = all && rest_.size() <= wanted ? rest_.size() : last_cut(std::string_view(rest_).substr(0, wanted));
    if (rest_.empty()) break;
  }
  std::string tail = rest_.substr(cut);  // a chunk can be long, so it is moved
  rest_.resize(cut);
  chunk = std::exchange(rest_, std::move(tail));
  position_ += cut;
  return {};
}

}  // namespace lancet::data
