// Output and checks of an import, before and during its work.
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <limits>
#include <numeric>

#include "lancet/base/files.h"
#include "lancet/models/hugging_face.h"
#include "lancet/run/run_folder.h"
#include "temporary_folder.h"

namespace lancet {
namespace {

const char* const gpt2 = LANCET_SOURCE_DIR "/tests/reference/hugging_face/gpt2";

// Checks that progress increases towards its total.
struct Steps {
  std::vector<std::int64_t> done;
  std::int64_t whole = 0;
  auto watch() {
    return [this](std::int64_t accumulator, std::int64_t of) {
      done.push_back(accumulator);
      whole = of;
    };
  }
  bool go_up() const { return std::adjacent_find(done.begin(), done.end(), std::greater_equal()) == done.end(); }
};

}  // namespace

TEST_CASE("an import reports its sizes before it takes memory, and then its progress") {
  std::int64_t bytes = 0;
  Steps reading, writing;
  models::ImportWatch watch;
  watch.begin = [&](std::int64_t all) -> Status {
    CHECK(reading.done.empty());
    bytes = all;
    return {};
  };
  watch.progress = reading.watch();
  auto model = models::import_hugging_face(gpt2, models::Upcycle{.experts = 16}, watch);
  REQUIRE(model.ok());
  std::int64_t held = 0;
  for (const auto& [name, tensor] : model->store.all())
    if (tensor.kind == ir::TensorKind::parameter) held += ir::bytes(tensor.type);
  CHECK(bytes == held);
  CHECK(reading.whole == bytes);
  CHECK(reading.done.size() > 4 * 16);  // expert by expert
  CHECK(reading.go_up());
  CHECK(reading.done.back() == bytes);

  const test::TemporaryFolder folder;
  REQUIRE(run::save_model(folder / "run", model->config, model->store, {}, writing.watch()).ok());
  CHECK(writing.whole == bytes);
  CHECK(writing.go_up());
  CHECK(writing.done.back() == bytes);
}

TEST_CASE("an import that its watch refuses allocates nothing") {
  int steps = 0;
  models::ImportWatch watch;
  watch.begin = [](std::int64_t) -> Status { return data_error("no room"); };
  watch.progress = [&](std::int64_t, std::int64_t) { ++steps; };
  const auto model = models::import_hugging_face(gpt2, {}, watch);
  REQUIRE_FALSE(model.ok());
  CHECK(model.error().message == "no room");
  CHECK(steps == 0);
}

TEST_CASE("files of a killed command beside a new folder are removed, and nothing else") {
  const test::TemporaryFolder folder;
  const std::string here = "." + host_name() + "-", free_id = "2147483647";  // no process has that number
  const std::vector<std::string> stay = {"run" + here + std::to_string(::getppid()) + ".tmp",  // is being filled
                                         "run" + here + "12x.tmp",
                                         "run" + here + ".tmp",
                                         "run.tmp",
                                         "run.of-another-host-" + free_id + ".tmp",
                                         "runs" + here + free_id + ".tmp",
                                         "run" + here + free_id};
  for (const std::string& name : stay) std::filesystem::create_directories(folder / name);
  std::filesystem::create_directories(folder / ("run" + here + free_id + ".tmp/checkpoints"));
  auto made = run::NewFolder::create(folder / "run");
  REQUIRE(made.ok());
  CHECK(made->commit().ok());
  auto names = folder.names();
  std::sort(names.begin(), names.end());
  std::vector<std::string> expected = stay;
  expected.push_back("run");
  std::sort(expected.begin(), expected.end());
  CHECK(names == expected);
}

TEST_CASE("an unusable folder is refused before any work") {
  const test::TemporaryFolder folder;
  CHECK(run::check_new_folder(folder / "deep/below/run", 1).ok());
  CHECK(folder.names().empty());
  const Status vast = run::check_new_folder(folder / "deep/run", std::numeric_limits<std::int64_t>::max());
  REQUIRE_FALSE(vast.ok());
  CHECK(vast.error().code == ExitCode::data);
  CHECK(
      vast.error().message.starts_with((folder / "deep/run") + ": expected 9223372036855 MB free on its disk, found "));
  folder.write("file", "");
  const Status there = run::check_new_folder(folder / ".", 0);
  REQUIRE_FALSE(there.ok());
  CHECK(there.error().code == ExitCode::config);
  const Status below = run::check_new_folder(folder / "file/run", 0);
  REQUIRE_FALSE(below.ok());
  CHECK(below.error().message.find("expected a folder that can be written to") != std::string::npos);
}

}  // namespace lancet
