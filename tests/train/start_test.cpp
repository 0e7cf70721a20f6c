// The start of a run: which content of its folder it loads, skips or refuses.
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>
#include <catch2/catch.hpp>
#include <fstream>
#include <mutex>

#include "good.h"
#include "lancet/base/files.h"
#include "lancet/base/json.h"
#include "lancet/checkpoint/checkpoint.h"
#include "lancet/run/run_folder.h"
#include "log_capture.h"
#include "temporary_folder.h"
#include "text.h"
#include "train/meshes.h"
#include "train/runs.h"
#include "train/support.h"

namespace lancet {
namespace {

namespace fs = std::filesystem;
using namespace test;

}  // namespace

TEST_CASE("a damaged checkpoint is skipped with its name, and the one before is used") {
  const TemporaryFolder folder;
  auto config = config_in(folder / "run");
  config.train.save_interval = 2;
  REQUIRE(train_run(config, 2).code == ExitCode::done);
  const auto expected = losses(folder / "run");
  const std::string newest = in_checkpoints(folder / "run", "step-000006");
  const std::string shard =
      newest + "/" + GENERATE("model-00002-of-00002", "optimizer-00001-of-00002") + ".safetensors";
  {
    std::fstream file(shard, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-5, std::ios::end);
    file.put('\x55');
  }
  REQUIRE(train_run(config, 2).code == ExitCode::done);
  CHECK(losses(folder / "run") == expected);
  CHECK(fs::exists(newest + ".old"));
  REQUIRE(manifest_in(folder / "run", 6).step == 6);
  // All are damaged: an error, not a start from scratch.
  for (const char* step : {"step-000002", "step-000004", "step-000006"})
    fs::resize_file(in_checkpoints(folder / "run", step) + "/manifest.json", 100);
  const Error error = train_run(config, 2);
  CHECK(error.code == ExitCode::data);
  CHECK(error.message.find("expected a whole checkpoint among the 3 in ") == 0);
  CHECK(losses(folder / "run") == expected);
}

TEST_CASE("a checkpoint requested by name is loaded or refused, never replaced") {
  const TemporaryFolder folder;
  auto config = config_in(folder / "run");
  config.train.save_interval = 2;
  REQUIRE(train_run(config, 1).code == ExitCode::done);
  const auto expected = losses(folder / "run");
  auto refused = [&](const train::TrainerOptions& options, const std::string& words) {
    const Error error = train_run(config, 1, options);
    CHECK(error.code == ExitCode::data);
    CHECK(error.message.find(words) != std::string::npos);
  };
  refused({.resume = "step-000003"}, "found step-000006, step-000004, step-000002");
  refused({.resume = folder / "none"}, "expected step-NUMBER or the folder of a checkpoint, found no such folder");
  CHECK(train_run(config, 1, {.resume = "step-000002", .init_from = folder / "run"}).code == ExitCode::config);
  // Resuming from an earlier one sets later ones aside.
  REQUIRE(train_run(config, 1, {.resume = "step-000002"}).code == ExitCode::done);
  CHECK(losses(folder / "run") == expected);
  CHECK(fs::exists(in_checkpoints(folder / "run", "step-000004.old")));
  // A checkpoint named by its folder, for another run.
  config.log.run_dir = folder / "other";
  refused({.init_from = folder / "none"},
          folder / "none" +
              ": expected checkpoints/ (a run), manifest.json (a checkpoint), or config.json with "
              "model.safetensors or model.safetensors.index.json (Hugging Face's format), found no "
              "folder");
  refused({.resume = "step-000002"}, "found none");
  REQUIRE(train_run(config, 1, {.resume = in_checkpoints(folder / "run", "step-000004")}).code == ExitCode::done);
  CHECK(manifest_in(folder / "other", 6).files == manifest_in(folder / "run", 6).files);
  CHECK(records_of(folder / "other").front()["step"] == 5);
  // One that has another step's name.
  config.log.run_dir = folder / "run";
  fs::rename(in_checkpoints(folder / "run", "step-000006"), in_checkpoints(folder / "run", "step-000007"));
  refused({.resume = "step-000007"}, "expected the checkpoint of step 7, as its folder is called, found one of step 6");
}

TEST_CASE("a config that does not fit the checkpoint is refused with the difference") {
  const TemporaryFolder folder;
  auto config = config_in(folder / "run");
  stop_after(config, 1, 1);
  auto refused = [&](const std::function<void(config::Config&)>& change, const std::string& words) {
    auto changed = config;
    change(changed);
    const Error error = train_run(changed, 1);
    CHECK(error.code == ExitCode::config);
    INFO(error.message);
    CHECK(error.message.find(words) != std::string::npos);
  };
  refused([](auto& c) { c.model.n_embd = 64; },
          "model.n_embd: expected 32, found 64; model.n_inner: expected 128, found 256");
  refused([](auto& c) { c.model.n_layer = 5; }, "model.n_layer: expected 4, found 5");
  refused([](auto& c) { c.model.n_layer = 3; },
          "expected the model that is saved there: model.n_layer: expected 4, found 3");
  refused([](auto& c) { c.model.moe_layer_freq = 3; }, "model.moe_layer_freq: expected 2, found 3");
  refused([](auto& c) { c.model.first_k_dense_replace = 1; }, "model.first_k_dense_replace: expected 0, found 1");
  refused([](auto& c) { c.model.moe_intermediate_size = 64; }, "model.moe_intermediate_size: expected 128, found 64");
  refused([](auto& c) { c.model.n_shared_experts = 1; }, "model.n_shared_experts: expected 0, found 1");
  refused([](auto& c) { c.model.vocab_pad_multiple = 256; }, "model.vocab_pad_multiple: expected 64, found 256");
  refused([](auto& c) { c.model.n_head = 4; }, "model.n_head: expected 2, as in ");
  refused([](auto& c) { c.model.num_local_experts = 8; }, "model.num_local_experts: expected 4, as in ");
  refused([](auto& c) { c.train.optimizer = config::Optimizer::sgd; }, "train.optimizer: expected adamw, as in ");
}

TEST_CASE("the difference from a checkpoint is told in the names that the family has for its fields") {
  const TemporaryFolder folder;
  auto config = config_in(folder / "run");
  set_family(config.model, "qwen3_moe");
  config.model.num_local_experts = 4;
  config.model.experts_per_rank.reset();
  stop_after(config, 1, 1);
  const std::string at = in_checkpoints(folder / "run", "step-000001");
  auto refused = [&](const std::function<void(config::Config&)>& change) {
    auto changed = config;
    change(changed);
    return train_run(changed, 1).message;
  };
  CHECK(refused([](auto& c) { c.model.n_layer = 3; }) ==
        at + ": expected the model that is saved there: model.num_hidden_layers: expected 4, found 3");
  CHECK(refused([](auto& c) { c.model.num_local_experts = 8; }) ==
        "model.num_experts: expected 4, as in " + at + ", found 8");
}

TEST_CASE("a mixture of experts cannot start from a dense model, and the error says how to make one of it") {
  const TemporaryFolder folder;
  auto config = config_in(folder / "dense");
  config.model.num_local_experts.reset();
  config.model.moe_layer_freq = 0;
  REQUIRE(train_run(config, 1).code == ExitCode::done);
  config = config_in(folder / "run");
  const Error error = train_run(config, 1, {.init_from = folder / "dense"});
  CHECK(error.code == ExitCode::config);
  INFO(error.message);
  CHECK(error.message.find("model.moe_layer_freq: expected 0, found 2; lancet export and then lancet import --upcycle "
                           "make a mixture of experts of a dense model") != std::string::npos);
}

TEST_CASE("errors of files that only rank 0 reads do not name the rank") {
  const TemporaryFolder folder;
  const auto config = config_in(folder / "run");
  CHECK(
      train_run(config, 2, {.resume = "step-000007"}).message.find("--resume step-000007: expected a checkpoint in ") ==
      0);
  CHECK(train_run(config, 2, {.init_from = folder / "none"}).message.find(folder / "none" + ": ") == 0);
}

TEST_CASE("a folder that another run uses is refused before its content is read") {
  const TemporaryFolder folder;
  auto config = config_in(folder / "run");
  stop_after(config, 2, 1);
  const int held = ::open((folder / "run").c_str(), O_RDONLY | O_DIRECTORY);
  REQUIRE(::flock(held, LOCK_EX | LOCK_NB) == 0);
  fs::resize_file(in_checkpoints(folder / "run", "step-000002") + "/manifest.json", 10);  // not read yet
  const Error busy = train_run(config, 2);
  CHECK(busy.code == ExitCode::data);
  CHECK(busy.message ==
        "log.run_dir: expected a folder that no other run writes to, found one at work in " + folder / "run");
  ::close(held);
  // A run that does not begin removes the folders that it made.
  config.log.run_dir = folder / "new/deep/run";
  CHECK(train_run(config, 1, {.resume = "step-000002"}).code == ExitCode::data);
  CHECK_FALSE(fs::exists(folder / "new"));
}

TEST_CASE("checkpoints that are a dangling link or a file are an error, not a start from scratch") {
  const TemporaryFolder folder;
  const auto config = config_in(folder / "run");
  const std::string checkpoints = folder / "run/checkpoints";
  fs::create_directories(folder / "run");
  std::string found;
  SECTION("a link") {
    fs::create_symlink("/nowhere/checkpoints", checkpoints);
    found = "a link to a missing file";
  }
  SECTION("a file") {
    std::ofstream(checkpoints) << "x";
    found = "a file";
  }
  const Error error = train_run(config, 1);
  CHECK(error.code == ExitCode::data);
  CHECK(error.message == checkpoints + ": expected a folder of checkpoints, found " + found);
  CHECK_FALSE(fs::exists(folder / "run/metrics.jsonl"));
}

TEST_CASE("an unreadable checkpoint is an error and does not fall back to an older one") {
  const TemporaryFolder folder;
  auto config = config_in(folder / "run");
  config.train.save_interval = 2;
  REQUIRE(train_run(config, 1).code == ExitCode::done);
  // The system refuses to open the file for a reason of its own: too many links on the path.
  const std::string checkpoints = folder / "run/checkpoints";
  fs::rename(checkpoints, folder / "kept");
  fs::create_symlink("checkpoints", checkpoints);
  const Error error = train_run(config, 1);
  CHECK(error.code == ExitCode::internal);
  CHECK(error.message.find(checkpoints + ": cannot be read: ") == 0);
  CHECK(losses(folder / "run").size() == 6);
  // The same holds for a command that reads a model.
  std::vector<Error> found(2);
  REQUIRE(comm::run_inproc(2, [&](comm::Communicator& world) -> Status {
            const auto loaded =
                run::load_newest(folder / "run", world, [](const run::ModelFolder&) { return Status(); });
            if (!loaded.ok()) found[std::size_t(world.rank())] = loaded.error();
            return {};
          }).ok());
  for (const Error& each : found) {
    CHECK(each.code == ExitCode::internal);
    CHECK(each.message.find(checkpoints + ": cannot be read: ") == 0);
    CHECK(each.agreed);
  }
}

TEST_CASE("a reader takes the newest checkpoint again if the run that writes them removes the one that it reads") {
  const TemporaryFolder folder;
  auto config = config_in(folder / "run");
  config.train.save_interval = 2;
  REQUIRE(train_run(config, 1).code == ExitCode::done);
  const fs::path checkpoints = fs::path(folder / "run") / "checkpoints";
  fs::rename(checkpoints / "step-000006", folder / "later");  // not yet saved
  fs::rename(checkpoints / "step-000002", folder / "gone");
  const test::LogCapture log;
  std::vector<std::string> read(2);
  REQUIRE(comm::run_inproc(2, [&](comm::Communicator& world) -> Status {
            const auto loaded = run::load_newest(folder / "run", world, [&](const run::ModelFolder& found) -> Status {
              read[std::size_t(world.rank())] += found.checkpoint.path().filename().string() + " ";
              if (found.checkpoint.path().filename() != "step-000004") return {};
              if (world.rank() == 1) return {};  // it has opened all files in time
              fs::rename(folder / "later", checkpoints / "step-000006");
              fs::rename(checkpoints / "step-000004", checkpoints / "step-000004.removed.tmp");
              return data_error("no such file");
            });
            return loaded.ok() ? Status() : Status(loaded.error());
          }).ok());
  CHECK(read == std::vector<std::string>(2, "step-000004 step-000006 "));
  CHECK(log.count("not whole") == 0);
}

TEST_CASE("another number of steps is listed as a change if the learning rate depends on it") {
  const TemporaryFolder folder;
  auto config = config_in(folder / "run");
  config.train.lr_schedule = GENERATE(config::LrSchedule::constant, config::LrSchedule::linear,
                                      config::LrSchedule::cosine, config::LrSchedule::wsd);
  const int listed = config.train.lr_schedule != config::LrSchedule::constant;
  stop_after(config, 2, 1);
  config.train.steps = 4;
  const test::LogCapture log;
  REQUIRE(train_run(config, 1).code == ExitCode::done);
  CHECK(log.count("changed: train.steps 4 (was 6)") == listed);
  CHECK(log.count("changed: ") == listed);
}

TEST_CASE("a checkpoint of another version's config is compared field by field") {
  const TemporaryFolder folder;
  auto config = config_in(folder / "run");
  stop_after(config, 2, 1);
  const fs::path at = fs::path(folder / "run") / "checkpoints/step-000002/manifest.json";
  auto manifest = test::good(checkpoint::parse_manifest(*read_file(at, "it"), "it"));
  auto saved = test::json_in(manifest->config);
  saved["train"]["of_the_future"] = 7;
  saved["train"].erase("adam_eps");
  saved["train"]["lr"] = 0.25;
  manifest->config = json_text(saved);
  REQUIRE(write_file(at, checkpoint::to_json(*manifest)).ok());
  {
    auto other = config;
    other.model.n_head = 4;
    const Error error = train_run(other, 1);
    CHECK(error.code == ExitCode::config);
    CHECK(error.message.find("model.n_head: expected 2, as in ") == 0);
  }
  const test::LogCapture log;
  REQUIRE(train_run(config, 1).code == ExitCode::done);
  CHECK(log.count("changed: train.lr 0.002 (was 0.25)") == 1);
  CHECK(log.count("its config is another version's; not known here: 'train.of_the_future'") == 1);
}

// --init-from on the command line of a run that has begun: the run resumes, and logs the checkpoint that it uses.

TEST_CASE("a run with checkpoints of its own logs that it ignores --init-from") {
  const test::TemporaryFolder folder;
  const auto run = [&](const std::string& name, const std::string& init_from, std::int64_t stop_after) {
    auto config = test::small_config();
    config.train.steps = 10;
    config.train.stop_after = stop_after;
    config.log.run_dir = folder / name;
    const auto world = comm::make_self();
    const Error status = test::refused(train::train(config, *world, {.local_ranks = 1, .init_from = init_from}));
    CHECK(status.code == ExitCode::saved);
  };
  run("a", "", 2);
  const std::string note = "--init-from " + (folder / "a") + " was not needed";
  {
    const test::LogCapture log;
    run("b", folder / "a", 3);
    CHECK(log.count("weights    of step 2 from ") == 1);
    CHECK(log.count("--init-from") == 0);
  }
  const test::LogCapture log;
  run("b", folder / "a", 4);
  CHECK(log.count(note + ": the run resumes from " + (folder / "b/checkpoints/step-000003")) == 1);
  run("b", "/no/such/run", 5);  // not read
  CHECK(log.count("--init-from /no/such/run was not needed") == 1);
}

// A failing read on one rank while a run loads its checkpoint: all ranks exit together or fall back together.

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
  test::good(comm::run_inproc(2, [&](comm::Communicator& world) -> Status {
    train::TrainerOptions options{.local_ranks = 2};
    if (world.rank() == 1) options.files = files;
    if (const Status mine = train::train(config, world, options); !mine.ok())
      ends[std::size_t(world.rank())] = mine.error();
    return {};
  }));
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
