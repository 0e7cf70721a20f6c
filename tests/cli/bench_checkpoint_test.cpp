// `lancet bench checkpoint` as a user starts it. The test checks what it does; its times depend on the machine.
#include <catch2/catch.hpp>
#include <filesystem>

#include "lancet/base/host_name.h"
#include "program.h"

namespace lancet {
namespace {

using test::TemporaryFolder;

TEST_CASE("bench checkpoint reports the times of saving and loading, and removes its files") {
  const TemporaryFolder folder;
  const std::string config = folder.write("small.json", test::small_config_text), disk = folder / "disk";
  // Left by a process that was killed: no process has that number.
  std::filesystem::create_directories(disk + "/lancet-bench-checkpoint." + host_name() + "-2147483647.tmp/checkpoints");
  const std::string command = "bench checkpoint " + config + " --steps 1 --rounds 1 --dir ";
  const auto one = test::lancet(command + disk);
  INFO(one.output);
  CHECK(one.code == 0);
  CHECK(one.lines_with("checkpoint of 0.001 GB, 1 rank") == 1);
  CHECK(one.lines_with("left by a command that was killed, removed") == 1);
  CHECK(one.lines_with("save delays it by ") == 1);
  CHECK(one.lines_with("(cache dropped before)") == 1);
  CHECK(one.lines_with("% of plain reading") == 1);
  CHECK(std::filesystem::is_empty(disk));
#if defined(LANCET_HAVE_MPI)
  const auto two = test::mpirun(2, command + disk + " --cached");
  CHECK(two.code == 0);
  CHECK(two.lines_with("checkpoint of 0.001 GB, 2 ranks") == 1);
  CHECK(two.lines_with("(may come from the cache)") == 1);
  CHECK(std::filesystem::is_empty(disk));
#endif
}

TEST_CASE("bench checkpoint changes no existing file") {
  const TemporaryFolder folder;
  const std::string config = folder.write("small.json", test::small_config_text);
  std::filesystem::create_directories(folder / "lancet-bench-checkpoint/of-another");
  const auto refused = test::lancet("bench checkpoint " + config + " --dir " + (folder / ""));
  CHECK(refused.code == 2);
  CHECK(refused.lines_with(
            "lancet-bench-checkpoint: expected no such folder yet, or an empty one, found files in it") == 1);
  CHECK(folder.names().size() == 2);
  CHECK(std::filesystem::exists(folder / "lancet-bench-checkpoint/of-another"));
  CHECK(test::lancet("bench checkpoint " + config + " --dir " + (folder / "none")).code == 2);
  CHECK(test::lancet("bench checkpoint " + config).code == 2);
}

}  // namespace
}  // namespace lancet
