#include "lancet/data/token_file.h"

#include <sys/resource.h>

#include <csignal>
#include <cstring>

#include "lancet/base/hash.h"
#include "support.h"

namespace lancet::data::test {
namespace {

using Ids = std::vector<TokenId>;
using Catch::Matchers::Contains;

void write(const std::filesystem::path& path, const Ids& ids, int vocab_size, std::uint64_t hash = 77) {
  TokenWriter writer = value(TokenWriter::create(path, vocab_size, hash));
  succeed(writer.append(ids));
  succeed(writer.finish());
}

Ids all(const TokenFile& file) {
  Ids ids(file.size());
  succeed(file.read(0, ids));
  return ids;
}

Ids random_ids(std::size_t count, int vocab_size) {
  Random random(count);
  Ids ids(count);
  for (TokenId& id : ids) id = static_cast<TokenId>(random.below(static_cast<std::uint64_t>(vocab_size)));
  return ids;
}

template <class T>
void put(std::string& bytes, std::size_t at, T number) {
  std::memcpy(bytes.data() + at, &number, sizeof(T));
}
void seal(std::string& bytes) { put(bytes, 56, hash64(std::string_view(bytes).substr(0, 56))); }

}  // namespace

TEST_CASE("A token file is read back as it was written") {
  const Folder folder;
  const auto [vocab_size, width] = GENERATE(table<int, int>({{256, 2}, {65536, 2}, {65537, 4}, {200000, 4}}));
  const auto count = GENERATE(as<std::size_t>{}, 0, 1, 1000, 700001);  // the last exceeds the buffer
  const Ids ids = random_ids(count, vocab_size);
  write(folder / "t", ids, vocab_size);
  const TokenFile file = value(TokenFile::open(folder / "t"));
  CHECK(file.size() == count);
  CHECK(file.vocab_size() == vocab_size);
  CHECK(file.bytes_per_token() == width);
  CHECK(file.tokenizer_hash() == 77);
  CHECK(all(file) == ids);
  CHECK(std::filesystem::file_size(folder / "t") == 64 + count * static_cast<std::size_t>(width));
  if (count > 500) {
    Ids part(10);
    succeed(file.read(491, part));
    CHECK(part == Ids(ids.begin() + 491, ids.begin() + 501));
  }
}

TEST_CASE("The bytes of a token file match their description") {
  const Folder folder;
  write(folder / "t", {1, 0x0203, 49999}, 50000, 0x1122334455667788);
  const std::string expected_head(
      "LANCETTK\1\0\0\0\2\0\0\0\3\0\0\0\0\0\0\0\x50\xC3\0\0\0\0\0\0\x88\x77\x66\x55\x44\x33\x22\x11"
      "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
      56);
  const std::string bytes = slurp(folder / "t");
  CHECK(bytes.substr(0, 56) == expected_head);
  std::uint64_t hash;
  std::memcpy(&hash, bytes.data() + 56, 8);
  CHECK(hash == hash64(expected_head));
  CHECK(bytes.substr(64) == std::string("\1\0\3\2\x4F\xC3", 6));
}

TEST_CASE("Any damaged header byte is detected") {
  const Folder folder;
  write(folder / "t", {1, 2, 3}, 50000);
  const std::string good = slurp(folder / "t");
  for (std::size_t at = 0; at < 64; ++at) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x10);
    spit(folder / "t", bad);
    CHECK_THAT(error_of(TokenFile::open(folder / "t")), Contains((folder / "t").string()) && Contains("expected"));
  }
}

