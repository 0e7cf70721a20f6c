// NFC leaves most texts as they are, so it first looks for a character that it may change: one that is not composed,
// has a combining class, or composes with the one before it. The text from the character before that to the next that
// NFC leaves alone is decomposed, its marks are ordered, and it is composed (Unicode Standard Annex 15); nothing
// outside of it takes part, since what composes with nothing before it and has no class is a border.
#include "normalize.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lancet/base/utf8.h"
#include "nfc_tables.h"

namespace lancet::data {
namespace {

// The syllables of Hangul, which are composed by arithmetic.
constexpr char32_t kSyllables = 0xAC00, kLeading = 0x1100, kVowels = 0x1161, kTrailing = 0x11A7;
constexpr char32_t kLeadingCount = 19, kVowelCount = 21, kTrailingCount = 28;
constexpr char32_t kSyllableCount = kLeadingCount * kVowelCount * kTrailingCount;

class Nfc {
 public:
  Nfc() : may_change_(0x30000) {
    char32_t character = 0;
    for (std::string_view rest = kDecompositions; skip_blanks(rest);) {
      char32_t first = number(rest, 16), second = 0;
      ++character;
      if (take(rest, '=')) {
        character = first;
        first = number(rest, 16);
      }
      if (take(rest, '+')) second = number(rest, 16);
      decomposed_[character] = {first, second};
      if (take(rest, '!') || second == 0) {
        may_change_[character] = true;
      } else {
        composed_[key(first, second)] = character;
        may_change_[second] = true;
      }
    }
    for (std::string_view rest = kCombiningClasses; skip_blanks(rest);) {
      const char32_t first = number(rest, 16), last = take(rest, '-') ? number(rest, 16) : first;
      take(rest, '=');
      const auto combining_class = static_cast<std::uint8_t>(number(rest, 10));
      for (char32_t c = first; c <= last; ++c) {
        classes_[c] = combining_class;
        may_change_[c] = true;
      }
    }
    for (char32_t c = kVowels; c < kVowels + kVowelCount; ++c) may_change_[c] = true;
    for (char32_t c = kTrailing + 1; c < kTrailing + kTrailingCount; ++c) may_change_[c] = true;
  }

  // The text in NFC; nullopt: it is that already.
  std::optional<std::string> operator()(std::string_view text) const {
    std::optional<std::string> out;
    std::size_t done = 0, before = 0;  // text[done:] is not in `out` yet; `before`: of the last character
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t begin = at;
      if (!may_change(next_character(text, at))) {
        before = begin;
        continue;
      }
      std::size_t end = at;
      while (end < text.size() && may_change(next_character(text, at))) end = at;
      std::vector<char32_t> characters;
      for (std::size_t i = before; i < end;) decompose(next_character(text, i), characters);
      compose(characters);
      std::string changed;
      for (const char32_t c : characters) append_utf8(changed, c);
      if (changed != text.substr(before, end - before)) {
        if (!out) out.emplace();
        out->append(text.substr(done, before - done)).append(changed);
        done = end;
      }
      before = at = end;
    }
    if (out) out->append(text.substr(done));
    return out;
  }

 private:
  static bool skip_blanks(std::string_view& rest) {
    rest.remove_prefix(std::min(rest.find_first_not_of(" \n"), rest.size()));
    return !rest.empty();
  }
  static bool take(std::string_view& rest, char c) {
    const bool is_there = rest.starts_with(c);
    rest.remove_prefix(is_there);
    return is_there;
  }
  static char32_t number(std::string_view& rest, int base) {
    std::uint32_t value = 0;
    rest.remove_prefix(std::size_t(std::from_chars(rest.begin(), rest.end(), value, base).ptr - rest.begin()));
    return value;
  }
  static std::uint64_t key(char32_t first, char32_t second) { return std::uint64_t(first) << 32 | second; }

