#include "lancet/data/tokenize.h"

#include <algorithm>

#include "lancet/data/token_file.h"
#include "support.h"

namespace lancet::data::test {
namespace {

using Ids = std::vector<TokenId>;
using Catch::Matchers::Contains;
using Paths = std::vector<std::filesystem::path>;

Tokenizer english_tokenizer() {
  Random random(31);
  TrainTokenizerOptions options;
  options.vocab_size = 500;
  return value(train_tokenizer(random_english(random, 4000), options));
}

Ids ids_in(const std::filesystem::path& path) {
  const TokenFile file = value(TokenFile::open(path));
  Ids ids(file.size());
  succeed(file.read(0, ids));
  return ids;
}

// Those of a text and of its end, which it may have already.
Ids ids_of(const Tokenizer& tokenizer, std::string_view text) {
  Ids ids = value(tokenizer.encode(text));
  if (ids.back() != tokenizer.eos()) ids.push_back(tokenizer.eos());
  return ids;
}

}  // namespace

TEST_CASE("The number of chunks and threads does not change the ids") {
  const Folder folder;
  const Tokenizer tokenizer = english_tokenizer();
  Random random(32);
  const std::string text = random_english(random, 300) + random_known_text(random, 6000);
  spit(folder / "text", text);
  const Ids expected = ids_of(tokenizer, text);
  for (const std::size_t chunk_bytes : {1u, 2u, 3u, 7u, 64u, 1000u, 1u << 20}) {
    for (const int threads : {1, 3}) {
      TokenizeOptions options;
      options.chunk_bytes = chunk_bytes;
      options.threads = threads;
      const auto result = value(tokenize_files({folder / "text"}, tokenizer, folder / "out", options));
      INFO("chunks of " << chunk_bytes << " bytes, " << threads << " threads");
      REQUIRE(ids_in(folder / "out") == expected);
      REQUIRE(result.train_tokens == expected.size());
      REQUIRE(result.bytes == text.size());
    }
  }
  CHECK(value(TokenFile::open(folder / "out")).tokenizer_hash() == tokenizer.hash());
  CHECK(value(TokenFile::open(folder / "out")).vocab_size() == 500);
}

TEST_CASE("A text without a position to cut at is one chunk") {
  const Folder folder;
  const Tokenizer tokenizer = english_tokenizer();
  // Runs of white space, narrow and wide: a chunk must not end inside a run.
  std::string text;
  for (int i = 0; i < 200; ++i) text += "\xE3\x80\x80 \xC2\xA0\n\xE2\x80\x83 \t\xE2\x80\xA8 ";
  const std::string solid(5000, 'e');
  for (const std::string& whole : {text, text + "x", solid, solid + text + solid}) {
    spit(folder / "text", whole);
    TokenizeOptions options;
    options.chunk_bytes = 16;
    value(tokenize_files({folder / "text"}, tokenizer, folder / "out", options));
    CHECK(ids_in(folder / "out") == ids_of(tokenizer, whole));
  }
}

TEST_CASE("Each file ends with the end-of-text token, once") {
  const Folder folder;
  const Tokenizer tokenizer = english_tokenizer();
  spit(folder / "a", "one\n");
  TokenizeOptions options;
  options.chunk_bytes = GENERATE(std::size_t(4), std::size_t(1000));
  for (const SpecialTokens special : {SpecialTokens::ids, SpecialTokens::text}) {
    options.special = special;
    const std::string text = "two<|endoftext|>\nthree<|endoftext|> \n";
    spit(folder / "b", text);
    const auto result = value(tokenize_files({folder / "a", folder / "b"}, tokenizer, folder / "out", options));
    Ids expected = ids_of(tokenizer, "one\n");
    const Ids second = value(tokenizer.encode(text, special));
    expected.insert(expected.end(), second.begin(), second.end());
    if (special == SpecialTokens::text) expected.push_back(tokenizer.eos());
    CHECK(ids_in(folder / "out") == expected);
    CHECK(std::ranges::count(expected, tokenizer.eos()) == (special == SpecialTokens::ids ? 3 : 2));
    CHECK(result.train_tokens == expected.size());
  }
}

TEST_CASE("Chunks do not cut a special token with spaces") {
  const Folder folder;
  succeed(english_tokenizer().save(folder / "tok"));
  spit(folder / "tok/added_tokens.json", R"({"<the end>": 500, "<the end> of": 501})");
  const Tokenizer tokenizer = value(Tokenizer::load(folder / "tok"));
  std::string text;
  for (int i = 0; i < 100; ++i) text += "one <the end> of two <the end> three <the en ";
  spit(folder / "text", text);
  const Ids expected = ids_of(tokenizer, text);
  CHECK(std::ranges::count(expected, 501) == 100);
  TokenizeOptions options;
  for (options.chunk_bytes = 8; options.chunk_bytes < 60; ++options.chunk_bytes) {
    value(tokenize_files({folder / "text"}, tokenizer, folder / "out", options));
    REQUIRE(ids_in(folder / "out") == expected);
  }
}

TEST_CASE("A line without a space takes four bytes of memory a byte at most, however short its tokens are") {
  const Folder folder;
  const Tokenizer tokenizer = english_tokenizer();
  const std::size_t bytes = 16 << 20;
  const std::string_view word = GENERATE("onthering", "#$%&");  // the latter: of tokens of one byte
  const auto peak_of = [&](std::size_t size) {
    std::string line;
    while (line.size() < size) line += word;
    spit(folder / "text", line);
    return peak_kb([&] { return tokenize_files({folder / "text"}, tokenizer, folder / "out").ok(); });
  };
  CHECK(peak_of(bytes) - peak_of(100) < long(4 * bytes >> 10));
}

TEST_CASE("The last lines are held out") {
  const Folder folder;
  const Tokenizer tokenizer = english_tokenizer();
  std::string text;
  for (int i = 0; i < 100; ++i) text += "line " + std::to_string(1000 + i) + "\n";  // 10 bytes each
  spit(folder / "text", text);
  TokenizeOptions options;
  options.eval_out = folder / "eval";
  options.chunk_bytes = 64;
  const auto cut_at = [&](double fraction, const Paths& paths, const std::string& whole, std::size_t cut) {
    options.eval_fraction = fraction;
    const auto result = value(tokenize_files(paths, tokenizer, folder / "train", options));
    Ids train, eval;  // of every file that has a part of each, which ends with the token
    for (std::size_t begin = 0, size = whole.size() / paths.size(); begin < whole.size(); begin += size) {
      const std::size_t middle = std::clamp(cut, begin, begin + size);
      for (auto [ids, from, to] : {std::tuple(&train, begin, middle), std::tuple(&eval, middle, begin + size)})
        if (from < to) std::ranges::copy(ids_of(tokenizer, whole.substr(from, to - from)), std::back_inserter(*ids));
    }
    CHECK(ids_in(folder / "train") == train);
    CHECK(ids_in(folder / "eval") == eval);
    CHECK(result.train_tokens == train.size());
    CHECK(result.eval_tokens == eval.size());
    CHECK(result.bytes == whole.size());
  };
  cut_at(0.1, {folder / "text"}, text, 900);    // at the start of a line
  cut_at(0.095, {folder / "text"}, text, 910);  // the next line after it
  cut_at(0.999, {folder / "text"}, text, 10);
  // Over several files: the cut may fall between them (their ends count as ends of lines here) or inside one.
  spit(folder / "more", text);
  const std::string both = text + text;
  cut_at(0.5, {folder / "text", folder / "more"}, both, 1000);
  cut_at(0.25, {folder / "text", folder / "more"}, both, 1500);
  cut_at(0.75, {folder / "text", folder / "more"}, both, 500);

  CHECK(folder.names() == std::vector<std::string>{"eval", "more", "text", "train"});
}

TEST_CASE("Both parts end with the end-of-text token") {
  const Folder folder;
  const Tokenizer tokenizer = english_tokenizer();
  spit(folder / "text", "one\ntwo\n");
  TokenizeOptions options;
  options.eval_fraction = 0.5;
  options.eval_out = folder / "eval";
  value(tokenize_files({folder / "text"}, tokenizer, folder / "train", options));
  CHECK(ids_in(folder / "train") == ids_of(tokenizer, "one\n"));
  CHECK(ids_in(folder / "eval") == ids_of(tokenizer, "two\n"));
}

TEST_CASE("Progress counts up to the total") {
  const Folder folder;
  const Tokenizer tokenizer = english_tokenizer();
  Random random(33);
  const std::string text = random_english(random, 500);
  spit(folder / "text", text);
  TokenizeOptions options;
  options.chunk_bytes = 256;
  std::vector<TokenizeProgress> seen;
  options.progress = [&](const TokenizeProgress& p) { seen.push_back(p); };
  value(tokenize_files({folder / "text"}, tokenizer, folder / "out", options));
  REQUIRE(seen.size() > 5);
  for (std::size_t i = 1; i < seen.size(); ++i) CHECK(seen[i].bytes > seen[i - 1].bytes);
  CHECK(seen.back().bytes == text.size());
  CHECK(seen.back().total_bytes == text.size());
}

TEST_CASE("A text that cannot be tokenized leaves the outputs unchanged") {
  const Folder folder;
  const Tokenizer tokenizer = english_tokenizer();
  spit(folder / "train", "old");
  spit(folder / "good", "one two\nthree\n");
  spit(folder / "empty", "");
  std::string bad;
  for (int i = 0; i < 1000; ++i) bad += "words ";
  bad[4321] = '\xFE';
  spit(folder / "bad", bad);
  TokenizeOptions options;
  options.chunk_bytes = 128;
  options.threads = 2;
  const auto refused = [&](const Paths& texts, ExitCode code = ExitCode::data) {
    const auto message = error_of(tokenize_files(texts, tokenizer, folder / "train", options), code);
    CHECK(folder.names() == std::vector<std::string>{"bad", "empty", "good", "train"});
    CHECK(slurp(folder / "train") == "old");
    return message;
  };
  CHECK(refused({folder / "good", folder / "bad"}) ==
        (folder / "bad").string() + ": expected text in UTF-8, found byte 0xfe at byte 4321");
  CHECK_THAT(refused({folder / "good", folder / "none"}), Contains("none: expected a text, found no such file"));
  CHECK_THAT(refused({folder / "empty"}), Contains("empty: expected a text, found an empty file"));
  CHECK_THAT(refused({folder.path()}), Contains("found no regular file"));
  CHECK_THAT(refused({}, ExitCode::config), Contains("found none"));
  options.eval_out = folder / "eval";
  options.eval_fraction = 0.01;  // no line begins in the last 1%
  CHECK_THAT(refused({folder / "good"}), Contains("near the last 0.01 of 14 bytes, found the held-out part empty"));
  options.eval_fraction = 0.5;  // the text is valid up to its end; the held-out part is not
  CHECK_THAT(refused({folder / "good", folder / "bad"}, ExitCode::data),
             Contains("bad: expected a line") || Contains("0xfe"));
  options.eval_fraction = 1;
  CHECK_THAT(refused({folder / "good"}, ExitCode::config), Contains("in [0, 1), found 1"));
  options.eval_fraction = 0.5;
  options.eval_out = folder / "train";
  CHECK_THAT(refused({folder / "good"}, ExitCode::config), Contains("a file of its own"));
  options.eval_out = folder / "link";
  fs::create_symlink("new", options.eval_out);
  CHECK_THAT(error_of(tokenize_files({folder / "good"}, tokenizer, folder / "new", options), ExitCode::config),
             Contains("a file of its own"));
  fs::remove(options.eval_out);
  options.eval_out = folder / "none/eval";  // found before the training part, which is no text, is read
  CHECK_THAT(refused({folder / "bad", folder / "good"}), Contains("none/eval: cannot create the file"));
}

}  // namespace lancet::data::test
