#include "lancet/data/tokenizer.h"

#include <fmt/format.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "lancet/base/json.h"
#include "lancet/base/utf8.h"
#include "lancet/data/tokenize.h"
#include "support.h"
#include "text.h"

namespace lancet::data::test {
namespace {

using Ids = std::vector<TokenId>;

Tokenizer small_tokenizer() {
  Random random(11);
  TrainTokenizerOptions options;
  options.vocab_size = 600;
  return value(train_tokenizer(random_english(random, 4000) + random_known_text(random, 4000), options));
}

Ids encode(const Tokenizer& tokenizer, std::string_view text) { return value(tokenizer.encode(text)); }

// A decoder that follows RFC 3629 literally: code points, then the range of each length. Returns the first bad byte.
std::size_t reference_invalid(const std::string& s) {
  std::size_t i = 0;
  while (i < s.size()) {
    const auto at = [&](std::size_t k) { return static_cast<unsigned char>(s[k]); };
    const std::size_t n = at(i) < 0x80             ? 1
                          : (at(i) & 0xE0) == 0xC0 ? 2
                          : (at(i) & 0xF0) == 0xE0 ? 3
                          : (at(i) & 0xF8) == 0xF0 ? 4
                                                   : 0;
    if (n == 0 || i + n > s.size()) return i;
    std::uint32_t c = n == 1 ? at(i) : at(i) & (0xFFu >> (n + 1));
    for (std::size_t k = 1; k < n; ++k) {
      if ((at(i + k) & 0xC0) != 0x80) return i;
      c = c << 6 | (at(i + k) & 0x3F);
    }
    const std::uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    if (c < least[n] || c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF)) return i;
    i += n;
  }
  return s.size();
}

void check_against_reference(const Tokenizer& tokenizer, std::uint64_t seed) {
  const ReferenceBpe reference(tokenizer);
  Encoder encoder(tokenizer, SpecialTokens::text);  // one encoder for all texts, so that its cache is tested too
  Random random(seed);
  for (int round = 0; round < 300; ++round) {
    const std::string text = round % 3 == 0 ? random_english(random, 40) : random_known_text(random, random.below(200));
    Ids ids;
    succeed(encoder.encode(text, ids));
    REQUIRE(ids == reference.encode(text));
    REQUIRE(value(tokenizer.decode(ids)) == text);
  }
}

void check_decoding(const Tokenizer& tokenizer) {
  Random random(3);
  for (int round = 0; round < 200; ++round) {
    const std::string text = random_any_text(random, random.below(400));
    REQUIRE(value(tokenizer.decode(encode(tokenizer, text))) == text);
  }
}

}  // namespace

TEST_CASE("GPT-2's vocabulary gives GPT-2's ids") {
  const auto tokenizer = gpt2();
  if (!tokenizer) return;
  CHECK(tokenizer->vocab_size() == 50257);
  CHECK(tokenizer->eos() == 50256);
  CHECK(tokenizer->merges().size() == 50000);
  CHECK(encode(*tokenizer, "Hello world") == Ids{15496, 995});
  CHECK(encode(*tokenizer, "Hello, world!") == Ids{15496, 11, 995, 0});
  CHECK(encode(*tokenizer, "The quick brown fox jumps over the lazy dog.") ==
        Ids{464, 2068, 7586, 21831, 18045, 625, 262, 16931, 3290, 13});
  CHECK(encode(*tokenizer, "I'm") == Ids{40, 1101});
  CHECK(encode(*tokenizer, "It's") == Ids{1026, 338});
  CHECK(encode(*tokenizer, "\n") == Ids{198});
  CHECK(encode(*tokenizer, "\n\n") == Ids{628});
  CHECK(encode(*tokenizer, " ") == Ids{220});
  CHECK(encode(*tokenizer, "2 + 2 = 4") == Ids{17, 1343, 362, 796, 604});
  CHECK(encode(*tokenizer, "antidisestablishmentarianism") == Ids{415, 29207, 44390, 3699, 1042});
  CHECK(encode(*tokenizer, "お誕生日おめでとう") ==
        Ids{2515, 232, 45739, 243, 37955, 33768, 98, 2515, 232, 1792, 223, 30640, 30201, 29557});
  CHECK(encode(*tokenizer, "") == Ids{});
}

