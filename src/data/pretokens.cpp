#include "pretokens.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <cstdint>

#include "lancet/base/check.h"

namespace lancet::data {
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

}  // namespace lancet::data
