// Checkpoints under faults: every fault of the file layer at every call, crashes at every call, damaged files.
#include "lancet/checkpoint/checkpoint.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <thread>

#include "blocking_file_system.h"
#include "checkpoint/support.h"
#include "faulty_file_system.h"
#include "good.h"
#include "lancet/base/hash.h"

namespace lancet::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::Fault;
using test::FaultyFileSystem;
using test::SmallCheckpoint;
using test::TemporaryFolder;

// The steps whose checkpoints are complete and hold the saved content, newest first.
std::vector<std::int64_t> whole(const fs::path& checkpoints) {
  std::vector<std::int64_t> steps;
  for (const std::int64_t step : steps_in(checkpoints))
    if (SmallCheckpoint().check(checkpoints / folder_name(step), step).ok()) steps.push_back(step);
  return steps;
}

std::string slurp(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
void spit(const fs::path& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

using Steps = std::vector<std::int64_t>;

}  // namespace

TEST_CASE("folder names and steps") {
  CHECK(folder_name(100) == "step-000100");
  CHECK(step_of("step-000100") == 100);
  CHECK(step_of("step-12345678") == 12345678);
  for (const char* name :
       {"step-100", "step-000100.tmp", "step-", "step--00001", "step-0000010", "xstep-000100", "step-+00001"})
    CHECK_FALSE(step_of(name));
}

TEST_CASE("a checkpoint is read back, and old checkpoints are removed") {
  const TemporaryFolder folder;
  const fs::path at = folder / "checkpoints";
  for (const int step : {10, 20, 30, 40, 50}) REQUIRE(SmallCheckpoint().save(disk(), at, step).ok());
  CHECK(whole(at) == Steps{50, 40, 30, 20, 10});
  REQUIRE(prune(disk(), at, 0).ok());
  CHECK(whole(at).size() == 5);
  spit(at / "step-000050" / "manifest.json", "{}");  // not a checkpoint, so it is neither counted nor removed
  REQUIRE(prune(disk(), at, 3).ok());
  CHECK(steps_in(at) == Steps{50, 40, 30, 20});
  CHECK(whole(at) == Steps{40, 30, 20});
  REQUIRE(SmallCheckpoint().save(disk(), at, 50).ok());  // in its position
  CHECK(whole(at) == Steps{50, 40, 30, 20});
  const auto aside = test::good(set_aside_after(disk(), at, 30));
  CHECK(*aside == 2);
  CHECK(whole(at) == Steps{30, 20});
  CHECK(fs::exists(at / "step-000050.old" / "manifest.json"));
  // One generation of folders that were set aside is kept.
  CHECK(*set_aside_after(disk(), at, 30) == 0);
  CHECK(fs::exists(at / "step-000040.old"));
  CHECK(*set_aside_after(disk(), at, 20) == 1);
  CHECK(fs::exists(at / "step-000030.old" / "manifest.json"));
  CHECK_FALSE(fs::exists(at / "step-000040.old"));
  CHECK_FALSE(fs::exists(at / "step-000050.old"));
}

TEST_CASE("a checkpoint that cannot be read at the moment is not treated as damaged") {
  const TemporaryFolder folder;
  REQUIRE(SmallCheckpoint().save(disk(), folder / "", 1).ok());
  const fs::path at = folder / "step-000001";
  const auto opened = test::good(Checkpoint::open(at));
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  const int next = ::open("/dev/null", O_RDONLY);  // the lowest free number: all below it are taken
  REQUIRE(next >= 0);
  std::vector<int> gaps{next};
  while (gaps.back() < 50) gaps.push_back(::dup(next));
  const rlimit few{rlim_t(gaps.back() + 1), before.rlim_max};
  REQUIRE(setrlimit(RLIMIT_NOFILE, &few) == 0);
  const auto again = Checkpoint::open(at);
  const Status verified = test::verify(*opened);
  ::close(gaps.back());  // one free descriptor is enough, whatever the number of shards
  const auto with_one = Checkpoint::open(at);
  const Status with_one_verified = test::verify(*opened);
  gaps.pop_back();
  for (const int fd : gaps) ::close(fd);
  REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
  REQUIRE_FALSE(again.ok());
  CHECK(again.error().code == ExitCode::internal);
  CHECK(again.error().message == (at / "manifest.json").string() + ": cannot be opened: Too many open files");
  REQUIRE_FALSE(verified.ok());
  CHECK(verified.error().code == ExitCode::internal);
  CHECK(with_one.ok());
  CHECK(with_one_verified.ok());
}

TEST_CASE("a folder that cannot be listed is not treated as one without checkpoints") {
  const TemporaryFolder folder;
  CHECK(list_steps(folder / "none")->empty());
  fs::create_symlink("loop", folder / "loop");
  const Error steps = test::refused(list_steps(folder / "loop"));
  CHECK(steps.code == ExitCode::internal);
  CHECK(steps.message.starts_with(folder / "loop" + ": cannot be read: "));
}

TEST_CASE("tensors are read into memory by several threads, and each is checked") {
  const TemporaryFolder folder;
  REQUIRE(SmallCheckpoint().save(disk(), folder / "", 1).ok());
  const fs::path at = folder / "step-000001";
  const auto opened = test::good(Checkpoint::open(at));
  std::map<std::string, std::vector<std::byte>> found;
  std::map<std::string, Checkpoint::Target> targets;
  std::uint64_t seen = 0;
  for (const std::string& name : opened->names()) {
    found[name].resize(opened->find(name)->bytes());
    targets[name].memory = found[name].data();
  }
  targets["a"].sink = [&](std::uint64_t from, std::span<const std::byte> bytes) -> Status {
    CHECK(bytes.data() == found["a"].data() + from);  // the sink sees the bytes in their destination
    seen += bytes.size();
    return {};
  };
  REQUIRE(opened->load(targets, GENERATE(1, 3, 16)).ok());
  CHECK(seen == 2800);
  for (const auto& [name, bytes] : found) CHECK(bytes == SmallCheckpoint::content(name, bytes.size(), 1));
  targets["a"].sink = [](std::uint64_t, std::span<const std::byte>) -> Status { return internal_error("no room"); };
  CHECK(opened->load(targets, 3).error().message == "no room");
  targets["a"].sink = [](std::uint64_t, std::span<const std::byte>) -> Status { throw std::bad_alloc(); };
  const Status thrown = opened->load(targets, 3);
  CHECK(thrown.error().code == ExitCode::internal);
  CHECK(thrown.error().message.starts_with("cannot allocate memory: "));
}

TEST_CASE("weights with NaN or infinity are not saved") {
  const TemporaryFolder folder;
  for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::quiet_NaN(), 1e38f}) {
    for (const std::size_t place : {0, 100, 199}) {
      BackgroundWriter writer(disk(), 1);
      writer.write(folder / "t", {{"model-1.safetensors", {{"a", "F32", {3}}, {"b", "F32", {20, 10}}}, {}, true}});
      const auto block = writer.take(1, std::chrono::minutes(1)).front();
      const std::size_t bytes = 203 * sizeof(float);
      std::memset(block.data(), 0, bytes);
      std::memcpy(block.data() + (3 + place) * sizeof bad, &bad, sizeof bad);
      writer.give(std::span(&bytes, 1));
      REQUIRE(writer.wait_finished(std::chrono::minutes(1)));
      const Status status = writer.collect();
      CHECK(status.ok() == std::isfinite(bad));
      if (!status.ok())
        CHECK(status.error().message ==
              "b: expected finite numbers, found a non-finite one at element " + std::to_string(place));
    }
  }
}

