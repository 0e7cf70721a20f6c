#include "lancet/checkpoint/safetensors.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <random>

#include "good.h"
#include "lancet/base/hash.h"
#include "temporary_folder.h"

namespace lancet::checkpoint {
namespace {

using test::TemporaryFolder;

std::string file_of(const std::string& header, std::size_t data_bytes) {
  const std::uint64_t length = header.size();
  std::string text(8, '\0');
  std::memcpy(text.data(), &length, 8);
  return text + header + std::string(data_bytes, 'x');
}

std::string slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string error_of(const std::string& header, std::uint64_t data_bytes) {
  const auto parsed = parse_safetensors_header(header, data_bytes, "f");
  if (parsed.ok()) return "";
  CHECK(parsed.error().code == ExitCode::data);
  CHECK(parsed.error().message.find('\n') == std::string::npos);
  return parsed.error().message;
}

constexpr const char* sound =
    R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2,2],"data_offsets":[6,22]},)"
    R"("a":{"dtype":"BF16","shape":[3],"data_offsets":[0,6]},)"
    R"("none":{"dtype":"I64","shape":[0,7],"data_offsets":[6,6]},"one":{"dtype":"U8","shape":[],"data_offsets":[22,23]}}  )";

}  // namespace

TEST_CASE("a header gives names, types, shapes and offsets in the order of the bytes") {
  const auto header = test::good(parse_safetensors_header(sound, 23, "f"));
  CHECK(header->metadata == Metadata{{"format", "pt"}});
  std::vector<std::string> names;
  for (const TensorInfo& tensor : header->tensors) names.push_back(tensor.name + " " + to_string(tensor));
  CHECK(names == std::vector<std::string>{"a BF16[3]", "none I64[0,7]", "b F32[2,2]", "one U8[]"});
  CHECK(header->tensors[2].begin == 6);
  CHECK(header->tensors[2].bytes() == 16);
}