TEST_CASE("Each field of a header is checked against its allowed values") {
  const Folder folder;
  write(folder / "t", {1, 2, 3, 4}, 50000);
  const std::string good = slurp(folder / "t");
  const auto refused = [&](auto change) {
    std::string bytes = good;
    change(bytes);
    if (bytes.size() >= 64) seal(bytes);
    spit(folder / "t", bytes);
    return error_of(TokenFile::open(folder / "t"));
  };
  CHECK_THAT(refused([](auto& b) { b[0] = 'X'; }), Contains("begins with LANCETTK") && Contains("found \"XANCETTK\""));
  CHECK_THAT(refused([](auto& b) { put(b, 8, std::uint32_t{2}); }),
             Contains("expected a token file of version 1, found version 2"));
  CHECK_THAT(refused([](auto& b) { put(b, 12, std::uint32_t{3}); }), Contains("2 or 4 bytes per token, found 3"));
  CHECK_THAT(refused([](auto& b) { put(b, 16, std::uint64_t{5}); }),
             Contains("5 tokens of 2 bytes after the header, found 8 bytes"));
  CHECK_THAT(refused([](auto& b) { put(b, 16, std::uint64_t{1} << 63 | 4); }), Contains("found 8 bytes"));
  CHECK_THAT(refused([](auto& b) { put(b, 12, std::uint32_t{4}); }),
             Contains("4 tokens of 4 bytes after the header, found 8 bytes"));
  CHECK_THAT(refused([](auto& b) { put(b, 24, std::uint64_t{0}); }),
             Contains("a vocabulary of 1..65536") && Contains("found 0"));
  CHECK_THAT(refused([](auto& b) { put(b, 24, std::uint64_t{65537}); }), Contains("a vocabulary of 1..65536"));
  CHECK_THAT(refused([](auto& b) { b.resize(b.size() - 2); }), Contains("found 6 bytes"));
  CHECK_THAT(refused([](auto& b) { b.resize(b.size() - 1); }), Contains("found 7 bytes"));
  CHECK_THAT(refused([](auto& b) { b += "xx"; }), Contains("found 10 bytes"));
  CHECK_THAT(refused([](auto& b) { b.resize(40); }), Contains("a header of 64 bytes, found 40 bytes in all"));
  CHECK_THAT(refused([](auto& b) { b.resize(3); }), Contains("found \"LAN\""));
  CHECK_THAT(refused([](auto& b) { b.clear(); }), Contains("found an empty one"));
  CHECK_THAT(refused([](auto& b) { b = "Some text, which is not a token file at all."; }),
             Contains("found \"Some tex\""));
  CHECK_THAT(error_of(TokenFile::open(folder / "none")), Contains("none: expected a token file, found: No such file"));
  CHECK_THAT(error_of(TokenFile::open(folder.path())), Contains("found no regular file"));
}

TEST_CASE("An id outside the vocabulary is an error with its position") {
  const Folder folder;
  write(folder / "t", {1, 2, 49999, 4}, 50000);
  std::string bytes = slurp(folder / "t");
  put(bytes, 24, std::uint64_t{49999});
  seal(bytes);
  spit(folder / "t", bytes);
  const TokenFile file = value(TokenFile::open(folder / "t"));
  Ids two(2);
  CHECK(file.read(0, two).ok());
  CHECK_THAT(error_of(file.read(1, two)), Contains("expected ids below 49999, found 49999 at token 2"));
}

TEST_CASE("A file's vocabulary may be smaller than the model's and not larger") {
  const Folder folder;
  write(folder / "t", {1, 2, 3}, 50000);
  CHECK(value(TokenFile::open(folder / "t", 50304)).vocab_size() == 50000);
  CHECK_THAT(error_of(TokenFile::open(folder / "t", 49999)),
             Contains("expected a vocabulary of at most model.vocab_size = 49999 ids, found one of 50000"));
}