TEST_CASE("a hanging disk blocks no caller, and an abandoned save frees the buffer for the next one") {
  const TemporaryFolder folder;
  test::BlockingFileSystem files;
  files.hold();
  BackgroundWriter writer(files, 1);
  const std::int64_t block = BackgroundWriter::block_bytes;
  writer.write(folder / "t", {{"model-1.safetensors", {{"a", "U8", {3 * block}}}, {}}});
  const auto fill = [&] {
    const auto blocks = writer.take(1, std::chrono::milliseconds(1));
    if (blocks.empty()) return false;
    const std::size_t count = block;
    writer.give(std::span(&count, 1));
    return true;
  };
  REQUIRE(writer.take(1, std::chrono::minutes(1)).size() == 1);
  const std::size_t count = block;
  writer.give(std::span(&count, 1));
  CHECK_FALSE(fill());
  files.wait_until_asked();
  writer.abandon("slow");
  CHECK_FALSE(writer.wait_finished(std::chrono::milliseconds(1)));
  files.release();
  REQUIRE(writer.wait_finished(std::chrono::minutes(1)));
  const Error status = test::refused(writer.collect());
  CHECK(status.message == "slow");
  REQUIRE(SmallCheckpoint().save(files, folder / "", 2).ok());
  writer.write(folder / "u", {{"model-1.safetensors", {{"a", "U8", {block}}}, {}}});
  REQUIRE(writer.take(1, std::chrono::minutes(1)).size() == 1);
  writer.give(std::span(&count, 1));
  REQUIRE(writer.wait_finished(std::chrono::minutes(1)));
  CHECK(writer.collect().ok());
}

