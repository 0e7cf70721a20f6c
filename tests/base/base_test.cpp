#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>
#include <catch2/catch.hpp>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <limits>
#include <new>
#include <system_error>
#include <vector>

#include "good.h"
#include "lancet/base/exceptions.h"
#include "lancet/base/files.h"
#include "lancet/base/flat_shard.h"
#include "lancet/base/hash.h"
#include "lancet/base/json.h"
#include "lancet/base/random.h"
#include "lancet/base/result.h"
#include "lancet/base/rounding.h"
#include "lancet/base/shape.h"
#include "lancet/base/shown.h"
#include "temporary_folder.h"

namespace lancet {

TEST_CASE("a duration is printed in its two largest units") {
  CHECK(duration(-1) == "0s");
  CHECK(duration(59.4) == "59s");
  CHECK(duration(59.6) == "1m 00s");
  CHECK(duration(85) == "1m 25s");
  CHECK(duration(3599) == "59m 59s");
  CHECK(duration(3720) == "1h 02m");
}

TEST_CASE("exceptions of the system say what was wanted and what to change") {
  const auto message = [](const std::exception& thrown) {
    const Error error = error_of(thrown);
    CHECK(error.code == ExitCode::internal);
    return error.message;
  };
  const auto again = std::make_error_code(std::errc::resource_unavailable_try_again);
  CHECK(message(std::system_error(again)) ==
        "cannot start a thread: Resource temporarily unavailable; allow more threads (ulimit -u, a container's "
        "pids.max) or compute with fewer (threads=1)");
  CHECK(message(std::system_error(again, "thread 2 of the 4 that compute"))
            .starts_with("cannot start thread 2 of the 4 that compute: Resource temporarily unavailable; "));
  CHECK(message(std::bad_alloc()).starts_with("cannot allocate memory: "));
  const auto none = std::make_error_code(std::errc::no_such_file_or_directory);
  CHECK(message(std::filesystem::filesystem_error("x", "/data/a", none)) == "/data/a: No such file or directory");
  CHECK(message(InternalError("broken")) == "broken");
}

TEST_CASE("Philox4x32-10 gives the known answers of its authors") {
  // Random123's kat_vectors: counter and key of zeros, of ones, of the digits of pi.
  using Block = std::array<std::uint32_t, 4>;
  CHECK(Philox(0, 0).block(0) == Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  const std::uint64_t ones = ~std::uint64_t{0};
  CHECK(Philox(ones, ones).block(ones) == Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(Philox(0x299f31d0a4093822, 0x0370734413198a2e).block(0x85a308d3243f6a88) ==
        Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("normal numbers have mean 0 and deviation 1, uniform ones are at least 0 and below 1") {
  const Philox random(7, 3);
  constexpr int n = 100000;
  double sum = 0, squares = 0, uniform = 0;
  for (int i = 0; i < n; ++i) {
    const double x = random.normal(static_cast<std::uint64_t>(i)), u = random.uniform(static_cast<std::uint64_t>(i));
    REQUIRE((u >= 0 && u < 1));
    sum += x;
    squares += x * x;
    uniform += u;
  }
  CHECK(std::abs(sum / n) < 5 / std::sqrt(double(n)));
  CHECK(std::abs(squares / n - 1) < 5 * std::sqrt(2.0 / n));
  CHECK(std::abs(uniform / n - 0.5) < 5 * std::sqrt(1.0 / 12 / n));
}

TEST_CASE("normal numbers are Box-Muller's of a block's words, one at a time and in bulk") {
  const Philox random(11, 5);
  const std::uint64_t far = (std::uint64_t{1} << 34) - 150;  // the block number crosses 32 bits
  for (const std::uint64_t first : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{4098}, far})
    for (const std::size_t count : {0, 1, 3, 255, 256, 1030}) {
      std::vector<float> values(count + 1, 77.f);
      random.normals(first, std::span(values).first(count));
      CHECK(values[count] == 77.f);
      for (std::size_t i = 0; i < count; ++i) {
        const std::uint64_t index = first + i;
        REQUIRE(values[i] == random.normal(index));
        const auto words = random.block(index / 4);
        const std::size_t pair = index % 4 / 2 * 2;
        const double u = (words[pair] / 2 + 0.5) / 2147483648.0, angle = words[pair + 1] * (2 * M_PI / 4294967296.0);
        const double radius = std::sqrt(-2 * std::log(u));
        REQUIRE(std::abs(values[i] - radius * (index % 2 ? std::sin(angle) : std::cos(angle))) < 4e-6);
      }
    }
}

TEST_CASE("numbers below a bound cover its whole range and never reach it") {
  const Philox random(1, 2);
  std::vector<int> seen(7);
  for (std::uint64_t i = 0; i < 7000; ++i) ++seen.at(random.below(i, 7));
  for (int count : seen) CHECK(std::abs(count - 1000) < 200);
  CHECK(random.below(0, 1) == 0);
}

TEST_CASE("streams with different names differ") {
  CHECK(stream_of("h.0.attn") != stream_of("h.1.attn"));
  CHECK(Philox(1, stream_of("a")).block(0) != Philox(1, stream_of("b")).block(0));
}

TEST_CASE("bf16 rounds to nearest even") {
  auto rounded = [](float x) { return to_f32(from_f32<bf16>(x)); };
  CHECK(rounded(1.f) == 1.f);
  CHECK(rounded(1.00390625f) == 1.f);        // 1 + 2^-8: a tie, rounded to the even 1
  CHECK(rounded(1.01171875f) == 1.015625f);  // 1 + 3 * 2^-8: a tie, rounded to the even 1 + 2 * 2^-7
  CHECK(rounded(-1.005f) == -1.0078125f);
  CHECK(std::isinf(rounded(std::numeric_limits<float>::infinity())));
  CHECK(std::isinf(rounded(std::numeric_limits<float>::max())));
  CHECK(std::isnan(rounded(std::numeric_limits<float>::quiet_NaN())));
}

TEST_CASE("dtypes have names and sizes") {
  for (DType dtype : {DType::f32, DType::bf16, DType::i32, DType::i64}) CHECK(parse_dtype(name(dtype)) == dtype);
  CHECK_FALSE(parse_dtype("f64").has_value());
  CHECK(size_of(DType::bf16) == 2);
}

TEST_CASE("shapes") {
  const Shape shape{2, 3, 5};
  CHECK(shape.elements() == 30);
  CHECK(shape.rows() == 6);
  CHECK(shape[-1] == 5);
  CHECK(to_string(shape) == "2,3,5");
  CHECK(shape == Shape{2, 3, 5});
  CHECK_FALSE(shape == Shape{2, 3});
  CHECK(Shape{}.elements() == 1);
  CHECK_THROWS_AS((Shape{1, 1, 1, 1, 1, 1, 1}), InternalError);
}

TEST_CASE("hashes equal XXH3's") {
  CHECK(hex(hash64(std::string_view())) == "2d06800538d394c2");  // XXH3_64bits of no bytes
}

TEST_CASE("LANCET_TRY and LANCET_ASSIGN return errors to the caller") {
  auto half = [](int x) -> Result<int> {
    if (x % 2) return config_error("expected an even number, found " + std::to_string(x));
    return x / 2;
  };
  auto quarter = [&](int x) -> Result<int> {
    LANCET_ASSIGN(const int h, half(x));
    LANCET_ASSIGN(const int q, half(h));
    return q;
  };
  CHECK(*quarter(12) == 3);
  CHECK(quarter(6).error().message == "expected an even number, found 3");
  CHECK(quarter(6).error().code == ExitCode::config);
}

TEST_CASE("the mean of many stochastic roundings is the unrounded number") {
  for (const float x : {1.F + 0x1p-10F, -3.14159F, 1e-3F, 0x1p-120F * 1.3F}) {
    double sum = 0;
    constexpr int count = 1 << 16;
    const float step = std::ldexp(1.F, std::ilogb(x) - 7);
    for (int i = 0; i < count; ++i) {
      const float rounded = to_f32(round_stochastically(x, RoundingBits(3, 1)(i)));
      REQUIRE(std::abs(rounded - x) < step);
      sum += (double(rounded) - x) / step;
    }
    INFO("x " << x);
    CHECK(std::abs(sum / count) < 4 * 0.5 / std::sqrt(double(count)));  // at most four standard deviations
  }
}

TEST_CASE("values that bf16 represents exactly, infinities and NaN are not rounded") {
  for (const float x : {0.F, -0.F, 1.F, -2.5F, std::numeric_limits<float>::infinity()})
    for (const std::uint32_t bits : {0u, 0xffffffffu}) CHECK(to_f32(round_stochastically(x, bits)) == x);
  CHECK(std::isnan(to_f32(round_stochastically(std::nanf(""), 0xffffffffu))));
}

TEST_CASE("rounding bits differ by tensor, step and element") {
  int equal = 0, ones = 0;
  for (int i = 0; i < 4096; ++i) {
    equal += RoundingBits(1, 5)(i) == RoundingBits(2, 5)(i);
    equal += RoundingBits(1, 5)(i) == RoundingBits(1, 6)(i);
    equal += RoundingBits(1, 5)(i) == RoundingBits(1, 5)(i + 1);
    ones += __builtin_popcount(RoundingBits(1, 5)(i) >> 16);
  }
  CHECK(equal == 0);
  CHECK(std::abs(ones - 4096 * 8) < 4 * 128);  // half of 65,536 bits; a standard deviation is 128
}

TEST_CASE("flat shards cover every element once, in order, in whole cache lines") {
  for (const std::int64_t n : {1, 15, 16, 17, 100, 768, 4096, 1'000'003})
    for (const std::int64_t ranks : {1, 2, 3, 4, 7, 64}) {
      const std::int64_t s = flat_shard_elements(n, ranks);
      INFO(n << " elements, " << ranks << " ranks, shards of " << s);
      CHECK(s % flat_shard_step == 0);
      CHECK(s * ranks >= n);
      CHECK((s - flat_shard_step) * ranks < n);  // no shorter one would do
      std::int64_t next = 0;
      for (std::int64_t place = 0; place < ranks; ++place) {
        const FlatRange range = flat_range(n, ranks, place);
        CHECK(range.begin == next);
        CHECK(range.size() <= s);
        next = range.end;
      }
      CHECK(next == n);
    }
}

TEST_CASE("flat shards of small tensors may be all padding") {
  CHECK(flat_shard_elements(20, 4) == 16);
  CHECK(flat_range(20, 4, 0) == FlatRange{0, 16});
  CHECK(flat_range(20, 4, 1) == FlatRange{16, 20});
  CHECK(flat_range(20, 4, 2) == FlatRange{20, 20});
  CHECK(flat_shard_elements(768, 4) == 192);
}

namespace {

std::string refused(const std::string& text) {
  const auto read = parse_json(text, "f.json", ExitCode::data);
  REQUIRE_FALSE(read.ok());
  CHECK(read.error().code == ExitCode::data);
  return read.error().message;
}

}  // namespace

TEST_CASE("a JSON text gives its tree, or an error of one line with the position") {
  CHECK(parse_json(R"({"a": [1, 2]})", "f.json", ExitCode::data)->at("a").at(1) == 2);
  CHECK(refused("{\n  \"a\": 1,\n  ,}").starts_with("f.json:3:3: expected JSON: unexpected ','"));
  CHECK(refused(std::string("{}\n\0{", 5)) == "f.json:2:1: expected JSON, found a NUL byte");
  for (const char* blank : {"", " \n"}) CHECK(refused(blank) == "f.json: expected JSON, found no text");
  CHECK(refused("[").starts_with("f.json:1:2: expected JSON: unexpected end of input"));
  CHECK(refused("9E9999999") == "f.json: expected JSON: number overflow parsing '9E9999999'");
  CHECK(refused(R"({"a": {"b": 1, "c": 2, "b": 3}})") == "f.json: key 'a.b' appears twice");
  CHECK(refused(R"({"a": [1, {"b": [2]}, {"c": 3, "c": 4}]})") == "f.json: key 'a[2].c' appears twice");
  CHECK(parse_json(R"([{"a": 1}, {"a": 1}])", "f.json", ExitCode::data).ok());  // in two objects
}

TEST_CASE("JSON nests up to the limit and no deeper") {
  const auto nested = [](int depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  CHECK(parse_json(nested(most_json_depth), "f.json", ExitCode::data).ok());
  for (const std::string& text : {nested(most_json_depth + 1), nested(100'000), std::string(100'000, '[')})
    CHECK(refused(text) == "f.json: expected JSON of at most 100 nested brackets, found more");
}

TEST_CASE("comments are skipped where they are allowed") {
  const std::string text = "// a\n{/* b */\"c\": 3}";
  CHECK(parse_json(text, "f.json", ExitCode::config, JsonComments::ignored)->at("c") == 3);
  CHECK(refused(text).starts_with("f.json:1:1: expected JSON"));
}

TEST_CASE("an ordered tree keeps the order of the text") {
  const auto tree = parse_json<nlohmann::ordered_json>(R"({"b":1,"a":2})", "f.json", ExitCode::data);
  REQUIRE(tree.ok());
  CHECK(tree->dump() == R"({"b":1,"a":2})");
}

namespace {

// True if this file system supports files without names.
bool holds_nameless(const std::string& folder) {
  const int fd = ::open(folder.c_str(), O_WRONLY | O_TMPFILE, 0600);
  if (fd >= 0) ::close(fd);
  return fd >= 0;
}

std::string content_of(const std::string& path) { return *read_file(path, "a text"); }

}  // namespace

TEST_CASE("a committed file is complete and replaces the one before") {
  const test::TemporaryFolder folder;
  const std::string path = folder.write("text", "the one before");
  {
    auto file = test::good(AtomicFile::create(path));
    REQUIRE(file->append("half", 4).ok());
    CHECK(content_of(path) == "the one before");
  }
  CHECK(content_of(path) == "the one before");  // destroyed without a commit
  auto file = test::good(AtomicFile::create(path));
  REQUIRE(file->append("the whole", 9).ok());
  REQUIRE(file->overwrite(4, "W", 1).ok());
  REQUIRE(file->commit().ok());
  CHECK(content_of(path) == "the Whole");
  CHECK(folder.names() == std::vector<std::string>{"text"});
}

TEST_CASE("a file written at a link to no file is made where the links lead") {
  namespace fs = std::filesystem;
  const test::TemporaryFolder folder;
  fs::create_directories(folder / "far/away");
  fs::create_symlink("away/text", folder / "far/second");  // relative to the folder of the link
  fs::create_symlink(folder / "far/second", folder / "first");
  CHECK(check_writable(folder / "first").ok());
  for (const char* content : {"new", "newer"}) {
    CHECK(write_file(folder / "first", content).ok());
    CHECK(content_of(folder / "far/away/text") == content);
    CHECK(fs::is_symlink(folder / "first"));
    CHECK(fs::is_symlink(folder / "far/second"));
  }
  CHECK(folder.names().size() == 2);
  fs::create_symlink(folder / "none/text", folder / "lost");
  CHECK(test::refused(check_writable(folder / "lost")).message ==
        fmt::format("{}: expected a folder that can be written to, for {}, found: No such file or directory",
                    folder / "none", folder / "lost"));
  CHECK(test::refused(write_file(folder / "lost", "")).message ==
        (folder / "lost") + ": cannot create the file: No such file or directory");
  fs::create_symlink("circle", folder / "circle");
  CHECK(test::refused(write_file(folder / "circle", "")).message ==
        (folder / "circle") + ": expected a file to write, found links that lead to no file");
}

TEST_CASE("a process killed while it writes leaves no file if the file system supports unnamed files") {
  const test::TemporaryFolder folder;
  const pid_t writer = ::fork();
  if (writer == 0) {
    auto file = AtomicFile::create(folder / "text");
    if (file.ok() && file->append("half", 4).ok()) ::raise(SIGKILL);
    ::_exit(1);
  }
  int status = 0;
  REQUIRE(::waitpid(writer, &status, 0) == writer);
  REQUIRE(WIFSIGNALED(status));
  CHECK(folder.names().size() == (holds_nameless(folder / ".") ? 0u : 1u));
}

TEST_CASE("what a process that was killed before the rename has left is removed by the next writer of the path") {
  const test::TemporaryFolder folder;
  const std::string path = folder.write("text", "the one before");
  const pid_t writer = ::fork();
  if (writer == 0) {
    auto file = AtomicFile::create(path);
    if (file.ok() && file->append("the whole", 9).ok() && file->sync().ok()) ::raise(SIGKILL);
    ::_exit(1);
  }
  int status = 0;
  REQUIRE(::waitpid(writer, &status, 0) == writer);
  REQUIRE(WIFSIGNALED(status));
  CHECK(folder.names().size() == 2);
  CHECK(write_file(folder / "other", "").ok());
  CHECK(folder.names().size() == 3);  // it is no leftover of that one
  auto writing = test::good(AtomicFile::create(path));
  REQUIRE(writing->sync().ok());
  CHECK(folder.names().size() == 3);  // the new one's in place of the killed one's
  CHECK(write_file(path, "the new one").ok());
  CHECK(folder.names().size() == 3);  // that of a process that runs stays
  CHECK(content_of(path) == "the new one");
}

}  // namespace lancet