TEST_CASE("A special token in a text is read as its id, or as letters") {
  const Tokenizer tokenizer = small_tokenizer();
  const TokenId eos = tokenizer.eos();
  CHECK(eos == tokenizer.vocab_size() - 1);
  const std::string text = "one<|endoftext|> two<|endoftext|>";
  const Ids as_text = value(tokenizer.encode(text, SpecialTokens::text));
  CHECK(std::count(as_text.begin(), as_text.end(), eos) == 0);
  CHECK(value(tokenizer.decode(as_text)) == text);
  Ids expected = encode(tokenizer, "one");
  expected.push_back(eos);
  const Ids two = encode(tokenizer, " two");
  expected.insert(expected.end(), two.begin(), two.end());
  expected.push_back(eos);
  CHECK(value(tokenizer.decode(expected)) == text);
  CHECK(encode(tokenizer, text) == expected);
}

TEST_CASE("Files beside a vocabulary name added tokens and the tokens at which texts begin and end") {
  const Folder folder;
  succeed(small_tokenizer().save(folder.path()));  // 600 tokens, <|endoftext|> the last
  const auto load = [&] { return value(Tokenizer::load(folder.path())); };
  const auto ends = [&] {
    const Tokenizer tokenizer = load();
    return Ids(tokenizer.ends().begin(), tokenizer.ends().end());
  };
  spit(folder / "added_tokens.json", R"({"<s t>": 600, "<|endoftext|>": 599, "<s t>é": 601})");
  CHECK(load().vocab_size() == 602);
  CHECK(encode(load(), "a<s t><s t>é<|endoftext|>") == Ids{encode(load(), "a")[0], 600, 601, 599});  // the longest
  CHECK(encode(load(), "<s t") == value(load().encode("<s t", SpecialTokens::text)));
  spit(folder / "tokenizer_config.json",
       R"({"added_tokens_decoder": {"602": {"content": "</s>", "special": true}}, "eos_token": {"content": "</s>"},
           "bos_token": "<s t>"})");
  CHECK(load().vocab_size() == 603);
  CHECK(ends() == Ids{602});
  CHECK(load().eos() == 602);
  CHECK(load().bos() == 600);
  spit(folder / "config.json", R"({"bos_token_id": 601, "eos_token_id": 601})");
  CHECK(ends() == Ids{602, 601});  // the tokenizer's, then the model's
  CHECK(load().bos() == 600);
  spit(folder / "generation_config.json", R"({"eos_token_id": [700, 600]})");  // 700: embeddings may be larger
  CHECK(ends() == Ids{602, 600});
  CHECK(load().eos() == 602);
  CHECK(load().bytes(700).empty());
  spit(folder / "generation_config.json", R"({"eos_token_id": "</s>"})");
  CHECK_THAT(error_of(model_bounds(folder.path(), 603)),
             Catch::Matchers::Contains("eos_token_id: expected an id or a list of ids, found \"</s>\""));
  CHECK(ends() == Ids{602});  // the tokenizer is sound without it
  std::filesystem::remove(folder / "generation_config.json");
  spit(folder / "config.json", R"({"bos_token_id": 50256, "eos_token_id": 50256})");  // a default of GPT-2's size
  std::filesystem::remove(folder / "tokenizer_config.json");
  CHECK(ends() == Ids{599});
  CHECK(load().eos() == 599);
  CHECK(load().bos() == 599);
  spit(folder / "added_tokens.json", R"({"<s>": 601})");
  CHECK_THAT(error_of(Tokenizer::load(folder.path())),
             Catch::Matchers::Contains("added_tokens.json: expected added tokens with the ids from 600 on, found 601"));
  spit(folder / "added_tokens.json", R"({"<s>": 5})");
  CHECK_THAT(error_of(Tokenizer::load(folder.path())),
             Catch::Matchers::Contains("expected an id of its own for the added token '<s>', found '5'"));
}

TEST_CASE("Encoding equals the published algorithm") { check_against_reference(small_tokenizer(), 1); }

TEST_CASE("Encoding with GPT-2's vocabulary equals the published algorithm") {
  if (const auto tokenizer = gpt2()) check_against_reference(*tokenizer, 2);
}

