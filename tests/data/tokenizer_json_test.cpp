// Tokenizers of tokenizer.json, small ones by hand. tests/data/referee compares those of known models.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "data/normalize.h"
#include "data/split.h"
#include "data/text.h"
#include "lancet/base/json.h"
#include "lancet/base/utf8.h"
#include "lancet/data/token_file.h"
#include "lancet/data/tokenize.h"
#include "support.h"
#include "text.h"

namespace lancet::data::test {
namespace {

using Catch::Matchers::Contains;
using Ids = std::vector<TokenId>;
using lancet::test::json_in;
using nlohmann::json;

json byte_level_part() {
  return json_in(R"({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false})");
}

// A tokenizer of bytes in GPT-2's order and the merges, each "LEFT RIGHT" in byte letters.
json of_bytes(const std::vector<std::string>& merges) {
  json root = json_in(R"({"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
    "normalizer": null, "post_processor": null, "model": {"type": "BPE", "merges": []}})");
  root["pre_tokenizer"] = root["decoder"] = byte_level_part();
  json& vocabulary = root["model"]["vocab"];
  for (const std::uint8_t byte : byte_order()) {
    const std::size_t id = vocabulary.size();
    vocabulary[to_letters(std::string(1, char(byte)))] = id;
  }
  for (const std::string& merge : merges) {
    root["model"]["merges"].push_back(merge);
    std::string token = merge;
    token.erase(token.find(' '), 1);
    const std::size_t id = vocabulary.size();
    vocabulary[token] = id;
  }
  return root;
}

// Like Mistral's: "<unk>", "<s>", "</s>", 256 bytes, then the characters and the results of the merges.
json of_characters(const std::string& characters, const std::vector<std::string>& merges) {
  json root = json_in(R"({"added_tokens": [
      {"id": 0, "content": "<unk>", "normalized": false, "special": true},
      {"id": 1, "content": "<s>", "normalized": false, "special": true},
      {"id": 2, "content": "</s>", "normalized": false, "special": true}],
    "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
      {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
    "pre_tokenizer": null,
    "post_processor": {"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
      "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
    "decoder": {"type": "Sequence", "decoders": [
      {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
      {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
    "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
      "vocab": {"<unk>": 0, "<s>": 1, "</s>": 2}, "merges": []}})");
  json& vocabulary = root["model"]["vocab"];
  const auto add = [&](const std::string& token) {
    const std::size_t id = vocabulary.size();
    if (!vocabulary.contains(token)) vocabulary[token] = id;
  };
  for (int byte = 0; byte < 256; ++byte) add(fmt::format("<0x{:02X}>", byte));
  for (std::size_t at = 0; at < characters.size();) {
    const std::size_t begin = at;
    next_character(characters, at);
    add(characters.substr(begin, at - begin));
  }
  for (const std::string& merge : merges) {
    root["model"]["merges"].push_back(merge);
    add(std::string(merge).erase(merge.find(' '), 1));
  }
  return root;
}

Result<Tokenizer> load(const json& root, const std::string& config = "") {
  const Folder folder;
  spit(folder / "tokenizer.json", json_text(root));
  if (!config.empty()) spit(folder / "tokenizer_config.json", config);
  return Tokenizer::load(folder.path());
}

std::vector<std::string> texts_of(const Tokenizer& tokenizer, std::string_view text,
                                  SpecialTokens special = SpecialTokens::ids) {
  std::vector<std::string> tokens;
  for (const TokenId id : value(tokenizer.encode(text, special))) tokens.emplace_back(tokenizer.bytes(id));
  return tokens;
}

using Texts = std::vector<std::string>;

Texts pieces(std::string_view text, const std::string& pattern, SplitBehavior behavior, bool inverted = false) {
  const std::vector<Split> splits{value(Split::make(pattern, true, behavior, inverted))};
  Splitter splitter(splits);
  splitter.start(text);
  Texts found;
  for (auto piece = splitter.next(); !piece.empty(); piece = splitter.next()) found.emplace_back(piece);
  return found;
}

// Characters of a word, the best pair merged until none is left.
Texts merged(const std::string& word, const std::vector<std::string>& merges) {
  Texts tokens;
  for (std::size_t at = 0; at < word.size();) {
    const std::size_t begin = at;
    next_character(word, at);
    tokens.push_back(word.substr(begin, at - begin));
  }
  for (;;) {
    std::size_t best = merges.size(), where = 0;
    for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
      const auto rank = std::size_t(std::ranges::find(merges, tokens[i] + " " + tokens[i + 1]) - merges.begin());
      if (rank < best) best = rank, where = i;
    }
    if (best == merges.size()) return tokens;
    tokens[where] += tokens[where + 1];
    tokens.erase(tokens.begin() + std::ptrdiff_t(where) + 1);
  }
}

}  // namespace

TEST_CASE("Splits keep, remove and join what a pattern matches") {
  const std::string text = "12-34--x";
  CHECK(pieces(text, "-", SplitBehavior::isolated) == Texts{"12", "-", "34", "-", "-", "x"});
  CHECK(pieces(text, "-", SplitBehavior::removed) == Texts{"12", "34", "x"});
  CHECK(pieces(text, "-", SplitBehavior::removed, true) == Texts{"-", "-", "-"});
  CHECK(pieces(text, "-", SplitBehavior::merged_with_previous) == Texts{"12-", "34-", "-", "x"});
  CHECK(pieces(text, "-", SplitBehavior::merged_with_next) == Texts{"12", "-34", "-", "-x"});
  CHECK(pieces(text, "-", SplitBehavior::contiguous) == Texts{"12", "-", "34", "--", "x"});
  CHECK(pieces("aBcD", "(?=[A-Z])", SplitBehavior::isolated) == Texts{"a", "Bc", "D"});
  CHECK(pieces("--", "-", SplitBehavior::merged_with_previous) == Texts{"-", "-"});
  CHECK(pieces("", "-", SplitBehavior::isolated).empty());
  // White space is Unicode's, without U+180E.
  CHECK(pieces("a\u180Eb\u2003c", R"(\s)", SplitBehavior::removed) == Texts{"a\u180Eb", "c"});
  CHECK(pieces("a\u180Eb\u2003c", R"([\S])", SplitBehavior::removed) == Texts{"\u2003"});
}

TEST_CASE("Patterns that PCRE2 reads otherwise than Oniguruma are refused") {
  for (const auto& [pattern, found] :
       std::vector<std::pair<std::string, std::string>>{{R"(\hx)", "\\h"},
                                                        {"[a&&b]", "&&"},
                                                        {"[a[b]]", "[ in a class"},
                                                        {"^a", "^"},
                                                        {"a$", "$"},
                                                        {"(?m:a)", "(?m"},
                                                        {R"(a\b)", "\\b"},
                                                        {"a{1,3}+b", "{1,3}+"},
                                                        {"a{2}?b", "{2}?"},
                                                        {"a{,2}+b", "{,2}+"},
                                                        {"a{3,1}", "out of order"},
                                                        {"[]a]", "] first in a class"},
                                                        {"[^]a]", "] first in a class"},
                                                        {R"(\x{41)", "brace missing"},
                                                        {"(a", "missing closing parenthesis"},
                                                        {R"(\p{Nowhere})", "unknown property"}})
    CHECK_THAT(error_of(Split::make(pattern, true, SplitBehavior::isolated)), Contains(found));
}

TEST_CASE("Intervals of patterns are Oniguruma's") {
  using enum SplitBehavior;
  CHECK(pieces("baaab", "ba{,2}", isolated) == Texts{"baa", "a", "b"});
  CHECK(pieces("baaab", "ba{,2}?a", isolated) == Texts{"ba", "aab"});
  CHECK(pieces("aaaa", "a{1,3}", isolated) == Texts{"aaa", "a"});
  CHECK(pieces("aaaa", "a{1,3}?", isolated) == Texts{"a", "a", "a", "a"});
  CHECK(pieces("aaaa", "a{3,}", isolated) == Texts{"aaaa"});
  for (const std::string text : {"a{,}", "a{", "a{x,2}", "a{1", "a{1,", "a{ 1, 3 }"})
    CHECK(pieces("b" + text + "b", text, isolated) == Texts{"b", text, "b"});
  CHECK(pieces("a{,2}", R"([{,2}]+)", isolated) == Texts{"a", "{,2}"});
  CHECK(pieces("xAAz", R"(\x{41}+)", isolated) == Texts{"x", "AA", "z"});  // no interval
  CHECK(pieces("x\u03A9\u03A9z", R"([\x{3A9}]{2})", isolated) == Texts{"x", "\u03A9\u03A9", "z"});
}

TEST_CASE("NFC composes, orders marks, and leaves what is composed") {
  const auto nfc = [](std::string_view text) {
    std::string buffer;
    return std::string(apply(std::vector{TextStep{}}, text, {}, buffer));
  };
  CHECK(nfc("abc é 中") == "abc é 中");
  CHECK(nfc("xe\u0301y") == "x\u00E9y");
  CHECK(nfc("a\u0301\u0323") == "\u1EA1\u0301");  // marks in the order of their classes
  CHECK(nfc("\u212B\u1100\u1161\u11A8") == "\u00C5\uAC01");
  CHECK(nfc("\uAC00\u11A8") == "\uAC01");
  CHECK(nfc("\u0958") == "\u0915\u093C");  // excluded from composition
  CHECK(nfc("\uF900\U0001D15E") == "\u8C48\U0001D157\U0001D165");
  CHECK(nfc("\u0301\u0301x") == "\u0301\u0301x");
  CHECK(nfc("e\u0301\u0301") == "\u00E9\u0301");
}

TEST_CASE("tokenizer.json with GPT-2's parts is the tokenizer of vocab.json and merges.txt") {
  Random random(5);
  const Tokenizer trained = value(train_tokenizer(random_english(random, 3000), {.vocab_size = 400, .progress = {}}));
  const Folder folder;
  succeed(trained.save(folder.path()));
  json root = of_bytes({});
  root["model"]["vocab"] = json_in(slurp(folder / "vocab.json"));
  std::istringstream lines(slurp(folder / "merges.txt"));
  std::string line;
  std::getline(lines, line);
  while (std::getline(lines, line)) {
    if (random.below(2)) {
      root["model"]["merges"].push_back(line);
    } else {
      root["model"]["merges"].push_back({line.substr(0, line.find(' ')), line.substr(line.find(' ') + 1)});
    }
  }
  root["added_tokens"] = json_in(R"([{"id": 399, "content": "<|endoftext|>", "special": true}])");
  root["pre_tokenizer"].erase("use_regex");
  spit(folder / "tokenizer.json", json_text(root));
  const Tokenizer read = value(Tokenizer::load(folder.path()));
  CHECK(read.hash() == trained.hash());
  CHECK(read.cut_before() == trained.cut_before());
  CHECK(read.eos() == 399);
  const std::string text = random_known_text(random, 3000);
  CHECK(value(read.encode(text)) == value(trained.encode(text)));
  root["pre_tokenizer"]["add_prefix_space"] = true;
  const Tokenizer prefixed = value(load(root));
  CHECK(prefixed.hash() != trained.hash());
  CHECK(value(prefixed.encode("on")) == value(trained.encode(" on")));
  CHECK(value(prefixed.encode(" on")) == value(trained.encode(" on")));
}

TEST_CASE("ignore_merges reads a pre-token that is a token as it is") {
  json root = of_bytes({"b c", "a b", "ab c"});  // "abc" merges to "a" "bc"
  CHECK(texts_of(value(load(root)), "abc") == Texts{"a", "bc"});
  root["model"]["ignore_merges"] = true;
  CHECK(texts_of(value(load(root)), "abc") == Texts{"abc"});
  CHECK(texts_of(value(load(root)), "abcabc") == Texts{"a", "bc", "a", "bc"});
}

TEST_CASE("Several splits each cut what the one before left") {
  json root = of_bytes({"1 2", "12 3", "3 4", "x 1", "Ġ x"});
  const auto split = [](const std::string& pattern, const std::string& behavior) {
    return json{{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", behavior}, {"invert", false}};
  };
  root["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers", {split(R"(\p{N}{1,3})", "Isolated"), split(R"( ?x|\s)", "Isolated"), byte_level_part()}}};
  CHECK(texts_of(value(load(root)), "x1234 x x1") == Texts{"x", "123", "4", " x", " x", "1"});
  CHECK(value(load(root)).cut_before().empty());  // nothing is known of such patterns
}

TEST_CASE("Added tokens take white space, stand alone and are found in the normalized text as their file says") {
  json root = of_bytes({"Ġ x"});
  const auto add = [&](const std::string& content, const std::string& fields) {
    json token = json_in(fields);
    token["content"] = content;
    token["id"] = 257 + root["added_tokens"].size();
    root["added_tokens"].push_back(token);
  };
  add("<l>", R"({"lstrip": true, "normalized": false})");
  add("<r>", R"({"rstrip": true, "normalized": false})");
  add("one", R"({"single_word": true, "normalized": false})");
  add("oneness", R"({"normalized": false})");
  add("e\u0301", R"({"normalized": true})");
  root["normalizer"] = {{"type", "NFC"}};
  const Tokenizer tokenizer = value(load(root));
  CHECK(texts_of(tokenizer, "x  <l> x") == Texts{"x", "<l>", " x"});
  CHECK(texts_of(tokenizer, "x <r> \nx") == Texts{"x", " ", "<r>", "x"});
  CHECK(texts_of(tokenizer, "<r>  <l>") == Texts{"<r>", "<l>"});
  CHECK(texts_of(tokenizer, "one oneé") == Texts{"one", " ", "o", "n", "e", "e\u0301"});
  CHECK(texts_of(tokenizer, "oneness") == Texts{"oneness"});
  CHECK(value(tokenizer.encode("\u00E9")) == Ids{261});
  CHECK(texts_of(tokenizer, "x<l>", SpecialTokens::text) == Texts{"x", "<", "l", ">"});
  root["added_tokens"][0]["lstrip"] = false;
  CHECK(value(load(root)).hash() != tokenizer.hash());
}

TEST_CASE("A tokenizer of characters begins a text with a space, and reads other characters as bytes") {
  const Tokenizer tokenizer = value(load(of_characters("▁abc", {"a b", "▁ ab", "▁ ▁"})));
  CHECK(texts_of(tokenizer, "ab ab") == Texts{"<s>", " ab", " ab"});
  CHECK(value(tokenizer.encode("")) == Ids{1});
  CHECK(value(tokenizer.encode("é")) == Ids{1, value(tokenizer.encode(" "))[0] == 1 ? 259 : -1, 3 + 0xC3, 3 + 0xA9});
  CHECK(texts_of(tokenizer, "c  c</s>ab") == Texts{"<s>", " ", "c", "  ", "c", "</s>", " ab"});
  CHECK(texts_of(tokenizer, "<s>c") == Texts{"<s>", " ", "c"});  // not twice
  for (const std::string text : {"ab  cé中 ", "", " a", "a<s>", "😀😀"}) {
    Ids ids = value(tokenizer.encode(text));
    ids.erase(ids.begin());
    INFO(text);
    CHECK(value(tokenizer.decode(ids)) == (text == "a<s>" ? "a<s>" : text));
  }
  CHECK(tokenizer.bytes(3 + 0x0A) == "\n");
  CHECK(tokenizer.cut_before() == " ");
}

TEST_CASE("Characters without a token and without bytes are unknown, fused or not") {
  json root = of_characters("▁ab", {});
  root["model"]["byte_fallback"] = false;
  CHECK(texts_of(value(load(root)), "aéé中b") == Texts{"<s>", " ", "a", "<unk>", "b"});
  root["model"]["fuse_unk"] = false;
  CHECK(texts_of(value(load(root)), "aéé中b") == Texts{"<s>", " ", "a", "<unk>", "<unk>", "<unk>", "b"});
  root["model"]["unk_token"] = nullptr;
  CHECK(texts_of(value(load(root)), "aéé中b") == Texts{"<s>", " ", "a", "b"});
}

TEST_CASE("Characters merge as published, in words of any length") {
  const std::vector<std::string> merges{"a b", "b a", "ab ab", "é b", "中 a", "a a", "aa b", "▁ ab", "abab é", "aa aa"};
  json root = of_characters("▁abé中", merges);
  const Tokenizer tokenizer = value(load(root));
  Random random(8);
  for (const std::size_t length : {1u, 30u, 64u, 65u, 255u, 300u, 1500u})
    for (int round = 0; round < 8; ++round) {
      std::string word;
      while (word.size() < length)
        word += Texts{"a", "b", "ab", "é", "中", "a", " ", "  "}[random.below(round < 4 ? 6 : 8)];
      Texts expected = merged("▁" + replace_all(word, " ", "▁"), merges);
      for (std::string& token : expected) token = replace_all(token, "▁", " ");
      expected.insert(expected.begin(), "<s>");
      INFO(word);
      REQUIRE(texts_of(tokenizer, word) == expected);
    }
}

TEST_CASE("Metaspace writes spaces, begins the text as its scheme says, and ends words before them") {
  json root = of_characters("▁abc", {"▁ a", "b ▁a", "a b", "▁a b"});
  root["normalizer"] = nullptr;
  root["post_processor"] = nullptr;
  const auto read = [&](const std::string& scheme, bool split) {
    root["pre_tokenizer"] =
        root["decoder"] = {{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", scheme}, {"split", split}};
    return value(load(root));
  };
  CHECK(texts_of(read("always", true), "ab ab</s>ab") == Texts{" ab", " ab", "</s>", " ab"});
  CHECK(texts_of(read("first", true), "ab ab</s>ab") == Texts{" ab", " ab", "</s>", "ab"});
  CHECK(texts_of(read("never", true), "ab ab</s> ab") == Texts{"ab", " ab", "</s>", " ab"});
  CHECK(texts_of(read("always", true), " ab") == Texts{" ab"});
  CHECK(texts_of(read("always", true), "c b ab") == Texts{" ", "c", " ", "b", " ab"});
  CHECK(texts_of(read("always", false), "c b ab") == Texts{" ", "c", " ", "b a", "b"});
  const Tokenizer tokenizer = read("always", true);
  CHECK(value(tokenizer.decode(value(tokenizer.encode("ab  ab")))) == "ab  ab");
  CHECK(tokenizer.cut_before() == "");  // "b▁a" spans the position before a space
}

TEST_CASE("Templates and add_bos_token say what is before and after a text") {
  json root = of_characters("▁ab", {});
  const auto ids = [&](const std::string& config) { return value(value(load(root, config)).encode("a")); };
  CHECK(ids("{}") == Ids{1, 259, 260});
  CHECK(ids(R"({"add_bos_token": false, "bos_token": "<s>"})") == Ids{259, 260});
  root["post_processor"]["single"].push_back({{"SpecialToken", {{"id", "</s>"}, {"type_id", 0}}}});
  root["post_processor"]["special_tokens"]["</s>"] = {{"id", "</s>"}, {"ids", {2}}, {"tokens", {"</s>"}}};
  CHECK(value(load(root)).adds_eos());
  CHECK(value(load(root)).eos() == 2);
  root["post_processor"] = nullptr;
  CHECK(ids("{}") == Ids{259, 260});
  CHECK(ids(R"({"add_bos_token": true, "bos_token": {"content": "</s>"}})") == Ids{2, 259, 260});
  CHECK(value(load(root, R"({"add_eos_token": true, "eos_token": "</s>"})")).adds_eos());
  CHECK_THAT(error_of(load(root, R"({"add_bos_token": true, "bos_token": null})")),
             Contains("tokenizer_config.json: bos_token: expected a token of the vocabulary, since add_bos_token is "
                      "true, found null"));
}

TEST_CASE("A text file of a tokenizer of characters has the ids of one text, whatever the chunks") {
  const Folder folder;
  const Tokenizer tokenizer = value(load(of_characters("▁abc\n", {"a b", "▁ ab", "▁ ▁", "b \n"})));
  Random random(9);
  std::string text;
  while (text.size() < 3000)
    text += Texts{"ab", " ab", "  ", "c", "\n", "é", "</s>", " </s> ", "▁", " "}[random.below(10)];
  spit(folder / "text", text + "ab");
  Ids expected = value(tokenizer.encode(text + "ab"));
  for (const std::size_t chunk_bytes : {1u, 7u, 64u, 1u << 20}) {
    TokenizeOptions options;
    options.chunk_bytes = chunk_bytes;
    options.threads = 2;
    value(tokenize_files({folder / "text"}, tokenizer, folder / "out", options));
    const TokenFile file = value(TokenFile::open(folder / "out"));
    Ids ids(file.size());
    succeed(file.read(0, ids));
    REQUIRE(ids == expected);
  }
}

TEST_CASE("A text of characters without a border takes four bytes of memory a byte beyond its own at most") {
  const Folder folder;
  const Tokenizer tokenizer = value(load(of_characters("▁abé", {"a b", "b a", "ab ab", "é a", "▁ a"})));
  const std::size_t bytes = 16 << 20;
  const std::string_view word = GENERATE("abbabaéa", "baa", "é中");
  const auto peak_of = [&](std::size_t size) {
    std::string line;
    while (line.size() < size) line += word;
    spit(folder / "text", line);
    return peak_kb([&] { return tokenize_files({folder / "text"}, tokenizer, folder / "out").ok(); });
  };
  CHECK(peak_of(bytes) - peak_of(100) < long(5 * bytes >> 10));
}

TEST_CASE("Broken or unknown parts of tokenizer.json are refused with their field") {
  const auto refused = [](json root, const std::string& path, const json& with) {
    root[json::json_pointer(path)] = with;
    const std::string message = error_of(load(root));
    return message.substr(message.find("tokenizer.json: ") + 16);
  };
  const json bytes = of_bytes({"a b"}), characters = of_characters("▁ab", {"a b"});
  CHECK(refused(bytes, "/model/type", "Unigram") == "model.type: expected one of BPE, found \"Unigram\"");
  CHECK(refused(bytes, "/normalizer", json{{"type", "NFKC"}}) ==
        "normalizer.type: expected one of NFC, Prepend, Replace, Sequence, found \"NFKC\"");
  CHECK(refused(bytes, "/pre_tokenizer", json{{"type", "Digits"}}) ==
        "pre_tokenizer.type: expected one of ByteLevel, Split, Metaspace, Sequence, found \"Digits\"");
  CHECK_THAT(refused(bytes, "/model/new", 1), Contains("model.new: expected one of the fields type, dropout, "));
  CHECK_THAT(refused(bytes, "/decoder/type", "WordPiece"), Contains("decoder.type: expected one of ByteLevel, "));
  CHECK_THAT(refused(bytes, "/decoder/type", "Fuse"), Contains("decoder."));
  CHECK_THAT(refused(characters, "/decoder", byte_level_part()), Contains("decoder: expected no ByteLevel"));
  CHECK(refused(bytes, "/model/dropout", 0.1) == "model.dropout: expected null, found 0.1");
  CHECK(refused(bytes, "/model/vocab/a", 1) == "model.vocab: expected each id once, found 1 for '\"' and 'a'");
  CHECK(refused(bytes, "/model/vocab/a", 300) == "model.vocab: expected the ids 0..256, found 300 for 'a'");
  CHECK(refused(bytes, "/model/merges/0", "a c c") ==
        "model.merges[0]: expected two tokens of the vocabulary, found \"a c c\"");
  CHECK_THAT(refused(bytes, "/model/merges/1", "a c"), Contains("merge 1: expected a token for what"));
  CHECK(refused(bytes, "/model/merges/0", json{"a", "b", "c"}) ==
        "model.merges[0]: expected two tokens of the vocabulary, found [\"a\",\"b\",\"c\"]");
  CHECK(refused(bytes, "/added_tokens/0", json{{"id", 258}, {"content", "<s>"}}) ==
        "added_tokens: expected the id 257 before greater ones, found 258 for '<s>'");
  CHECK(refused(bytes, "/added_tokens/0", json{{"id", 5}, {"content", "<s>"}}) ==
        "added_tokens[0].id: expected an id of its own for '<s>', found 5");
  CHECK_THAT(refused(bytes, "/pre_tokenizer", json::parse(R"({"type": "Split", "pattern": {"Regex": "a"},
                                                          "behavior": "Kept", "invert": false})")),
             Contains("pre_tokenizer.behavior: expected one of Isolated, "));
  CHECK_THAT(refused(bytes, "/post_processor", json{{"type", "BertProcessing"}}), Contains("post_processor.type: "));
  CHECK_THAT(refused(characters, "/post_processor/special_tokens/<s>/ids/0", 9999),
             Contains("post_processor.special_tokens.<s>.ids: expected one id of the vocabulary, found [9999]"));
  CHECK_THAT(refused(characters, "/model/unk_token", "<none>"), Contains("model.unk_token: expected a token of the"));
  json root = bytes;
  root["model"]["vocab"].erase("!");
  root["model"]["vocab"]["<|x|>"] = 0;
  CHECK_THAT(error_of(load(root)), Contains("expected a token for every byte, found none for 0x21"));
  const Folder folder;
  const std::string text = json_text(bytes);
  for (const std::size_t size : {0ul, 1ul, 300ul, text.size() - 1}) {
    spit(folder / "tokenizer.json", text.substr(0, size));
    CHECK_THAT(error_of(Tokenizer::load(folder.path())), Contains("tokenizer.json") && Contains("expected JSON"));
  }
}

}  // namespace lancet::data::test