TEST_CASE("llm.c's token files are read") {
  const Folder folder;
  std::string gpt2(1024, '\0');
  put(gpt2, 0, std::int32_t{20240520});
  put(gpt2, 4, std::int32_t{1});
  put(gpt2, 8, std::int32_t{3});
  std::string llama = gpt2;
  for (const int id : {50256, 0, 1000}) gpt2.append({static_cast<char>(id & 255), static_cast<char>(id >> 8)});
  put(llama, 0, std::int32_t{20240801});
  put(llama, 4, std::int32_t{7});
  for (const int id : {128255, 0, 70000}) {
    llama.append({static_cast<char>(id & 255), static_cast<char>(id >> 8 & 255), static_cast<char>(id >> 16), '\0'});
  }
  spit(folder / "gpt2", gpt2);
  spit(folder / "llama", llama);
  const TokenFile a = value(TokenFile::open(folder / "gpt2")), b = value(TokenFile::open(folder / "llama"));
  CHECK(all(a) == Ids{50256, 0, 1000});
  CHECK(value(TokenFile::open(folder / "gpt2", 50304)).vocab_size() == 50304);
  Ids one(1);
  CHECK_THAT(error_of(value(TokenFile::open(folder / "gpt2", 50256)).read(0, one)),
             Contains("expected ids below 50256, found 50256 at token 0"));
  CHECK(a.tokenizer_hash() == 0);
  CHECK(all(b) == Ids{128255, 0, 70000});
  CHECK(b.bytes_per_token() == 4);

  put(gpt2, 4, std::int32_t{2});
  spit(folder / "gpt2", gpt2);
  CHECK_THAT(error_of(TokenFile::open(folder / "gpt2")), Contains("llm.c's version 1 after magic 20240520, found 2"));
  llama.pop_back();
  spit(folder / "llama", llama);
  CHECK_THAT(error_of(TokenFile::open(folder / "llama")),
             Contains("3 tokens of 4 bytes after the header, found 11 bytes"));
  spit(folder / "llama", llama.substr(0, 512));
  CHECK_THAT(error_of(TokenFile::open(folder / "llama")), Contains("header of 1024 bytes, found 512"));
}

namespace {

// Megatron-LM's index of sequences of these lengths, of which each is a document.
std::string megatron_index(std::uint8_t type, std::int64_t width, const std::vector<std::int32_t>& lengths) {
  std::string index("MMIDIDX\0\0", 9);
  const auto add = [&](auto number) { index.append(reinterpret_cast<const char*>(&number), sizeof number); };
  add(std::uint64_t{1});
  add(type);
  add(std::uint64_t(lengths.size()));
  add(std::uint64_t(lengths.size() + 1));
  for (const std::int32_t length : lengths) add(length);
  std::int64_t place = 0;
  for (const std::int32_t length : lengths) add(place), place += length * width;
  for (std::size_t i = 0; i <= lengths.size(); ++i) add(std::int64_t(i));
  return index;
}

template <class T>
std::string bytes_of(const Ids& ids) {
  std::string bytes;
  for (const TokenId id : ids) {
    const T stored = T(id);
    bytes.append(reinterpret_cast<const char*>(&stored), sizeof stored);
  }
  return bytes;
}

}  // namespace