TEST_CASE("Words too long for the scanning merge give the same merges") {
  const Tokenizer tokenizer = small_tokenizer();
  const ReferenceBpe reference(tokenizer);
  Random random(5);
  std::string word;
  for (const std::size_t length : {63u, 64u, 65u, 255u, 256u, 257u, 900u}) {
    word.clear();
    while (word.size() < length) word += "theringonatlomati"[random.below(17)];
    REQUIRE(encode(tokenizer, word) == reference.encode(word));
    REQUIRE(encode(tokenizer, std::string(length, 'a')) == reference.encode(std::string(length, 'a')));
  }
  for (const std::string letters : {"acgt", "aaaaaaaaat", "theringonatlomati"}) {
    word.clear();
    while (word.size() < 5000) word += letters[random.below(letters.size())];
    REQUIRE(encode(tokenizer, word) == reference.encode(word));
  }
  // Tokens as long as a block.
  const Tokenizer repeats = value(train_tokenizer(std::string(20000, 'a') + std::string(3000, 'b'), {}));
  const std::string run_of_both = std::string(3001, 'a') + std::string(1003, 'b');
  REQUIRE(encode(repeats, run_of_both) == ReferenceBpe(repeats).encode(run_of_both));
  // A megabyte without a space takes only a moment.
  const std::string run(1 << 20, 't');
  CHECK(value(tokenizer.decode(encode(tokenizer, run))) == run);
}

TEST_CASE("An encoder with a full cache encodes the same") {
  const Tokenizer tokenizer = small_tokenizer();
  Encoder encoder(tokenizer);
  Ids before, numbers, after;
  succeed(encoder.encode("the relating of the", before));
  std::string text;  // more distinct words than an encoder's cache holds
  for (int i = 10000000; i < 10400000; ++i) text += std::to_string(i) + " ";
  succeed(encoder.encode(text, numbers));
  CHECK(value(tokenizer.decode(numbers)) == text);
  succeed(encoder.encode("the relating of the", after));
  CHECK(before == after);
}

TEST_CASE("Decoding returns any text of any plane") { check_decoding(small_tokenizer()); }

TEST_CASE("Decoding with GPT-2's vocabulary returns any text of any plane") {
  if (const auto tokenizer = gpt2()) check_decoding(*tokenizer);
}

TEST_CASE("A text that is not UTF-8 is an error with its byte") {
  const Tokenizer tokenizer = small_tokenizer();
  const auto error = error_of(tokenizer.encode("good \xff bad"));
  CHECK(error == "expected text in UTF-8, found byte 0xff at byte 5");
  Encoder encoder(tokenizer);
  Ids ids{7};
  CHECK(error_of(encoder.encode("ab\xC3", ids, 1000)) == "expected text in UTF-8, found byte 0xc3 at byte 1002");
  CHECK(ids == Ids{7});
}

TEST_CASE("The UTF-8 check accepts and refuses the same bytes as RFC 3629") {
  const Tokenizer tokenizer = small_tokenizer();
  const auto check = [&](const std::string& text) {
    const auto result = tokenizer.encode(text);
    const std::size_t bad = reference_invalid(text);
    INFO("first bad byte " << bad << " of " << text.size());
    REQUIRE(result.ok() == (bad == text.size()));
    if (result.ok()) return;
    const std::string& message = result.error().message;
    REQUIRE(message.substr(message.rfind(' ') + 1) == std::to_string(bad));
  };
  for (int lead = 0x80; lead < 256; ++lead) {
    for (int second = 0; second < 256; second += second < 0x78 ? 40 : 1) {
      for (const char* tail : {"", "\x80", "\xBF\x80", "\x80\x80\x80", "a"}) {
        check("x" + std::string{static_cast<char>(lead), static_cast<char>(second)} + tail);
      }
    }
  }
  Random random(9);
  for (int round = 0; round < 2000; ++round) {
    std::string text = random_any_text(random, 1 + random.below(40));
    for (std::uint64_t k = 0; k < random.below(3); ++k)
      text[random.below(text.size())] = static_cast<char>(random.below(256));
    check(text);
  }
}

TEST_CASE("A stream prints whole characters") {
  CHECK(complete_utf8("") == 0);
  CHECK(complete_utf8("abc") == 3);
  for (const std::string whole : {"é", "中", "😀"}) {
    CHECK(complete_utf8("a" + whole) == 1 + whole.size());
    for (std::size_t cut = 1; cut < whole.size(); ++cut) CHECK(complete_utf8("a" + whole.substr(0, cut)) == 1);
  }
  CHECK(complete_utf8("a\x80\x80\x80\x80") == 5);  // no valid continuation
  CHECK(complete_utf8("a\xff") == 2);
}

TEST_CASE("GPT-2's files are written as they were read") {
  const auto tokenizer = gpt2();
  if (!tokenizer) return;
  const Folder folder;
  succeed(tokenizer->save(folder / "copy"));
  CHECK(slurp(folder / "copy" / "vocab.json") == slurp(gpt2_folder() / "vocab.json"));
  CHECK(slurp(folder / "copy" / "merges.txt") == slurp(gpt2_folder() / "merges.txt"));
}

