#include "support.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <sstream>

namespace lancet::data::test {

namespace fs = std::filesystem;

Folder::Folder() {
  static std::atomic<int> count{0};
  path_ = fs::temp_directory_path() / ("lancet-data-" + std::to_string(::getpid()) + "-" + std::to_string(count++));
  fs::create_directories(path_);
}
Folder::~Folder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}
std::vector<std::string> Folder::names() const {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(path_)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

long peak_kb(const std::function<bool()>& run) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(run() ? 0 : 1);
  int status = -1;
  rusage usage{};
  REQUIRE(::wait4(child, &status, 0, &usage) == child);
  REQUIRE(status == 0);
  return usage.ru_maxrss;
}

std::string slurp(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  REQUIRE(in);
  std::ostringstream content;
  content << in.rdbuf();
  return content.str();
}
void spit(const fs::path& path, std::string_view content) {
  std::ofstream out(path, std::ios::binary);
  out << content;
  REQUIRE(out.flush());
}

const std::vector<Character>& characters() {
  static const std::vector<Character> all = [] {
    std::vector<Character> list;
    for (char32_t c = 'a'; c <= 'z'; ++c) list.push_back({c, Kind::letter});
    for (char32_t c = '0'; c <= '9'; ++c) list.push_back({c, Kind::number});
    // Lo, Ll, Lu, Lm, Lt: feminine ordinal, e acute, sharp s, Cyrillic, Han, Hiragana, Arabic, Devanagari, modifier h,
    // titlecase Dz, mathematical A, Gothic, extension B Han, Hangul.
    for (char32_t c : {0xAAu, 0xE9u, 0xDFu, 0x42Fu, 0x4E2Du, 0x3042u, 0x627u, 0x915u, 0x2B0u, 0x1C5u, 0x1D49Cu,
                       0x10330u, 0x20000u, 0xAC00u, 0x41u, 0x5Au}) {
      list.push_back({c, Kind::letter});
    }
    // No, Nl, Nd: superscript two, one half, Roman eight, Arabic-Indic three, mathematical zero, circled one.
    for (char32_t c : {0xB2u, 0xBDu, 0x2167u, 0x663u, 0x1D7D8u, 0x2460u}) list.push_back({c, Kind::number});
    for (char32_t c : {0x9u, 0xAu, 0xBu, 0xCu, 0xDu, 0x20u, 0x20u, 0x20u, 0x85u, 0xA0u, 0x1680u, 0x2000u, 0x200Au,
                       0x2028u, 0x2029u, 0x202Fu, 0x205Fu, 0x3000u}) {
      list.push_back({c, Kind::space});
    }
    // Punctuation, symbols, emoji with skin tone and joiner, combining marks (M is not L), and characters that only
    // look like white space: U+180E, zero-width space, byte order mark, U+001C, NUL.
    for (char32_t c : {0x21u,   0x27u,   0x27u,   0x2Cu,    0x2Eu,    0x3Cu,    0x3Eu,     0x5Fu,   0x7Cu,
                       0x2019u, 0x20ACu, 0x3002u, 0x1F600u, 0x1F469u, 0x1F3FDu, 0x200Du,   0xFE0Fu, 0x301u,
                       0x93Fu,  0x180Eu, 0x200Bu, 0xFEFFu,  0x1Cu,    0x0u,     0x10FFFFu, 0xE000u}) {
      list.push_back({c, Kind::other});
    }
    return list;
  }();
  return all;
}

std::string utf8(char32_t c) {
  const auto byte = [](char32_t value) { return static_cast<char>(static_cast<unsigned char>(value)); };
  if (c < 0x80) return {byte(c)};
  if (c < 0x800) return {byte(0xC0 | (c >> 6)), byte(0x80 | (c & 63))};
  if (c < 0x10000) return {byte(0xE0 | (c >> 12)), byte(0x80 | ((c >> 6) & 63)), byte(0x80 | (c & 63))};
  return {byte(0xF0 | (c >> 18)), byte(0x80 | ((c >> 12) & 63)), byte(0x80 | ((c >> 6) & 63)), byte(0x80 | (c & 63))};
}

std::string random_known_text(Random& random, std::size_t length) {
  static const char* const pieces[] = {"'s",    "'t",    "'re",  "'ve", "'m",   "'ll",   "'d",
                                       "'S",    "''s",   " 's",  "  ",  "\n\n", " \n ",  "   x",
                                       "don't", "we'll", " the", "ing", "1234", " 2024", "<|endoftext|>"};
  std::string text;
  while (text.size() < length) {
    if (random.below(4) == 0) {
      text += pieces[random.below(std::size(pieces))];
      continue;
    }
    const std::string one = utf8(characters()[random.below(characters().size())].code);
    const std::uint64_t times = random.below(5) == 0 ? 1 + random.below(9) : 1;
    for (std::uint64_t i = 0; i < times; ++i) text += one;
  }
  return text;
}

std::string random_any_text(Random& random, std::size_t length) {
  std::string text;
  while (text.size() < length) {
    const auto plane_end = std::uint64_t{1} << (7 + random.below(15));  // as many from low ranges as from high ones
    const auto c = static_cast<char32_t>(random.below(std::min<std::uint64_t>(plane_end, 0x110000)));
    if (c < 0xD800 || c > 0xDFFF) text += utf8(c);
  }
  return text;
}