TEST_CASE("unsound headers are refused with the fault") {
  const auto tensor = [](const std::string& inside) { return "{\"t\":{" + inside + "}}"; };
  const std::string good = R"("dtype":"F32","shape":[2],"data_offsets":[0,8])";
  REQUIRE(error_of(tensor(good), 8).empty());
  CHECK(error_of("", 0) == "f: header: expected JSON, found no text");
  CHECK(error_of("[]", 0) == "f: header: expected an object of tensors, found []");
  CHECK(error_of(std::string(100000, '['), 0).starts_with("f: header: expected JSON of at most "));
  CHECK(error_of("{} x", 0).starts_with("f: header:1:4: expected JSON"));
  CHECK(error_of(tensor(good), 9) == "f: expected 8 bytes of data, found 9");
  CHECK(error_of(tensor(good), 7)
            .find("expected data_offsets [begin, end] in the file's 7 bytes of data, found [0, 8]") !=
        std::string::npos);
  CHECK(error_of("{\"t\":{" + good + "},\"t\":{" + good + "}}", 8) == "f: header: key 't' appears twice");
  CHECK(error_of("{\"t\":{" + good + "},\"u\":{" + good + "}}", 8) ==
        "f: 'u': expected its bytes to begin at 8, the end of the previous tensor, found 0");
  CHECK(error_of(tensor(R"("dtype":"F32","shape":[2],"data_offsets":[1,9])"), 9) ==
        "f: 't': expected its bytes to begin at 0, the end of the previous tensor, found 1");
  CHECK(error_of(tensor(R"("dtype":"F33","shape":[2],"data_offsets":[0,8])"), 8) ==
        "f: 't': expected a dtype of the format, found \"F33\"");
  CHECK(error_of(tensor(R"("dtype":"F32","shape":[3],"data_offsets":[0,8])"), 8) ==
        "f: 't': expected as many bytes as F32[3] has, found 8");
  CHECK(error_of(tensor(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])"), 8).find("found [8, 0]") !=
        std::string::npos);
  CHECK(error_of(tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0])"), 8).find("found [0]") != std::string::npos);
  // Products beyond 64 bits, and an extent of 0 that would hide one.
  for (const char* shape : {"[4611686018427387904,4]", "[18446744073709551615]", "[4294967296,4294967296,4294967296]",
                            "[0,4611686018427387904,4611686018427387904]"})
    CHECK(error_of(tensor(std::string(R"("dtype":"F32","data_offsets":[0,0],"shape":)") + shape), 0)
              .find("expected as many bytes as F32[") != std::string::npos);
  CHECK(error_of(tensor(R"("dtype":"F32","shape":[1,1,1,1,1,1,2],"data_offsets":[0,8])"), 8) ==
        "f: 't': expected at most 6 axes, found 7");
  CHECK(error_of(tensor(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])"), 8) ==
        "f: 't': expected a list of whole numbers for shape, found [-2]");
  CHECK(error_of(tensor(R"("dtype":"F32","shape":[2.0],"data_offsets":[0,8])"), 8).find("found [2.0]") !=
        std::string::npos);
  CHECK(error_of(tensor(R"("dtype":4,"shape":[2],"data_offsets":[0,8])"), 8)
            .find("expected a dtype of the format, found 4") != std::string::npos);
  CHECK(error_of(tensor(R"("dtype":"F32","shape":[[2]],"data_offsets":[0,8])"), 8).find("found [[2]]") !=
        std::string::npos);
  CHECK(error_of(tensor(R"("dtype":"F32","shape":[2])"), 8) ==
        R"(f: 't': expected an object of dtype, shape and data_offsets, found {"dtype":"F32","shape":[2]})");
  CHECK(error_of(tensor(good + R"(,"more":1)"), 8).find("expected an object of dtype, shape and data_offsets, found") !=
        std::string::npos);
  CHECK(error_of(tensor(good + R"(,"dtype":"F32")"), 8) == "f: header: key 't.dtype' appears twice");
  CHECK(error_of("{\"t\":7}", 0) == "f: 't': expected an object of dtype, shape and data_offsets, found 7");
  CHECK(error_of("{\"\":{" + good + "}}", 8) == "f: '': expected a name");
  CHECK(error_of(R"({"__metadata__":null})", 0).empty());
  CHECK(error_of(R"({"__metadata__":{"a":1}})", 0) == R"(f: __metadata__: expected an object of texts, found {"a":1})");
  CHECK(error_of("{\"a\\nb\":7}", 0).find("'a?b'") != std::string::npos);
}

TEST_CASE("every header truncated or with one byte changed is parsed or refused") {
  std::mt19937 random(1);
  const std::string text = sound;
  for (std::size_t end = 0; end + 2 < text.size(); ++end) CHECK_FALSE(error_of(text.substr(0, end), 23).empty());
  int refused = 0;
  for (int i = 0; i < 4000; ++i) {
    std::string changed = text;
    changed[random() % changed.size()] = char(random());
    refused += !parse_safetensors_header(changed, 23, "f").ok();
  }
  CHECK(refused > 2000);
}

TEST_CASE("other files are refused without reading the size that they claim") {
  const TemporaryFolder folder;
  auto error = [&](const std::string& path) {
    const Error file = test::refused(SafetensorsFile::open(path));
    CHECK(file.code == ExitCode::data);
    return file.message;
  };
  CHECK(error(folder / "none").find("none: expected a safetensors file, found: No such file") != std::string::npos);
  CHECK(error(folder / "").find("found no regular file") != std::string::npos);
  CHECK(error(folder.write("short", "1234567")).ends_with("found 7 bytes"));
  std::string huge = file_of("{}", 0);
  huge[7] = '\x7f';
  CHECK(error(folder.write("huge", huge)).find("expected a header of at most 2 bytes, found a length of 91513") !=
        std::string::npos);
  CHECK(error(folder.write("gap", file_of("{}", 4))).ends_with("gap: expected 0 bytes of data, found 4"));
}