TEST_CASE("A saved tokenizer loads as the same one") {
  const Folder folder;
  const Tokenizer tokenizer = small_tokenizer();
  succeed(tokenizer.save(folder / "a/b"));
  const Tokenizer again = value(Tokenizer::load(folder / "a/b"));
  CHECK(again.hash() == tokenizer.hash());
  CHECK(again.eos() == tokenizer.eos());
  REQUIRE(again.vocab_size() == tokenizer.vocab_size());
  for (TokenId id = 0; id < again.vocab_size(); ++id) REQUIRE(again.bytes(id) == tokenizer.bytes(id));
  CHECK(std::equal(again.merges().begin(), again.merges().end(), tokenizer.merges().begin(), tokenizer.merges().end()));

  // The hash depends on the whole content, but not on its formatting.
  spit(folder / "a/b/vocab.json", json_text(lancet::test::json_in(slurp(folder / "a/b/vocab.json")), {.indent = 2}));
  CHECK(value(Tokenizer::load(folder / "a/b")).hash() == tokenizer.hash());
  std::string merges = slurp(folder / "a/b/merges.txt");
  const auto last = merges.rfind('\n', merges.size() - 2) + 1, before = merges.rfind('\n', last - 2) + 1;
  merges = merges.substr(0, before) + merges.substr(last) + merges.substr(before, last - before);
  spit(folder / "a/b/merges.txt", merges);
  CHECK(value(Tokenizer::load(folder / "a/b")).hash() != tokenizer.hash());
}

TEST_CASE("Both files of a tokenizer are whole before either replaces an old one, and never one of two tokenizers") {
  const Folder folder;
  succeed(small_tokenizer().save(folder.path()));
  const std::string vocab = slurp(folder / "vocab.json");
  const Tokenizer other = value(train_tokenizer("some other text", {.vocab_size = 258, .progress = {}}));
  std::filesystem::remove(folder / "merges.txt");
  std::filesystem::create_directory(folder / "merges.txt");
  CHECK_THAT(error_of(other.save(folder.path())), Catch::Contains("merges.txt: expected a file to write"));
  CHECK(slurp(folder / "vocab.json") == vocab);
  std::filesystem::remove(folder / "merges.txt");
  spit(folder / "merges.txt", "");

  const int watch = ::inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
  REQUIRE(::inotify_add_watch(watch, folder.path().c_str(), IN_CREATE | IN_MOVED_TO | IN_DELETE) >= 0);
  succeed(other.save(folder.path()));
  alignas(inotify_event) std::array<char, 4096> events{};
  const ssize_t bytes = ::read(watch, events.data(), events.size());
  ::close(watch);
  std::vector<std::string> seen;
  for (ssize_t at = 0; at < bytes;) {
    const auto* event = reinterpret_cast<const inotify_event*>(events.data() + at);
    const std::string name = event->name;
    seen.push_back((event->mask & IN_CREATE   ? "new "
                    : event->mask & IN_DELETE ? "gone "
                                              : "renamed to ") +
                   name.substr(0, name.find('.', name.find('.') + 1)));
    at += ssize_t(sizeof(inotify_event) + event->len);
  }
  CHECK(seen == std::vector<std::string>{"new vocab.json", "new merges.txt", "gone merges.txt", "renamed to vocab.json",
                                         "renamed to merges.txt"});
  CHECK(value(Tokenizer::load(folder.path())).hash() == other.hash());
}

