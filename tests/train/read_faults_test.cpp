// A failing read on one rank while a run loads its checkpoint: all ranks exit together or fall back together.
#include <catch2/catch.hpp>
#include <mutex>

#include "log_capture.h"
#include "temporary_folder.h"
#include "train/support.h"

namespace lancet {
namespace {

namespace fs = std::filesystem;

// The real file system; reads of files with this word in their path fail from the second on.
class FailingReads final : public checkpoint::FileSystem {
 public:
  FailingReads(std::string word, Error error) : word_(std::move(word)), error_(std::move(error)) {}
  Result<std::unique_ptr<checkpoint::OutputFile>> create(const fs::path& path) override { return disk_.create(path); }
  Status make_folder(const fs::path& path) override { return disk_.make_folder(path); }
  Status sync_folder(const fs::path& path) override { return disk_.sync_folder(path); }
  Status rename(const fs::path& from, const fs::path& to) override { return disk_.rename(from, to); }
  Status remove(const fs::path& path) override { return disk_.remove(path); }
  Status read(const checkpoint::InputFile& file, std::uint64_t at, std::span<std::byte> bytes) override {
    {
      const std::lock_guard lock(mutex_);
      if (file.path().string().find(word_) != std::string::npos && reads_++ > 0) return error_;
    }
    return disk_.read(file, at, bytes);
  }

 private:
  checkpoint::FileSystem& disk_ = checkpoint::disk();
  const std::string word_;
  const Error error_;
  std::mutex mutex_;
  int reads_ = 0;
};

// The results of two ranks; the second reads from `files`, if given.
std::array<Error, 2> train_on(const config::Config& config, checkpoint::FileSystem* files) {
  std::array<Error, 2> ends{Error{ExitCode::done, "", false}, Error{ExitCode::done, "", false}};
  const Status status = comm::run_inproc(2, [&](comm::Communicator& world) -> Status {
    train::TrainerOptions options{.local_ranks = 2};
    if (world.rank() == 1) options.files = files;
    if (const Status mine = train::train(config, world, options); !mine.ok())
      ends[std::size_t(world.rank())] = mine.error();
    return {};
  });
  REQUIRE(status.ok());
  return ends;
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

// Checkpoints after steps 2 and 4 of 8.
config::Config stopped_run(const test::TemporaryFolder& folder) {
  auto config = test::small_config();
  config.train.steps = 8;
  config.train.save_interval = 2;
  config.train.stop_after = 4;
  config.log.run_dir = folder / "run";
  for (const Error& end : train_on(config, nullptr)) REQUIRE(end.code == ExitCode::saved);
  config.train.stop_after = 5;
  return config;
}

}  // namespace

TEST_CASE("a read error of the system on one rank ends all ranks with it, and changes no checkpoint") {
  const test::TemporaryFolder folder;
  const auto config = stopped_run(folder);
  const std::string checkpoints = folder / "run/checkpoints";
  const auto before = names_in(checkpoints);
  FailingReads files("step-000004", internal_error("injected: Input/output error"));
  for (const Error& end : train_on(config, &files)) {
    CHECK(end.code == ExitCode::internal);
    CHECK(end.message == "rank 1: injected: Input/output error");
    CHECK(end.agreed);  // so that one rank prints it
  }
  CHECK(names_in(checkpoints) == before);
  const test::LogCapture log;
  for (const Error& end : train_on(config, nullptr)) CHECK(end.code == ExitCode::saved);
  CHECK(log.count("resume     after step 4") > 0);
}

TEST_CASE("a checkpoint that one rank finds damaged is skipped by all") {
  const test::TemporaryFolder folder;
  const auto config = stopped_run(folder);
  FailingReads files("step-000004", data_error("injected: found the end"));
  const test::LogCapture log;
  for (const Error& end : train_on(config, &files)) CHECK(end.code == ExitCode::saved);
  CHECK(log.count("warning: not whole, left out: rank 1: injected: found the end") == 1);
  CHECK(log.count("resume     after step 2") == 2);  // on both ranks
  CHECK(fs::exists(folder / "run/checkpoints/step-000005"));
}

}  // namespace lancet
