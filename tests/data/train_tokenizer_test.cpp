#include "lancet/data/tokenize.h"

#include "support.h"

namespace lancet::data::test {
namespace {

// Recounts every pair before every merge. Returns the merges as bytes.
std::vector<std::pair<std::string, std::string>> reference_merges(std::string_view text, std::size_t wanted,
                                                                  std::int64_t min_count) {
  std::vector<std::vector<TokenId>> words;
  std::vector<std::string> tokens;
  std::map<char, TokenId> id_of;
  const auto add_byte = [&](int b) {
    id_of[static_cast<char>(b)] = static_cast<TokenId>(tokens.size());
    tokens.emplace_back(1, static_cast<char>(b));
  };
  const auto visible = [](int b) { return (b > 0x20 && b < 0x7F) || (b > 0xA0 && b != 0xAD); };
  for (int b = 0; b < 256; ++b) {
    if (visible(b)) add_byte(b);
  }
  for (int b = 0; b < 256; ++b) {
    if (!visible(b)) add_byte(b);
  }
  for (constexpr std::string_view mark = "<|endoftext|>"; !text.empty();) {  // which is not counted
    const std::size_t end = std::min(text.find(mark), text.size());
    for (const std::string& word : reference_pretokens(text.substr(0, end))) {
      words.emplace_back();
      for (const char c : word) words.back().push_back(id_of[c]);
    }
    text.remove_prefix(std::min(end + mark.size(), text.size()));
  }
  std::vector<std::pair<std::string, std::string>> merges;
  while (merges.size() < wanted) {
    std::map<std::pair<TokenId, TokenId>, std::int64_t> counts;  // ordered: the first of the greatest is the smallest
    for (const auto& word : words) {
      for (std::size_t i = 0; i + 1 < word.size(); ++i) ++counts[{word[i], word[i + 1]}];
    }
    std::pair<TokenId, TokenId> best{-1, -1};
    std::int64_t most = min_count - 1;
    for (const auto& [pair, count] : counts) {
      const std::string bytes = tokens[std::size_t(pair.first)] + tokens[std::size_t(pair.second)];
      if (count > most && std::find(tokens.begin(), tokens.end(), bytes) == tokens.end()) {
        most = count;
        best = pair;
      }
    }
    if (best.first < 0) break;
    merges.emplace_back(tokens[std::size_t(best.first)], tokens[std::size_t(best.second)]);
    for (auto& word : words) {
      std::vector<TokenId> merged;
      for (std::size_t i = 0; i < word.size(); ++i) {
        const bool here = i + 1 < word.size() && word[i] == best.first && word[i + 1] == best.second;
        merged.push_back(here ? static_cast<TokenId>(tokens.size()) : word[i]);
        if (here) ++i;
      }
      word = merged;
    }
    tokens.push_back(merges.back().first + merges.back().second);
  }
  return merges;
}

TrainTokenizerOptions options_for(int vocab_size, std::int64_t min_count = 2) {
  TrainTokenizerOptions options;
  options.vocab_size = vocab_size;
  options.min_count = min_count;
  return options;
}

std::vector<std::pair<std::string, std::string>> merges_of(const Tokenizer& tokenizer) {
  std::vector<std::pair<std::string, std::string>> merges;
  for (const Merge& m : tokenizer.merges()) {
    merges.emplace_back(tokenizer.bytes(m.left), tokenizer.bytes(m.right));
  }
  return merges;
}

}  // namespace

TEST_CASE("Training merges what counting from scratch merges") {
  Random random(21);
  const std::string english = random_english(random, 1500), mixed = random_known_text(random, 3000);
  // Overlapping repeats, where a merged pair changes its own neighbours.
  const std::string repeats = "aaaa aaaaa aaa abab ababa bababab aabaab aabaabaab aaaa aaaaaaaa abcabcabc abcabc";
  for (const std::string& text : {english, mixed, repeats}) {
    CHECK(merges_of(value(train_tokenizer(text, options_for(450)))) == reference_merges(text, 193, 2));
  }
  CHECK(merges_of(value(train_tokenizer(repeats, options_for(1000, 1)))) == reference_merges(repeats, 743, 1));
}

TEST_CASE("Training is deterministic, and files give the same merges as their text") {
  Random random(22);
  const std::string text = random_english(random, 3000);
  const Tokenizer a = value(train_tokenizer(text, options_for(500))),
                  b = value(train_tokenizer(text, options_for(500)));
  CHECK(a.hash() == b.hash());
  CHECK(a.vocab_size() == 500);
  CHECK(a.eos() == 499);
  CHECK(a.merges().size() == 243);
  const Folder folder;
  spit(folder / "text", text);
  CHECK(value(train_tokenizer(std::vector{folder / "text"}, options_for(500))).hash() == a.hash());
  const auto ids = value(a.encode(text));
  CHECK(ids.size() < text.size() / 3);
  CHECK(value(a.decode(ids)) == text);
}

TEST_CASE("The end-of-text token is not part of training") {
  TrainTokenizerOptions options;
  options.vocab_size = 300;
  std::string text;
  for (int i = 0; i < 50; ++i) text += "ab<|endoftext|>";
  const Tokenizer tokenizer = value(train_tokenizer(text, options));
  CHECK(merges_of(tokenizer) == std::vector<std::pair<std::string, std::string>>{{"a", "b"}});
  CHECK(tokenizer.vocab_size() == 258);  // no more pairs worth a merge
  options.special = SpecialTokens::text;
  CHECK(value(train_tokenizer(text, options)).vocab_size() > 258);
}

TEST_CASE("Texts and sizes that training cannot handle are errors") {
  const Folder folder;
  CHECK(error_of(train_tokenizer("text", options_for(256)), ExitCode::config) ==
        "expected a vocabulary of at least 257 (the bytes and <|endoftext|>), found 256");
  CHECK(value(train_tokenizer("text text", options_for(257))).vocab_size() == 257);
  error_of(train_tokenizer("", options_for(300)));
  spit(folder / "bad", "good\n\xC0");
  CHECK_THAT(error_of(train_tokenizer(std::vector{folder / "bad"}, options_for(300))),
             Catch::Matchers::EndsWith("bad: expected text in UTF-8, found byte 0xc0 at byte 5"));
  CHECK_THAT(error_of(train_tokenizer(std::vector{folder / "none"}, options_for(300))),
             Catch::Matchers::Contains("none: expected a text, found no such file"));
}

}  // namespace lancet::data::test