TEST_CASE("Broken tokenizer files are refused with the position") {
  const Folder folder;
  const auto contains = [](const std::string& text) { return Catch::Matchers::Contains(text); };
  CHECK_THAT(error_of(Tokenizer::load(folder / "none")), contains("none/vocab.json") && contains("no such file"));
  succeed(small_tokenizer().save(folder.path()));
  const std::string vocab = slurp(folder / "vocab.json"), merges = slurp(folder / "merges.txt");
  const auto with_vocab = [&](const nlohmann::json& json) {
    spit(folder / "vocab.json", json_text(json));
    return error_of(Tokenizer::load(folder.path()));
  };
  const auto good = lancet::test::json_in(vocab);

  spit(folder / "vocab.json", vocab.substr(0, 1000));
  CHECK_THAT(error_of(Tokenizer::load(folder.path())), contains("vocab.json:1:1001: expected JSON"));
  CHECK_THAT(with_vocab(nlohmann::json::array()), contains("found array"));
  auto json = good;
  json["!"] = 600;
  CHECK_THAT(with_vocab(json), contains("expected the ids 0..599, found 600 for token '!'"));
  json["!"] = 1;
  CHECK_THAT(with_vocab(json), contains("found 1 again"));
  json["!"] = -1;
  CHECK_THAT(with_vocab(json), contains("found -1"));
  json["!"] = "0";
  CHECK_THAT(with_vocab(json), contains("found \"0\""));
  json = good;
  json.erase("!");
  json["中"] = 0;
  CHECK_THAT(with_vocab(json), contains("byte letters, found token '中'"));
  json = good;
  json.erase("!");
  json["!!!!!"] = 0;
  CHECK_THAT(with_vocab(json), contains("none for 0x21"));

  spit(folder / "vocab.json", vocab);
  const auto with_merges = [&](const std::string& text) {
    spit(folder / "merges.txt", text);
    return error_of(Tokenizer::load(folder.path()));
  };
  CHECK_THAT(with_merges(merges + "a b c\n"), contains("expected two tokens, found 'a b c' on line 345"));
  CHECK_THAT(with_merges(merges + "a\n"), contains("expected two tokens, found 'a' on line 345"));
  CHECK_THAT(with_merges(merges + "qqqq b\n"), contains("tokens of the vocabulary, found 'qqqq b' on line 345"));
  CHECK_THAT(with_merges(merges + "! \"\n"), contains("merge 343") && contains("found none"));
  const std::size_t first = merges.find('\n') + 1;
  CHECK_THAT(with_merges(merges + merges.substr(first, merges.find('\n', first) + 1 - first)),
             contains("merge 343") && contains("found that of merge 0"));
  spit(folder / "merges.txt", merges);
  CHECK(Tokenizer::load(folder.path()).ok());
  std::filesystem::remove(folder / "merges.txt");
  CHECK_THAT(error_of(Tokenizer::load(folder.path())), contains("merges.txt: expected a tokenizer's merges"));
}

TEST_CASE("A vocabulary and merges that do not match are refused") {
  const Folder folder;
  const auto contains = [](const std::string& text) { return Catch::Matchers::Contains(text); };
  succeed(small_tokenizer().save(folder.path()));  // 600 tokens: 256 bytes, 343 merges, the end of text
  const std::string vocab = slurp(folder / "vocab.json"), merges = slurp(folder / "merges.txt");
  const auto first_lines = [&](int count) {
    std::size_t end = 0;
    for (int line = 0; line < count; ++line) end = merges.find('\n', end) + 1;
    return merges.substr(0, end);
  };
  for (const int kept : {0, 1, 200, 342}) {
    spit(folder / "merges.txt", first_lines(1 + kept));
    CHECK_THAT(
        error_of(Tokenizer::load(folder.path())),
        contains(fmt::format("expected 343 merges in merges.txt for the 600 tokens of vocab.json, found {}: ", kept)) &&
            contains(fmt::format("(id {})", 256 + kept)));
  }
  const std::string line = first_lines(101).substr(first_lines(100).size());  // a merge in the middle
  spit(folder / "merges.txt", first_lines(100) + merges.substr(first_lines(101).size()));
  INFO(line);
  CHECK_THAT(error_of(Tokenizer::load(folder.path())), contains("found 342: "));

  // Added tokens are recognised by their form, because no pair makes them, or because a file lists them.
  spit(folder / "merges.txt", "\xef\xbb\xbf" + merges);
  auto json = lancet::test::json_in(vocab);
  for (const char* token : {"<s>", "[PAD]", "zqzqzq"}) json[token] = json.size();
  spit(folder / "vocab.json", json_text(json));
  CHECK(value(Tokenizer::load(folder.path())).vocab_size() == 603);
  json["zq"] = 603;
  spit(folder / "vocab.json", json_text(json));
  CHECK_THAT(error_of(Tokenizer::load(folder.path())),
             contains("expected 345 merges") && contains("found 343: none makes 'zq' (id 603)"));
  spit(folder / "added_tokens.json", R"({"zq": 603})");
  CHECK(value(Tokenizer::load(folder.path())).vocab_size() == 604);
  spit(folder / "added_tokens.json", "[]");
  CHECK_THAT(error_of(Tokenizer::load(folder.path())), contains("added_tokens.json: expected a JSON object"));
}

TEST_CASE("Ids outside the vocabulary cannot be decoded") {
  const Tokenizer tokenizer = small_tokenizer();
  CHECK(error_of(tokenizer.decode(Ids{1, 600})) == "expected ids below 600, found 600 at position 1");
  CHECK(error_of(tokenizer.decode(Ids{-1})) == "expected ids below 600, found -1 at position 0");
}

}  // namespace lancet::data::test
