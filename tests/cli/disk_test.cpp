// Full disks, folders that cannot be written, and two runs in one folder, all during a run.
#include <sys/mount.h>

#include <catch2/catch.hpp>

#include "cli/support.h"
#include "processes.h"

namespace lancet {
namespace {

namespace fs = std::filesystem;
using std::chrono::steady_clock;
using test::Job;
using test::SmallDisk;
using test::TemporaryFolder;

std::int64_t newest(const std::string& run) {
  std::int64_t step = 0;
  std::error_code gone;
  for (fs::directory_iterator at(run + "/checkpoints", gone), end; !gone && at != end; at.increment(gone)) {
    const std::string name = at->path().filename();
    if (name.starts_with("step-") && name.size() == 11) step = std::max<std::int64_t>(step, std::stoll(name.substr(5)));
  }
  return step;
}

// A run of one rank that saves every 20 steps and logs to a file outside of its folder.
class Running {
 public:
  Running(const TemporaryFolder& folder, std::string run)
      : run_(std::move(run)),
        command_(
            "train " + folder.write("small.json", test::small_config_text) +
            " --set train.steps=1000000 --set train.save_interval=20 --set train.keep_last=2 --set log.interval=1000000"
            " --run-dir " +
            run_),
        log_(folder / "log"),
        job_(LANCET_BINARY " " + command_ + " > " + log_ + " 2>&1") {
    CHECK(wait([this] { return newest(run_) > 0; }));
  }
  bool says(const std::string& text) const { return test::slurp(log_).find(text) != std::string::npos; }
  bool has_ended() const { return test::ranks_with(run_).empty(); }
  bool wait(const std::function<bool()>& holds) const {
    return test::wait_until([&] { return holds() || (newest(run_) > 0 && has_ended()); }) && !has_ended();
  }
  const std::string& command() const { return command_; }

  // Checks that the run saves steps after this one, saves when it is stopped, and resumes from there.
  void check_goes_on(std::int64_t after) {
    CHECK(wait([&] { return newest(run_) > after; }));
    check_stops_and_goes_on();
  }

 private:
  void check_stops_and_goes_on() {
    const auto pids = test::ranks_with(run_);
    REQUIRE(pids.size() == 1);
    const auto start = steady_clock::now();
    CHECK(kill(pids[0], SIGTERM) == 0);
    double took = 0;
    const auto outcome = job_.end(start, took);
    INFO(test::slurp(log_));
    CHECK(outcome.code == 75);
    const std::int64_t step = newest(run_);
    CHECK(says("saved and stopped after step " + std::to_string(step) + " of "));
    const auto again = test::lancet(command_ + " --set train.stop_after=" + std::to_string(step + 2));
    INFO(again.output);
    CHECK(again.code == 75);
    CHECK(again.lines_with("resume     after step " + std::to_string(step) + " from ") == 1);
    CHECK(again.lines_with("not whole") == 0);
    CHECK(newest(run_) == step + 2);
  }

  const std::string run_, command_, log_;
  Job job_;
};

void fill_disk(const std::string& path) {
  std::ofstream filler(path, std::ios::binary);
  const std::string block(1024, 'x');
  while (filler.write(block.data(), std::streamsize(block.size())).flush()) {
  }
}

}  // namespace

TEST_CASE("a disk that fills up during a run: a warning, complete files, and later saves once it has space") {
  const TemporaryFolder folder;
  const SmallDisk disk(folder / "disk", "6m");
  if (!disk.is_there()) return;
  const std::string run = folder / "disk/run";
  Running running(folder, run);
  fill_disk(folder / "disk/filler");
  CHECK(running.wait([&] { return running.says("was not saved, older checkpoints stay: "); }));
  CHECK(running.says("No space left on device"));
  const std::int64_t kept = newest(run);
  CHECK(kept > 0);
  fs::remove(folder / "disk/filler");
  running.check_goes_on(kept);
}

TEST_CASE("a checkpoints folder that becomes unwritable during a run") {
  const TemporaryFolder folder;
  const SmallDisk disk(folder / "disk", "30m");
  if (!disk.is_there()) return;
  const std::string run = folder / "disk/run", at = run + "/checkpoints";
  Running running(folder, run);
  REQUIRE(::mount(at.c_str(), at.c_str(), nullptr, MS_BIND, nullptr) == 0);
  REQUIRE(::mount(nullptr, at.c_str(), nullptr, MS_BIND | MS_REMOUNT | MS_RDONLY, nullptr) == 0);
  CHECK(running.wait([&] { return running.says("was not saved, older checkpoints stay: "); }));
  CHECK(running.says("Read-only file system"));
  const std::int64_t kept = newest(run);
  CHECK(kept > 0);
  CHECK(::umount2(at.c_str(), MNT_DETACH) == 0);
  running.check_goes_on(kept);
}

TEST_CASE("a second run in the folder of a running one is refused, and the first is not affected") {
  const TemporaryFolder folder;
  const std::string run = folder / "run";
  Running running(folder, run);
  const auto second = test::lancet(running.command());
  INFO(second.output);
  CHECK(second.code == 3);
  CHECK(second.lines_with("expected a folder that no other run writes to, found one at work in ") == 1);
  running.check_goes_on(newest(run));
}

}  // namespace lancet