TEST_CASE("a destroyed writer drops the blocks that are not on the disk yet") {
  constexpr std::int64_t blocks = 4;
  constexpr int begun = 2;  // the header, and the block that the thread is writing
  const TemporaryFolder folder;
  // The writer has to be stopped before the disk is released, and the test cannot observe that moment. If it was not,
  // all blocks are written; the test then repeats with more time.
  int writes = 0;
  for (auto time = std::chrono::milliseconds(10); time < std::chrono::seconds(5); time *= 4) {
    test::BlockingFileSystem files;
    files.hold();
    auto writer = std::make_unique<BackgroundWriter>(files, blocks * BackgroundWriter::block_bytes);
    const std::int64_t block = BackgroundWriter::block_bytes;
    writer->write(folder / std::to_string(time.count()),
                  {{"model-1.safetensors", {{"a", "U8", {blocks * block}}}, {}}});
    REQUIRE(writer->take(blocks, std::chrono::minutes(1)).size() == blocks);
    writer->give(std::vector<std::size_t>(blocks, BackgroundWriter::block_bytes));
    files.wait_until_asked();
    std::thread end([&] { writer.reset(); });
    std::this_thread::sleep_for(time);
    files.release();
    end.join();
    writes = files.writes();
    if (writes <= begun) break;
  }
  CHECK(writes <= begun);
}

TEST_CASE("missing tensors are named, and shards that are not needed are not read") {
  const TemporaryFolder folder;
  REQUIRE(SmallCheckpoint().save(disk(), folder / "", 1).ok());
  const fs::path at = folder / "step-000001";
  const auto opened = test::good(Checkpoint::open(at));
  CHECK(opened->names() == std::vector<std::string>{"a", "b", "c", "d.m"});
  CHECK(to_string(*opened->find("c")) == "F32[2,2]");
  CHECK(opened->manifest().optimizer == "sgd");
  CHECK(opened->load({{"x", {}}}, 1).error().message == at.string() + ": expected the tensor 'x', found none");
  std::string shard = slurp(at / "model-00002-of-00002.safetensors");
  shard.back() ^= 1;
  spit(at / "model-00002-of-00002.safetensors", shard);
  CHECK(opened->load({{"a", {}}}, 1).ok());
  CHECK(test::verify(*opened).error().message.find("model-00002-of-00002.safetensors: 'd.m': expected the checksum ") !=
        std::string::npos);
  CHECK(opened->load({{"c", {}}}, 1).ok());  // in the same shard
  CHECK(opened->load({{"d.m", {}}}, 1).error().message.find("'d.m': expected the checksum ") != std::string::npos);
}

