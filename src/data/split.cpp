#include "split.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>
#include <algorithm>
#include <array>
#include <utility>

#include "lancet/base/check.h"
#include "lancet/base/shown.h"
#include "lancet/base/utf8.h"

namespace lancet::data {
namespace {

// Writes an Oniguruma pattern for PCRE2, or says what the two would read differently. \s is Unicode's White_Space,
// PCRE2's \s is also U+180E; \p{Han} is of the script, PCRE2's of script extensions.
Result<std::string> to_pcre2(std::string_view pattern) {
  std::string out;
  bool in_class = false;
  const auto unlike = [&](std::string_view what) {
    return data_error(
        fmt::format("expected a pattern that PCRE2 reads as Oniguruma does, found {} in {}", what, shown(pattern)));
  };
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const std::string_view rest = pattern.substr(i);
    const char c = pattern[i];
    if (c == '\\') {
      const char named = rest.size() > 1 ? rest[1] : '\0';
      const std::size_t end = rest.find('}');
      ++i;
      if (named == 's' || named == 'S') {
        out += fmt::format("\\{}{{White_Space}}", named == 's' ? 'p' : 'P');
      } else if ((named == 'p' || named == 'P') && rest.substr(2, 1) == "{" && end != rest.npos && end > 5) {
        out += fmt::format("\\{}{{sc:{}", named, rest.substr(3, end - 3));
        i += end - 2;
      } else if (std::string_view("pPx").find(named) != std::string_view::npos && rest.substr(2, 1) == "{") {
        const std::size_t name_end = std::min(end, rest.size());  // what has none, PCRE2 refuses
        out += rest.substr(0, name_end);
        i += name_end - 2;
      } else if (std::string_view("pPdDrntfxae").find(named) != std::string_view::npos ||
                 (named > ' ' && !(named >= '0' && named <= '9') &&
                  !((named | 0x20) >= 'a' && (named | 0x20) <= 'z'))) {
        out.append({c, named});
      } else {
        return unlike(fmt::format("\\{}", named));
      }
      continue;
    }
    if (in_class && (c == '[' || rest.starts_with("&&"))) return unlike(c == '[' ? "[ in a class" : "&&");
    if (!in_class && (c == '^' || c == '$')) return unlike(std::string(1, c));
    if (!in_class && rest.starts_with("(?")) {
      bool is_known = false;
      for (const char* known : {":", "i:", "=", "!", "<=", "<!", ">"})
        is_known = is_known || rest.substr(2).starts_with(known);
      if (!is_known) return unlike(rest.substr(0, 3));
    }
    if (!in_class && c == '{') {
      const std::size_t digits = rest.find_first_not_of("0123456789", 1);
      const std::size_t comma = rest.substr(std::min(digits, rest.size())).starts_with(',') ? digits : rest.npos;
      const std::size_t end = comma == rest.npos ? digits : rest.find_first_not_of("0123456789", comma + 1);
      const bool is_interval = end != rest.npos && rest[end] == '}' && end > 1 && rest.substr(0, end) != "{,";
      // Oniguruma repeats {1,3}+ and makes {3}? optional; to PCRE2, the first is possessive and the second lazy.
      const std::string_view after = is_interval ? rest.substr(end + 1, 1) : "";
      if (after == "+" || (after == "?" && comma == rest.npos)) return unlike(rest.substr(0, end + 2));
      if (!is_interval) {  // PCRE2 10.43 reads { 1, 3 } as an interval
        out += "\\{";
        continue;
      }
      if (comma == 1) {  // text to PCRE2 before 10.43
        out += "{0";
        continue;
      }
    }
    out += c;
    if (!in_class && c == '[') {
      in_class = true;
      if (rest.substr(1).starts_with('^')) out += pattern[++i];
      if (pattern.substr(i + 1).starts_with(']')) return unlike("] first in a class");
    } else if (c == ']') {
      in_class = false;
    }
  }
  return out;
}

pcre2_match_context* limits() {
  static pcre2_match_context* const instance = [] {
    pcre2_match_context* context = pcre2_match_context_create(nullptr);
    LANCET_CHECK(context != nullptr, "out of memory");
    // The interpreter counts each step of a long run against the limit; the patterns of tokenizers are linear.
    pcre2_set_match_limit(context, UINT32_MAX);
    return context;
  }();
  return instance;
}

}  // namespace

