#include <catch2/catch.hpp>

#include "program.h"
#include "text.h"

using namespace lancet::test;

namespace {

Outcome run(const std::string& arguments) { return lancet::test::lancet(arguments); }

}  // namespace

TEST_CASE("profile measures missing costs, keeps them and prints them") {
  const TemporaryFolder folder;
  const std::string config = folder.write("c.json", small_config_text), file = folder / "costs.json";
  const Outcome first = run("profile " + config + " --seconds 0 --out " + file);
  INFO(first.output);
  REQUIRE(first.code == 0);
  CHECK(first.lines_with("profile: measured ") == 1);
  CHECK(first.lines_with("router(f32[4,16,32], f32[4,32])") == 1);
  CHECK(first.lines_with(" ms of computation in a step") == 1);
  const std::size_t ops = json_file(file)["ops"].size();
  CHECK(first.lines_with("measured " + std::to_string(ops) + " ops in") == 1);

  const Outcome again = run("profile " + config + " --seconds 0 --set overlap.profile=" + file);
  REQUIRE(again.code == 0);
  CHECK(again.lines_with("measured") == 0);
  CHECK(again.lines_with(" ms of computation in a step") == 1);

  const Outcome longer = run("profile " + config + " --seconds 0 --set train.seq_len=8 --set overlap.profile=" + file);
  REQUIRE(longer.code == 0);
  CHECK(longer.lines_with("profile: measured ") == 1);
  CHECK(json_file(file)["ops"].size() > ops);
}

TEST_CASE("without a path the profile is kept in the user's cache folder") {
  const TemporaryFolder folder;
  const std::string config = folder.write("c.json", small_config_text);
  const Outcome outcome =
      shell("XDG_CACHE_HOME=" + folder / "cache" + " " LANCET_BINARY " profile " + config + " --seconds 0");
  INFO(outcome.output);
  REQUIRE(outcome.code == 0);
  const std::filesystem::directory_iterator files(folder / "cache/lancet");
  CHECK(files->path().filename().string().starts_with("profile-"));
}

TEST_CASE("without a home folder, profile says that nothing is kept") {
  const TemporaryFolder folder;
  const Outcome outcome = shell("env -u HOME -u XDG_CACHE_HOME " LANCET_BINARY " profile " +
                                folder.write("c.json", small_config_text) + " --seconds 0");
  INFO(outcome.output);
  CHECK(outcome.code == 0);
  CHECK(outcome.lines_with("warning: profile: not kept: HOME is not set") == 1);
}

#if defined(LANCET_HAVE_MPI)
TEST_CASE("ranks profile together, communication too") {
  const TemporaryFolder folder;
  const std::string config = folder.write("c.json", small_config_text), file = folder / "costs.json";
  const Outcome outcome = mpirun(2, "profile " + config + " --seconds 0 --set overlap.max_parts=2 --out " + file);
  INFO(outcome.output);
  REQUIRE(outcome.code == 0);
  CHECK(outcome.lines_with("and communication in") == 1);
  CHECK(outcome.lines_with("all-to-all: bytes that a rank sends to all others") == 1);
  const auto json = json_file(file);
  CHECK(json["local_ranks"] == 2);
  CHECK(json["transport"] == "mpi");
  CHECK(json["ranks"] == 2);
  CHECK(json["network"]["all_to_all"].size() >= 3);

  // Another machine, of one rank, does not replace these times, whichever way the file is named.
  for (const char* option : {" --out ", " --renew all --out ", " --set overlap.profile="}) {
    const Outcome alone = run("profile " + config + " --seconds 0" + option + file);
    INFO(alone.output);
    CHECK(alone.code == 2);
    CHECK(alone.lines_with("costs.json: expected a profile of 1 rank a host, self, 1 rank, found one of 2 ranks a "
                           "host, mpi, 2 ranks, whose times are kept: name another file") == 1);
  }
  CHECK(json_file(file) == json);
}
#endif

#if defined(LANCET_HAVE_MPI)
TEST_CASE("profile prints the communication of all ranks and of each group of a mesh's ranks") {
  const TemporaryFolder folder;
  const std::string file = folder / "costs.json",
                    command = "profile " + folder.write("c.json", small_config_text) +
                              " --seconds 0 --set overlap.max_parts=2 --set mesh.data=2 --set mesh.tensor=2 --out " +
                              file;
  const Outcome first = mpirun(4, command);
  INFO(first.output);
  REQUIRE(first.code == 0);
  for (const char* of : {"", " of groups of tensor 2", " of groups of data 2 / 2"}) {
    INFO(of);
    CHECK(first.lines_with(std::string("all-to-all") + of + ": bytes that a rank sends to all others") == 1);
    CHECK(first.lines_with(std::string("all-reduce") + of + ": bytes of the vector") == 1);
  }
  nlohmann::json held = json_file(file);
  held["network"]["groups"]["tensor 2"]["messages"]["neighbour 1"] = held["network"]["all_to_all"];
  folder.write("costs.json", held.dump());
  const Outcome again = mpirun(4, command);
  INFO(again.output);
  REQUIRE(again.code == 0);
  CHECK(again.lines_with("neighbour 1 of groups of tensor 2: bytes that a rank sends") == 1);
}
#endif
