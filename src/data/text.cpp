#include "text.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fcntl.h>
#include <fmt/format.h>
#include <pcre2.h>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "lancet/base/check.h"
#include "lancet/data/tokenizer.h"

namespace lancet::data {
namespace {

// True if the text ends with a non-ASCII character of Unicode's White_Space.
bool ends_with_wide_space(std::string_view text) {
  if (text.ends_with("\xC2\x85") || text.ends_with("\xC2\xA0")) return true;  // U+0085, U+00A0
  if (text.size() < 3) return false;
  const auto tail = text.substr(text.size() - 3);
  const auto last = static_cast<unsigned char>(tail[2]);
  if (tail.starts_with("\xE2\x80")) {  // U+2000..200A, 2028, 2029, 202F
    return (last >= 0x80 && last <= 0x8A) || last == 0xA8 || last == 0xA9 || last == 0xAF;
  }
  return tail == "\xE1\x9A\x80" || tail == "\xE2\x81\x9F" || tail == "\xE3\x80\x80";  // U+1680, 205F, 3000
}

bool is_ascii_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

}  // namespace

Error not_utf8(std::string_view text, std::size_t invalid, std::uint64_t first_byte) {
  return data_error(fmt::format("expected text in UTF-8, found byte 0x{:02x} at byte {}",
                                static_cast<unsigned char>(text[invalid]), first_byte + invalid));
}

std::size_t last_safe_cut(std::string_view text) {
  for (std::size_t p = text.size(); p-- > 1;) {
    if (!is_ascii_space(text[p]) || is_ascii_space(text[p - 1])) continue;
    const bool ascii = static_cast<unsigned char>(text[p - 1]) < 0x80;
    if (ascii || !ends_with_wide_space(text.substr(0, p))) return p;
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

namespace {

// The pattern uses White_Space in place of \s: GPT-2's \s is Unicode's White_Space, PCRE2's \s also matches U+180E.
constexpr const char* kPattern =
    "'(?:[stmd]|re|ve|ll)| ?\\p{L}+| ?\\p{N}+| ?[^\\p{White_Space}\\p{L}\\p{N}]+|"
    "\\p{White_Space}+(?!\\P{White_Space})|\\p{White_Space}+";

struct Pattern {
  pcre2_code* code = nullptr;
  pcre2_match_context* limits = nullptr;

  Pattern() {
    int error = 0;
    PCRE2_SIZE offset = 0;
    code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(kPattern), PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &error,
                         &offset, nullptr);
    LANCET_CHECK(code != nullptr, "PCRE2 refuses GPT-2's pattern: error {} at {} (10.40 or newer is needed)", error,
                 offset);
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // if the system forbids it, pcre2_match interprets the pattern
    limits = pcre2_match_context_create(nullptr);
    LANCET_CHECK(limits != nullptr, "out of memory");
    // The interpreter counts each step of a long run against the limit; the pattern itself is linear.
    pcre2_set_match_limit(limits, UINT32_MAX);
  }
  ~Pattern() {
    pcre2_match_context_free(limits);
    pcre2_code_free(code);
  }
};

const Pattern& pattern() {
  static const Pattern instance;
  return instance;
}

}  // namespace

void Pretokens::FreeScratch::operator()(void* scratch) const {
  pcre2_match_data_free(static_cast<pcre2_match_data*>(scratch));
}

Pretokens::Pretokens() : scratch_(pcre2_match_data_create_from_pattern(pattern().code, nullptr)) {
  LANCET_CHECK(scratch_ != nullptr, "out of memory");
}

void Pretokens::start(std::string_view text) {
  text_ = text;
  at_ = 0;
}

std::string_view Pretokens::next() {
  if (at_ == text_.size()) return {};
  auto* scratch = static_cast<pcre2_match_data*>(scratch_.get());
  const int found = pcre2_match(pattern().code, reinterpret_cast<PCRE2_SPTR>(text_.data()), text_.size(), at_,
                                PCRE2_NO_UTF_CHECK, scratch, pattern().limits);
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(scratch);
  LANCET_CHECK(found > 0 && ends[0] == at_ && ends[1] > at_, "GPT-2's pattern leaves a gap at byte {} (PCRE2: {})", at_,
               found);
  at_ = ends[1];
  return text_.substr(ends[0], ends[1] - ends[0]);
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
  LANCET_ASSIGN(TextReader reader, TextReader::open({part.path, begin, part.end}, kBlock));
  for (std::string block;;) {
    LANCET_TRY(reader.next(block));
    if (block.empty()) return part.end;
    if (const std::size_t found = block.find('\n'); found != block.npos)
      return reader.position() - block.size() + found + 1;
  }
}

Result<TextReader> TextReader::open(TextPart part, std::size_t chunk_bytes, std::vector<std::string> uncut) {
  LANCET_CHECK(chunk_bytes > 0 && part.begin <= part.end, "chunks of {} bytes of [{}, {})", chunk_bytes, part.begin,
               part.end);
  Descriptor file(::open(part.path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.is_open()) return data_error(fmt::format("{}: cannot open: {}", part.path.string(), std::strerror(errno)));
  return TextReader(std::move(part), chunk_bytes, std::move(uncut), std::move(file));
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
  std::size_t cut = last_safe_cut(text);
  while (cut > 0 && is_spanned(cut)) cut = last_safe_cut(text.substr(0, cut));
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