  bool may_change(char32_t c) const { return c >= 0x300 && c < may_change_.size() && may_change_[c]; }
  std::uint8_t class_of(char32_t c) const {
    const auto it = classes_.find(c);
    return it == classes_.end() ? 0 : it->second;
  }

  void decompose(char32_t c, std::vector<char32_t>& out) const {
    if (c >= kSyllables && c < kSyllables + kSyllableCount) {
      const char32_t syllable = c - kSyllables, trailing = syllable % kTrailingCount;
      out.push_back(kLeading + syllable / (kVowelCount * kTrailingCount));
      out.push_back(kVowels + syllable / kTrailingCount % kVowelCount);
      if (trailing > 0) out.push_back(kTrailing + trailing);
    } else if (const auto it = decomposed_.find(c); it != decomposed_.end()) {
      decompose(it->second.first, out);
      if (it->second.second != 0) decompose(it->second.second, out);
    } else {
      out.push_back(c);
    }
  }

  char32_t composition(char32_t first, char32_t second) const {  // 0: none
    if (first >= kLeading && first < kLeading + kLeadingCount && second >= kVowels && second < kVowels + kVowelCount)
      return kSyllables + ((first - kLeading) * kVowelCount + (second - kVowels)) * kTrailingCount;
    if (first >= kSyllables && first < kSyllables + kSyllableCount && (first - kSyllables) % kTrailingCount == 0 &&
        second > kTrailing && second < kTrailing + kTrailingCount)
      return first + (second - kTrailing);
    const auto it = composed_.find(key(first, second));
    return it == composed_.end() ? 0 : it->second;
  }

  // Orders the marks of decomposed characters and composes them, in place.
  void compose(std::vector<char32_t>& text) const {
    for (auto at = text.begin(); at != text.end();) {
      const auto next = std::find_if(at, text.end(), [&](char32_t c) { return class_of(c) == 0; });
      std::stable_sort(at, next, [&](char32_t a, char32_t b) { return class_of(a) < class_of(b); });
      at = next == text.end() ? next : next + 1;
    }
    std::size_t kept = 0, starter = text.size();  // text[starter] takes what composes with it
    int last_class = -1;                          // of what is kept behind the starter; -1: nothing
    for (const char32_t c : std::vector<char32_t>(text)) {
      const int combining_class = class_of(c);
      const char32_t both = starter < kept && last_class < combining_class ? composition(text[starter], c) : 0;
      if (both != 0) {
        text[starter] = both;
        continue;
      }
      if (combining_class == 0) starter = kept;
      last_class = combining_class == 0 ? -1 : combining_class;
      text[kept++] = c;
    }
    text.resize(kept);
  }

  std::vector<bool> may_change_;  // by character; none above it changes
  std::unordered_map<char32_t, std::pair<char32_t, char32_t>> decomposed_;
  std::unordered_map<std::uint64_t, char32_t> composed_;
  std::unordered_map<char32_t, std::uint8_t> classes_;
};

std::optional<std::string> changed_by(const TextStep& step, std::string_view text, PieceStart start) {
  switch (step.kind) {
    case TextStep::Kind::nfc: {
      static const Nfc nfc;
      return nfc(text);
    }
    case TextStep::Kind::prepend:
      if (text.empty() || start.is_inside || (step.first_only && !start.of_text) ||
          (step.unless_there && text.starts_with(step.to)))
        return {};
      return step.to + std::string(text);
    case TextStep::Kind::replace:
      if (text.find(step.from) == text.npos) return {};
      return replace_all(text, step.from, step.to);
  }
  return {};
}

}  // namespace

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  for (std::size_t found; (found = text.find(from)) != text.npos; text.remove_prefix(found + from.size()))
    out.append(text.substr(0, found)).append(to);
  return out.append(text);
}

std::string_view apply(std::span<const TextStep> steps, std::string_view text, PieceStart start, std::string& buffer) {
  for (const TextStep& step : steps)
    if (auto changed = changed_by(step, text, start)) text = buffer = *std::move(changed);
  return text;
}

}  // namespace lancet::data