TEST_CASE("short writes are continued") {
  const TemporaryFolder folder;
  FaultyFileSystem files(Fault::short_write, GENERATE(0, 1));
  REQUIRE(SmallCheckpoint().save(files, folder / "", 1).ok());
  CHECK(files.calls > 4);
  CHECK(whole(folder / "") == Steps{1});
}

TEST_CASE("any failing call makes the save fail, and the older checkpoints stay") {
  const Fault fault = GENERATE(Fault::no_space, Fault::io_error, Fault::failed_rename);
  int failures = 0;
  for (int call = 0;; ++call) {
    const TemporaryFolder folder;
    REQUIRE(SmallCheckpoint().save(disk(), folder / "", 1).ok());
    FaultyFileSystem files(fault, call);
    const Status saved = SmallCheckpoint().save(files, folder / "", 2);
    if (saved.ok()) {
      CHECK(files.calls <= call);
      CHECK(whole(folder / "") == Steps{2, 1});
      break;
    }
    ++failures;
    INFO(call << ": " << saved.error().message);
    CHECK(saved.error().code == ExitCode::data);
    CHECK(saved.error().message.find("injected") != std::string::npos);
    const auto found = whole(folder / "");
    CHECK(found.back() == 1);
    CHECK(steps_in(folder / "") == found);  // no folder that only looks like a checkpoint
    REQUIRE(remove_leftovers(disk(), folder / "").ok());
    REQUIRE(SmallCheckpoint().save(disk(), folder / "", 3).ok());  // the next one succeeds
    CHECK(whole(folder / "").front() == 3);
  }
  CHECK(failures == (fault == Fault::failed_rename ? 1 : fault == Fault::no_space ? 6 : 11));
}

TEST_CASE("a crash at any call keeps the old checkpoint, and the new one if the save reported success") {
  int crashes = 0;
  for (int call = 0;; ++call) {
    const TemporaryFolder folder;
    const fs::path at = folder / "checkpoints";
    fs::create_directories(at);
    REQUIRE(SmallCheckpoint().save(disk(), at, 1).ok());
    FaultyFileSystem files(Fault::crash, call);
    const Status saved = SmallCheckpoint().save(files, at, 2);
    files.lose_unsynced();
    const auto found = whole(at);
    INFO(call);
    REQUIRE_FALSE(found.empty());
    CHECK(found.back() == 1);
    CHECK(steps_in(at) == found);
    if (saved.ok()) {
      CHECK(found == Steps{2, 1});
      break;
    }
    ++crashes;
  }
  CHECK(crashes > 15);
}

TEST_CASE("a shard that another rank did not write to this folder is reported as missing") {
  const TemporaryFolder folder;
  Manifest manifest;
  manifest.step = 7;
  manifest.files = {{"model-00001-of-00001.safetensors", 10, 0, {}}};
  REQUIRE(disk().make_folder(temporary_folder(folder / "", 7)).ok());
  const Error status = test::refused(commit(disk(), folder / "", manifest));
  CHECK(status.message.find("found no such file; do all ranks share this folder?") != std::string::npos);
  CHECK(steps_in(folder / "").empty());
}