Result<Split> Split::make(std::string pattern, bool is_regex, SplitBehavior behavior, bool inverted) {
  std::string text = pattern;
  if (is_regex) {
    LANCET_ASSIGN(text, to_pcre2(pattern));
  }
  int error = 0;
  PCRE2_SIZE offset = 0;
  const std::uint32_t options = is_regex ? PCRE2_UTF | PCRE2_UCP : PCRE2_UTF | PCRE2_LITERAL;
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), options, &error, &offset, nullptr);
  if (code == nullptr) {
    std::array<PCRE2_UCHAR, 256> message{};
    pcre2_get_error_message(error, message.data(), message.size());
    return data_error(fmt::format("expected a pattern that PCRE2 reads, found {} ({})", shown(pattern),
                                  reinterpret_cast<const char*>(message.data())));
  }
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // if the system forbids it, pcre2_match interprets the pattern
  Split split;
  split.pattern_ = std::move(pattern);
  split.is_regex_ = is_regex;
  split.inverted_ = inverted;
  split.behavior_ = behavior;
  split.code_ = {code, [](void* old) { pcre2_code_free(static_cast<pcre2_code*>(old)); }};
  return split;
}

std::string Split::description() const {
  return fmt::format("split {} {} {} {}", is_regex_, int(behavior_), inverted_, pattern_);
}

const Split& Split::gpt2() {
  static const Split instance = [] {
    auto split = make(R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", true,
                      SplitBehavior::isolated);
    LANCET_CHECK(split.ok(), "{} (PCRE2 10.40 or newer is needed)", split.error().message);
    return *std::move(split);
  }();
  return instance;
}

Splitter::Splitter(std::span<const Split> splits) {
  for (const Split& split : splits) {
    auto* code = static_cast<pcre2_code*>(split.code_.get());
    levels_.push_back({.split = &split, .scratch = {pcre2_match_data_create_from_pattern(code, nullptr), [](void* old) {
                                                      pcre2_match_data_free(static_cast<pcre2_match_data*>(old));
                                                    }}});
    LANCET_CHECK(levels_.back().scratch != nullptr, "out of memory");
  }
}

void Splitter::start(std::string_view text) {
  text_ = text;
  for (Level& level : levels_) level.text = {}, level.at = 0, level.held = {};
}

Splitter::Piece Splitter::find(Level& level) {
  if (!level.held.text.empty()) return std::exchange(level.held, {});
  auto* scratch = static_cast<pcre2_match_data*>(level.scratch.get());
  const auto* code = static_cast<const pcre2_code*>(level.split->code_.get());
  const auto match = [&](std::size_t from, std::uint32_t options) {
    return pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(level.text.data()), level.text.size(), from,
                       PCRE2_NO_UTF_CHECK | options, scratch, limits());
  };
  for (std::size_t from = level.at; level.at < level.text.size();) {
    int found = match(from, 0);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) found = match(from, PCRE2_NO_JIT);
    LANCET_CHECK(found > 0 || found == PCRE2_ERROR_NOMATCH,
                 "the tokenizer's pattern {} asks for more memory than PCRE2 allows in a text of {} bytes without a "
                 "border (its error {})",
                 shown(level.split->pattern_), level.text.size() - from, found);
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(scratch);
    const std::size_t begin = found > 0 ? ends[0] : level.text.size(), end = found > 0 ? ends[1] : begin;
    if (begin == end && begin == level.at) {  // an empty match is a border, and here is one already
      next_character(level.text, from);
      continue;
    }
    const std::size_t piece = std::exchange(level.at, end);
    if (begin > piece && end > begin) level.held = {level.text.substr(begin, end - begin), true};
    return begin > piece ? Piece{level.text.substr(piece, begin - piece), false}
                         : Piece{level.text.substr(begin, end - begin), true};
  }
  return {};
}

Splitter::Piece Splitter::cut(Level& level) {
  Piece piece = find(level);
  if (level.split->inverted_) piece.is_match = !piece.is_match;
  return piece;
}

std::string_view Splitter::next(std::size_t levels) {
  if (levels == 0) return std::exchange(text_, {});
  Level& level = levels_[levels - 1];
  const SplitBehavior behavior = level.split->behavior_;
  for (;;) {
    Piece piece = cut(level);
    if (piece.text.empty()) {
      level.at = 0;
      level.text = next(levels - 1);
      if (level.text.empty()) return {};
      continue;
    }
    if (behavior == SplitBehavior::isolated) return piece.text;
    if (behavior == SplitBehavior::removed) {
      if (piece.is_match) continue;
      return piece.text;
    }
    for (bool joins = true; joins;) {
      const Piece after = cut(level);
      joins = !after.text.empty() &&
              (behavior == SplitBehavior::contiguous             ? piece.is_match == after.is_match
               : behavior == SplitBehavior::merged_with_previous ? !piece.is_match && after.is_match
                                                                 : piece.is_match && !after.is_match);
      if (joins) {
        piece.text = level.text.substr(std::size_t(piece.text.data() - level.text.data()),
                                       piece.text.size() + after.text.size());
        // A piece that has both is whole.
        if (behavior != SplitBehavior::contiguous) return piece.text;
      } else if (!after.text.empty()) {  // found again by the next call
        level.at = std::size_t(after.text.data() - level.text.data());
        level.held = {};
      }
    }
    return piece.text;
  }
}

}  // namespace lancet::data
