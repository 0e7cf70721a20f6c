// Meshes of processes, and meshes that do not fit.
#if defined(LANCET_HAVE_MPI)
#include <catch2/catch.hpp>

#include "cli/support.h"

namespace lancet {

TEST_CASE("four processes train and resume on data 2 x tensor 2 as one process trains") {
  const test::TemporaryFolder folder;
  const std::string train =
      "train " + folder.write("small.json", test::small_config_text) + " --set train.steps=4 --run-dir ";
  REQUIRE(test::lancet(train + (folder / "alone")).code == 0);
  const std::string split = " --set mesh.data=2 --set mesh.tensor=2 --set train.micro_batch_size=2";
  const auto outcome = test::mpirun(4, train + (folder / "mesh") + split);
  INFO(outcome.output);
  REQUIRE(outcome.code == 0);
  CHECK(outcome.lines_with("data 2 x tensor 2; rank r: data r / 2, tensor r % 2") == 1);
  REQUIRE(test::mpirun(4, train + (folder / "stopped") + split + " --set train.stop_after=2").code == 75);
  REQUIRE(test::mpirun(4, train + (folder / "stopped") + split).code == 0);
  const auto alone = test::metrics(folder / "alone"), mesh = test::metrics(folder / "mesh"),
             stopped = test::metrics(folder / "stopped");
  REQUIRE(alone.size() == 4);
  REQUIRE(mesh.size() == 4);
  REQUIRE(stopped.size() == 4);
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(double(mesh[i]["loss"]) == Approx(double(alone[i]["loss"])).epsilon(1e-5));
    CHECK(stopped[i]["loss"] == mesh[i]["loss"]);
  }
}

TEST_CASE("a mesh that does not fit the model is one line") {
  const test::TemporaryFolder folder;
  const std::string train = "train " + folder.write("small.json", test::small_config_text) + " --run-dir " +
                            (folder / "run") + " --set mesh.data=1 --set ";
  const auto outcome = test::mpirun(2, train + "mesh.tensor=2 --set model.n_head=1");
  test::check_said(outcome, 2,
                   {"error: ", "expected a divisor of the 1 heads (model.n_head) of h.*.attn.c_attn, found 2"});
  CHECK_FALSE(std::filesystem::exists(folder / "run"));
}

}  // namespace lancet
#endif