TEST_CASE("500 damaged checkpoints: each is detected, none crashes") {
  const TemporaryFolder folder;
  REQUIRE(SmallCheckpoint().save(disk(), folder / "", 1).ok());
  const fs::path sound = folder / "step-000001", at = folder / "damaged";
  const std::vector<std::string> names{"manifest.json", "model-00001-of-00002.safetensors",
                                       "model-00002-of-00002.safetensors"};
  std::mt19937 random(GENERATE(1, 2, 3, 4, 5));
  for (int i = 0; i < 100; ++i) {
    fs::remove_all(at);
    fs::copy(sound, at);
    const fs::path file = at / names[random() % 3], other = at / names[1 + random() % 2];
    std::string text = slurp(file);
    const int kind = int(random() % 9);
    switch (kind) {
      case 0:
        text[random() % text.size()] ^= char(1 << random() % 8);
        break;  // a bit flips
      case 1:
        text.resize(random() % text.size());
        break;  // cut short
      case 2:
        text.append(1 + random() % 20, char(random()));
        break;  // longer
      case 3:
        std::memset(text.data() + random() % (text.size() - 1), 0, 1);
        break;  // may stay as it was
      case 4:
        text.clear();
        fs::remove(file);
        break;  // file removed
      case 5:
        text = slurp(other == file ? at / names[0] : other);
        break;  // content of another file
      default:
        fs::remove(file);
        if (kind == 6) fs::create_directory(file);
        if (kind == 7) REQUIRE(::mkfifo(file.c_str(), 0600) == 0);
        if (kind == 8) fs::create_symlink("/dev/zero", file);
        break;  // something else than a file
    }
    const bool whole = kind != 4 && kind < 6, same = whole && text == slurp(file);
    if (whole) spit(file, text);
    INFO("kind " << kind << " of " << file);
    const auto opened = Checkpoint::open(at);
    const Status status = opened.ok() ? test::verify(*opened) : Status(opened.error());
    CHECK(status.ok() == same);
    if (!status.ok()) {
      CHECK(status.error().code == ExitCode::data);
      CHECK(status.error().message.starts_with(at.string()));
      CHECK(status.error().message.find('\n') == std::string::npos);
    }
  }
  // Two shards that are swapped.
  fs::remove_all(at);
  fs::copy(sound, at);
  fs::rename(at / names[1], at / "x");
  fs::rename(at / names[2], at / names[1]);
  fs::rename(at / "x", at / names[2]);
  CHECK_FALSE(Checkpoint::open(at).ok());
}

