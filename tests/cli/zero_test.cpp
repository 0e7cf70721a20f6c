// train.zero and train.reduce_dtype on ranks that are processes.
#if defined(LANCET_HAVE_MPI)
#include <catch2/catch.hpp>

#include "cli/support.h"

namespace lancet {

TEST_CASE("two processes train with ZeRO-1 as without it, and resume either from the other") {
  const test::TemporaryFolder folder;
  const std::string train = "train " + folder.write("small.json", test::small_config_text) +
                            " --set train.steps=4 --set train.micro_batch_size=2 --set train.clip_grad=0";
  REQUIRE(test::mpirun(2, train + " --run-dir " + (folder / "whole")).code == 0);
  const std::string zero = train + " --set train.zero=1 --run-dir ";
  REQUIRE(test::mpirun(2, zero + (folder / "zero")).code == 0);
  REQUIRE(test::mpirun(2, zero + (folder / "changed") + " --set train.stop_after=2").code == 75);
  REQUIRE(test::mpirun(2, train + " --run-dir " + (folder / "changed")).code == 0);
  const auto whole = test::metrics(folder / "whole"), shards = test::metrics(folder / "zero"),
             changed = test::metrics(folder / "changed");
  REQUIRE(whole.size() == 4);
  REQUIRE(shards.size() == 4);
  REQUIRE(changed.size() == 4);
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(shards[i]["loss"] == whole[i]["loss"]);
    CHECK(changed[i]["loss"] == whole[i]["loss"]);
  }
}

TEST_CASE("gradients travel in bf16 between processes, with and without ZeRO-1") {
  const test::TemporaryFolder folder;
  const std::string train = "train " + folder.write("small.json", test::small_config_text) +
                            " --set train.steps=3 --set train.micro_batch_size=2 --set train.reduce_dtype=bf16";
  for (const char* zero : {"0", "1"}) {
    const std::string run = folder / zero;
    REQUIRE(test::mpirun(2, train + " --set train.zero=" + zero + " --run-dir " + run).code == 0);
    CHECK(test::metrics(run).size() == 3);
  }
}

TEST_CASE("values of train.zero and train.reduce_dtype that do not exist are one line") {
  const test::TemporaryFolder folder;
  const std::string train = "train " + folder.write("small.json", test::small_config_text);
  const auto zero = test::shell(LANCET_BINARY " " + train + " --set train.zero=2");
  CHECK(zero.code == 2);
  CHECK(zero.lines_with("train.zero: expected an integer in [0, 1], found 2") == 1);
  const auto type = test::shell(LANCET_BINARY " " + train + " --set train.reduce_dtype=fp16");
  CHECK(type.code == 2);
  CHECK(type.lines_with("train.reduce_dtype: expected one of \"fp32\", \"bf16\", found \"fp16\"") == 1);
}

}  // namespace lancet
#endif
