// A call that takes effect and reports a failure, as network file systems do.
#include <catch2/catch.hpp>

#include "checkpoint/support.h"

namespace lancet::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::SmallCheckpoint;
using test::TemporaryFolder;

// The real file system; call number `at` (from 0) that changes something takes effect and then reports a stale handle.
class LateErrors final : public FileSystem {
 public:
  explicit LateErrors(int at) : at_(at) {}
  Result<std::unique_ptr<OutputFile>> create(const fs::path& path) override {
    LANCET_ASSIGN(auto file, disk_.create(path));
    LANCET_TRY(report({}, path));
    return std::unique_ptr<OutputFile>(std::make_unique<File>(*this, path, std::move(file)));
  }
  Status make_folder(const fs::path& path) override { return report(disk_.make_folder(path), path); }
  Status sync_folder(const fs::path& path) override { return report(disk_.sync_folder(path), path); }
  Status rename(const fs::path& from, const fs::path& to) override { return report(disk_.rename(from, to), from); }
  Status remove(const fs::path& path) override { return report(disk_.remove(path), path); }

  bool happened() const { return calls_ > at_; }

 private:
  class File final : public OutputFile {
   public:
    File(LateErrors& owner, fs::path path, std::unique_ptr<OutputFile> file)
        : owner_(owner), path_(std::move(path)), file_(std::move(file)) {}
    Result<std::size_t> write_some(std::span<const std::byte> bytes) override {
      LANCET_ASSIGN(const std::size_t written, file_->write_some(bytes));
      LANCET_TRY(owner_.report({}, path_));
      return written;
    }
    Status sync() override { return owner_.report(file_->sync(), path_); }
    Status close() override { return owner_.report(file_->close(), path_); }

   private:
    LateErrors& owner_;
    const fs::path path_;
    std::unique_ptr<OutputFile> file_;
  };

  Status report(Status done, const fs::path& path) {
    if (!done.ok() || calls_++ != at_) return done;
    return data_error(path.string() + ": injected: Stale file handle");
  }

  FileSystem& disk_ = disk();
  const int at_;
  int calls_ = 0;
};

}  // namespace

TEST_CASE("a call that succeeds but reports failure: checkpoints stay complete, and the next save works") {
  int failures = 0;
  for (int call = 0;; ++call) {
    const TemporaryFolder folder;
    const fs::path at = folder / "checkpoints";
    REQUIRE(SmallCheckpoint().save(disk(), at, 1).ok());
    LateErrors files(call);
    const Status saved = SmallCheckpoint().save(files, at, 2);
    INFO(call << ": " << (saved.ok() ? "saved" : saved.error().message));
    CHECK(saved.ok() == !files.happened());
    for (const std::int64_t step : steps_in(at)) CHECK(SmallCheckpoint().check(at / folder_name(step), step).ok());
    CHECK(steps_in(at).back() == 1);
    REQUIRE(remove_leftovers(disk(), at).ok());
    for (const int step : {2, 3}) REQUIRE(SmallCheckpoint().save(disk(), at, step).ok());  // shard 2 replaces it
    CHECK(steps_in(at) == std::vector<std::int64_t>{3, 2, 1});
    if (saved.ok()) break;
    CHECK(saved.error().message.find("injected: Stale file handle") != std::string::npos);
    ++failures;
  }
  CHECK(failures > 15);
}

}  // namespace lancet::checkpoint