TEST_CASE("a manifest survives a round trip, and no name in it points outside its folder") {
  Manifest m;
  m.step = 12;
  m.tokens = std::int64_t{1} << 60;
  m.skipped_steps = 3;
  m.next_sample = 96;
  m.rows = 8;
  m.seed = std::numeric_limits<std::int64_t>::max();
  m.ranks = 4;
  m.experts = 16;
  m.micro_batch_size = 2;
  m.gradient_accumulation_steps = 3;
  m.optimizer = "adamw";
  m.lr_schedule = "cosine";
  m.lr = 0.1;
  m.config = R"({"train": {"lr": 1e-05}, "threads": 1})";
  m.plan = "0123";
  m.files = {{"model-00001-of-00001.safetensors", 100, ~std::uint64_t{0}, {1, ~std::uint64_t{1}}}};
  const std::string text = to_json(m);
  const auto back = test::good(parse_manifest(text, "m"));
  CHECK(to_json(*back) == text);
  CHECK(back->lr == 0.1);
  CHECK(back->files == m.files);
  CHECK(back->skips_in_a_row == 0);
  CHECK(text.find("skips_in_a_row") == text.npos);
  CHECK(text.find("tokenizer") == text.npos);
  m.skips_in_a_row = 2;
  m.tokenizer_hash = 0x0fedcba987654321;
  CHECK(parse_manifest(to_json(m), "m")->skips_in_a_row == 2);
  CHECK(parse_manifest(to_json(m), "m")->tokenizer_hash == m.tokenizer_hash);
  CHECK(back->config.find("\"lr\": 1e-05") != std::string::npos);

  auto error = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    changed.replace(changed.find(from), from.size(), to);
    CHECK(parse_manifest(changed, "m").error().message.find("m: expected the checksum ") == 0);
    const Error fields = test::refused(parse_manifest_fields(changed, "m"));
    CHECK(fields.code == ExitCode::data);
    return fields.message;
  };
  for (const char* name : {"../x.safetensors", "/etc/x.safetensors", "a/b.safetensors", ".safetensors", "x.bin", "",
                           "..\\\\x.safetensors", "x\\u0000.safetensors"})
    CHECK(error("model-00001-of-00001.safetensors", name)
              .find("expected the name of a safetensors file in this folder, found") != std::string::npos);
  CHECK(error("\"step\": 12", "\"step\": -1").find("m: step: expected a whole number in [0, ") == 0);
  CHECK(error("\"skipped_steps\": 3", "\"skipped_steps\": 13") ==
        "m: skipped_steps: expected a whole number in [0, 12]");
  CHECK(error("\"step\": 12", "\"steps\": 12") == "m: expected 'step', found none");
  CHECK(error("\"format\": 2", "\"format\": 1") == "m: format: expected 2, found 1");
  CHECK(error("\"next_step\": 12", "\"next_step\": 13") == "m: random: next_step: expected the step");
  CHECK(error("\"plan\": ", "\"more\": 1, \"plan\": ") == "m: unknown key 'more'");
  CHECK(error("\"plan\": ", "\"tokenizer\": \"12\", \"plan\": ") == "m: tokenizer: expected 16 hexadecimal digits");
  CHECK(error("\"adamw\"", "\"adam\"") == "m: optimizer: expected adamw, sgd or none, found 'adam'");
  CHECK(error("ffffffffffffffff", "fffffffffffffffg").ends_with("header_xxh3: expected 16 hexadecimal digits"));
  CHECK(error("0000000000000001", "000000000000001")
            .ends_with("tensors_xxh3: expected 16 hexadecimal digits for each tensor"));
  CHECK(error("0000000000000001", "000000000000001x")
            .ends_with("tensors_xxh3: expected 16 hexadecimal digits for each tensor"));
  CHECK(error("\"files\": [", "\"files\": [" + std::string(100, '[') + std::string(100, ']') + ",")
            .find("nested brackets") != std::string::npos);
  CHECK(parse_manifest("", "m").error().message == "m: expected a manifest that ends with its checksum, found none");
}

TEST_CASE("more bytes than the buffer holds pass through it") {
  const TemporaryFolder folder;
  BackgroundWriter writer(disk(), 1);
  const std::uint64_t total = 3 * BackgroundWriter::block_bytes + 12;
  writer.write(folder / "t", {{"model-1.safetensors", {{"a", "U8", {std::int64_t(total - 100)}}}, {}},
                              {"model-2.safetensors", {{"b", "U8", {100}}}, {}}});
  std::uint64_t given = 0;
  std::string all;
  while (given < total) {
    const auto blocks = writer.take(2, std::chrono::minutes(1));
    REQUIRE(blocks.size() == 1);
    const std::size_t count = std::min<std::uint64_t>(blocks[0].size(), total - given);
    for (std::size_t i = 0; i < count; ++i) blocks[0][i] = std::byte((given + i) % 251);
    writer.give(std::span(&count, 1));
    given += count;
  }
  REQUIRE(writer.wait_finished(std::chrono::seconds(60)));
  REQUIRE(writer.collect().ok());
  for (const auto& shard : writer.shard_files()) {
    const std::string text = slurp(folder / ("t/" + shard.name));
    CHECK(text.size() == shard.bytes);
    const auto file = test::good(SafetensorsFile::open(folder / ("t/" + shard.name)));
    CHECK(hash64(text.substr(0, file->data_start())) == shard.header_xxh3);
    CHECK(shard.tensors_xxh3 == std::vector<std::uint64_t>{hash64(text.substr(file->data_start()))});
    all += text.substr(file->data_start());
  }
  REQUIRE(all.size() == total);
  bool same = true;
  for (std::size_t i = 0; i < all.size(); ++i) same &= static_cast<unsigned char>(all[i]) == i % 251;
  CHECK(same);
}

}  // namespace lancet::checkpoint