TEST_CASE("tensors written in fragments of any size are read back, with the hashes of header and tensors") {
  const TemporaryFolder folder;
  std::vector<TensorInfo> tensors{
      {"w \"q\" \n\x01", "F32", {300, 1000}}, {"empty", "I8", {0}}, {"scalar", "F64", {}}, {"b", "BF16", {5}}};
  std::vector<std::byte> data;
  std::mt19937 random(2);
  for (const TensorInfo& tensor : tensors)
    for (std::uint64_t i = 0; i < tensor.bytes(); ++i) data.push_back(std::byte(random()));
  const std::string path = folder / "t.safetensors";
  const std::size_t piece = GENERATE(1000, 700000, 1 << 22);
  auto writer = test::good(SafetensorsWriter::create(disk(), path, tensors, {{"key", "value\t\"1\""}, {"a", ""}}));
  for (std::size_t at = 0; at < data.size(); at += piece)
    REQUIRE(writer->append(std::span(data).subspan(at, std::min(piece, data.size() - at))).ok());
  REQUIRE(writer->finish().ok());
  const std::string content = slurp(path);
  CHECK(writer->bytes() == content.size());

  const auto file = test::good(SafetensorsFile::open(path));
  CHECK(file->size() == content.size());
  CHECK(file->data_start() % 64 == 0);
  CHECK(file->header_hash() == hash64(content.substr(0, file->data_start())));
  CHECK(writer->header_hash() == file->header_hash());
  REQUIRE(writer->tensor_hashes().size() == 4);
  CHECK(file->metadata() == Metadata{{"key", "value\t\"1\""}, {"a", ""}});
  REQUIRE(file->tensors().size() == 4);
  std::uint64_t at = 0;
  for (const TensorInfo& written : tensors) {
    const TensorInfo* found = file->find(written.name);
    REQUIRE(found);
    CHECK(to_string(*found) == to_string(written));
    CHECK(found->begin == at);
    CHECK(writer->tensor_hashes()[std::size_t(&written - tensors.data())] ==
          hash64(std::string_view(content).substr(file->data_start() + at, found->bytes())));
    std::vector<std::byte> bytes(found->bytes());
    REQUIRE(file->read(*found, 0, bytes).ok());
    CHECK(std::equal(bytes.begin(), bytes.end(), data.begin() + std::ptrdiff_t(at)));
    at += found->bytes();
  }
  std::vector<std::byte> few(9);
  REQUIRE(file->read(*file->find("w \"q\" \n\x01"), 4321, few).ok());
  CHECK(std::equal(few.begin(), few.end(), data.begin() + 4321));
  CHECK(file->find("c") == nullptr);
  std::filesystem::resize_file(path, content.size() - 1);
  std::vector<std::byte> last(10);
  const Error cut = test::refused(file->read(*file->find("b"), 0, last));
  CHECK(cut.message.find("expected " + std::to_string(content.size()) + " bytes, found the end at") !=
        std::string::npos);
}

TEST_CASE("files of the reference implementation are read") {
  const auto file = test::good(SafetensorsFile::open(LANCET_SOURCE_DIR "/tests/reference/switch_adamw.safetensors"));
  CHECK(file->tensors().size() > 10);
  for (const TensorInfo& tensor : file->tensors()) CHECK((tensor.dtype == "F32" || tensor.dtype == "I32"));
}

TEST_CASE("bytes that belong to no tensor are an error of the caller") {
  const TemporaryFolder folder;
  auto writer = test::good(SafetensorsWriter::create(disk(), folder / "t", {{"a", "F32", {2}}}));
  const std::vector<std::byte> bytes(9);
  CHECK_THROWS_AS(writer->append(bytes), InternalError);
  CHECK_THROWS_AS(writer->finish(), InternalError);
  CHECK_THROWS_AS(SafetensorsWriter::create(disk(), folder / "u", {{"a", "F32", {2}}, {"a", "F32", {2}}}),
                  InternalError);
}

}  // namespace lancet::checkpoint