std::string random_english(Random& random, std::size_t words) {
  static const char* const syllables[] = {"the", "re", "in", "on", "er",  "at", "lo",
                                          "ma",  "ti", "s",  "ed", "ing", "un"};
  std::vector<std::string> lexicon;
  for (int i = 0; i < 300; ++i) {
    std::string word;
    for (std::uint64_t k = 0; k <= random.below(4); ++k) word += syllables[random.below(std::size(syllables))];
    lexicon.push_back(word);
  }
  std::string text;
  for (std::size_t i = 0; i < words; ++i) {
    text += lexicon[random.below(random.below(lexicon.size()) + 1)];
    const std::uint64_t end = random.below(20);
    text += end == 0 ? ".\n" : end == 1 ? ", " : end == 2 ? " 19" : end == 3 ? "'s " : end == 4 ? "\n\n" : " ";
  }
  return text;
}

namespace {

struct Spot {
  std::size_t at, bytes;
  Kind kind;
};

std::vector<Spot> spots(std::string_view text) {
  static const std::map<std::string, Kind> kinds = [] {
    std::map<std::string, Kind> map;
    for (const auto& c : characters()) map[utf8(c.code)] = c.kind;
    for (char32_t c = 'A'; c <= 'Z'; ++c) map[utf8(c)] = Kind::letter;
    for (const char c : std::string("#$%&()*+-/:;=?@[]^`{}~\"\\")) map[std::string(1, c)] = Kind::other;
    return map;
  }();
  std::vector<Spot> out;
  for (std::size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const std::size_t bytes = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    const auto found = kinds.find(std::string(text.substr(i, bytes)));
    INFO("a character that the reference does not know, at byte " << i);
    REQUIRE(found != kinds.end());
    out.push_back({i, bytes, found->second});
    i += bytes;
  }
  return out;
}

}  // namespace

std::vector<std::string> reference_pretokens(std::string_view text) {
  const std::vector<Spot> c = spots(text);
  const std::size_t n = c.size();
  const auto byte_at = [&](std::size_t i) { return i < n ? c[i].at : text.size(); };
  std::vector<std::string> out;
  for (std::size_t i = 0; i < n;) {
    std::size_t end = 0;
    for (const std::string_view suffix : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"}) {
      if (end == 0 && text.substr(c[i].at).starts_with(suffix)) end = i + suffix.size();
    }
    const std::size_t start = text[c[i].at] == ' ' ? i + 1 : i;
    for (const Kind kind : {Kind::letter, Kind::number, Kind::other}) {
      if (end != 0 || start >= n || c[start].kind != kind) continue;
      end = start;
      while (end < n && c[end].kind == kind) ++end;
    }
    if (end == 0) {  // \s+(?!\S), else \s+
      end = i;
      while (end < n && c[end].kind == Kind::space) ++end;
      if (end < n && end - i > 1) --end;
    }
    out.emplace_back(text.substr(c[i].at, byte_at(end) - c[i].at));
    i = end;
  }
  return out;
}

ReferenceBpe::ReferenceBpe(const Tokenizer& tokenizer) {
  std::size_t rank = 0;
  for (const Merge& m : tokenizer.merges()) {
    ranks_[{std::string(tokenizer.bytes(m.left)), std::string(tokenizer.bytes(m.right))}] = rank++;
  }
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) ids_[std::string(tokenizer.bytes(id))] = id;
}

std::vector<TokenId> ReferenceBpe::encode(std::string_view text) const {
  std::vector<TokenId> ids;
  for (const std::string& pretoken : reference_pretokens(text)) {
    std::vector<std::string> word;
    for (const char c : pretoken) word.emplace_back(1, c);
    for (;;) {
      auto best = ranks_.end();
      for (std::size_t i = 0; i + 1 < word.size(); ++i) {
        const auto found = ranks_.find({word[i], word[i + 1]});
        if (found != ranks_.end() && (best == ranks_.end() || found->second < best->second)) best = found;
      }
      if (best == ranks_.end()) break;
      std::vector<std::string> merged;
      for (std::size_t i = 0; i < word.size(); ++i) {
        const bool here = i + 1 < word.size() && word[i] == best->first.first && word[i + 1] == best->first.second;
        merged.push_back(here ? word[i] + word[i + 1] : word[i]);
        if (here) ++i;
      }
      word = merged;
    }
    for (const std::string& token : word) ids.push_back(ids_.at(token));
  }
  return ids;
}

fs::path gpt2_folder() { return fs::path(LANCET_SOURCE_DIR) / ".." / "shared" / "data" / "gpt2-bpe"; }

std::optional<Tokenizer> gpt2() {
  if (!fs::exists(gpt2_folder() / "vocab.json")) {
    WARN("SKIPPED: no GPT-2 vocabulary in " << gpt2_folder().string());
    return std::nullopt;
  }
  return value(Tokenizer::load(gpt2_folder()));
}

}  // namespace lancet::data::test