TEST_CASE("Megatron-LM's token files are read by their index") {
  const Folder folder;
  const Ids ids = random_ids(1000, 50000);
  const std::vector<std::int32_t> lengths{300, 0, 650, 50};
  const auto check = [&](int width, const std::string& bytes, std::uint8_t type) {
    spit(folder / "m.bin", bytes);
    for (const std::string modes : {"", "abcd"}) {
      spit(folder / "m.idx", megatron_index(type, width, lengths) + modes);
      const TokenFile file = value(TokenFile::open(folder / "m.bin", 50000));
      CHECK(file.size() == 1000);
      CHECK(file.bytes_per_token() == width);
      CHECK(file.vocab_size() == 50000);
      CHECK(file.tokenizer_hash() == 0);
      CHECK(all(file) == ids);
    }
  };
  check(2, bytes_of<std::uint16_t>(ids), 8);
  check(4, bytes_of<std::int32_t>(ids), 4);
  check(8, bytes_of<std::int64_t>(ids), 5);
  for (const std::int64_t id : {std::int64_t{-1}, (std::int64_t{1} << 32) + 5}) {
    std::string bytes = bytes_of<std::int64_t>(ids);
    put(bytes, 8, id);
    spit(folder / "m.bin", bytes);
    Ids read(3);
    CHECK_THAT(error_of(value(TokenFile::open(folder / "m.bin", 50000)).read(0, read)),
               Contains(fmt::format("found {} at token 1", id)));
  }
  const std::string index = megatron_index(5, 8, lengths);
  const auto refused = [&](std::size_t at, auto number, const std::string& what) {
    std::string wrong = index;
    put(wrong, at, number);
    spit(folder / "m.idx", wrong);
    CHECK_THAT(error_of(TokenFile::open(folder / "m.bin")), Contains("m.idx: " + what));
  };
  refused(9, std::uint64_t{2}, "expected version 1, found 2");
  refused(17, std::uint8_t{6}, "expected ids of uint16 (8), int32 (4) or int64 (5), found type 6");
  refused(17, std::uint8_t{8}, "expected sequence 1 at byte 600, found 0 tokens at byte 2400");
  refused(18, std::uint64_t{5}, "expected 5 sequences and 5 ends of documents, found 88 bytes");
  refused(18, ~std::uint64_t{0}, "expected 18446744073709551615 sequences");
  refused(26, ~std::uint64_t{0}, "expected 4 sequences and 18446744073709551615 ends");
  refused(34, std::int32_t{-300}, "expected sequence 0 at byte 0, found -300 tokens");
  refused(46, std::int32_t{51}, "expected 1001 tokens of 8 bytes in the .bin file, found 8000 bytes");
  spit(folder / "m.idx", index.substr(0, 20));
  CHECK_THAT(error_of(TokenFile::open(folder / "m.bin")), Contains("m.idx: expected a header of 34 bytes, found 20"));
  spit(folder / "m.idx", "another kind of index");
  CHECK_THAT(error_of(TokenFile::open(folder / "m.bin")), Contains("expected a token file that begins with"));
}

TEST_CASE("An unfinished file leaves no new file and keeps the old one") {
  const Folder folder;
  write(folder / "t", {1, 2, 3}, 1000);
  const std::string before = slurp(folder / "t");
  {
    TokenWriter writer = value(TokenWriter::create(folder / "t", 1000, 0));
    succeed(writer.append(random_ids(2000000, 1000)));
    CHECK(slurp(folder / "t") == before);
  }
  CHECK(folder.names() == std::vector<std::string>{"t"});
  CHECK(slurp(folder / "t") == before);
  CHECK_THAT(error_of(TokenWriter::create(folder / "no/such/t", 1000, 0)), Contains("no/such/t: cannot create"));
  CHECK_THAT(error_of(TokenWriter::create(folder.path(), 1000, 0)), Contains("found a folder"));
}

TEST_CASE("A full disk is an error and leaves no file") {
  const Folder folder;
  const auto too_large = std::size_t{1} << 20;
  // A limit on the file size stands in for a full disk: write fails in the same way, in the middle.
  rlimit old{};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &old) == 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{100000, old.rlim_max};
  REQUIRE(setrlimit(RLIMIT_FSIZE, &small) == 0);
  std::optional<Status> at_append, at_finish;
  {
    auto writer = TokenWriter::create(folder / "a", 1000, 0);
    if (writer) at_append = writer->append(Ids(too_large, 1));  // flushes on the way
    auto later = TokenWriter::create(folder / "b", 1000, 0);
    if (later && later->append(Ids(too_large / 8, 1))) at_finish = later->finish();
  }
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, old_handler);
  REQUIRE((at_append && at_finish));
  CHECK_THAT(error_of(*at_append), Contains((folder / "a").string() + ": cannot write: File too large"));
  CHECK_THAT(error_of(*at_finish), Contains((folder / "b").string() + ": cannot write: File too large"));
  CHECK(folder.names().empty());
}

}  // namespace lancet::data::test
