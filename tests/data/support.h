// Helpers of the data tests: temporary folders, random text, and plain references of GPT-2's tokenizer.
#pragma once
#include <catch2/catch.hpp>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lancet/base/random.h"
#include "lancet/data/tokenizer.h"

namespace lancet::data::test {

// A folder that is removed with the object.
class Folder {
 public:
  Folder();
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }
  std::vector<std::string> names() const;  // sorted

 private:
  std::filesystem::path path_;
};

// The most memory of a process of its own that runs this.
long peak_kb(const std::function<bool()>& run);

std::string slurp(const std::filesystem::path& path);
void spit(const std::filesystem::path& path, std::string_view content);

class Random {
 public:
  explicit Random(std::uint64_t seed) : philox_(seed, 0) {}
  std::uint64_t below(std::uint64_t bound) { return philox_.below(next_++, bound); }

 private:
  Philox philox_;
  std::uint64_t next_ = 0;
};

// Characters with their class in GPT-2's pattern, copied by hand from the Unicode tables.
enum class Kind { letter, number, space, other };
struct Character {
  char32_t code;
  Kind kind;
};
const std::vector<Character>& characters();

std::string utf8(char32_t code);
std::string random_known_text(Random& random, std::size_t length);  // of characters(), with repeats and contractions
std::string random_any_text(Random& random, std::size_t length);    // of all planes, assigned or not
std::string random_english(Random& random, std::size_t words);      // made-up words, Zipf-like, with lines

// GPT-2's pattern, branch by branch, over a text of characters().
std::vector<std::string> reference_pretokens(std::string_view text);

// The published algorithm: while a pair has a rank, all occurrences of the best pair are merged, left to right.
class ReferenceBpe {
 public:
  explicit ReferenceBpe(const Tokenizer& tokenizer);
  std::vector<TokenId> encode(std::string_view text) const;

 private:
  std::map<std::pair<std::string, std::string>, std::size_t> ranks_;
  std::map<std::string, TokenId> ids_;
};

// GPT-2's own files; nullopt and a warning if the checkout does not have them.
std::optional<Tokenizer> gpt2();
std::filesystem::path gpt2_folder();

template <class T>
T value(Result<T> result) {
  INFO((result.ok() ? std::string() : result.error().message));
  REQUIRE(result.ok());
  return std::move(result).value();
}
inline void succeed(const Status& status) {
  INFO((status.ok() ? std::string() : status.error().message));
  REQUIRE(status.ok());
}
template <class T>
std::string error_of(const Result<T>& result, ExitCode code = ExitCode::data) {
  REQUIRE_FALSE(result.ok());
  CHECK(result.error().code == code);
  CHECK(result.error().message.find('\n') == std::string::npos);
  return result.error().message;
}

}  // namespace lancet::data::test
