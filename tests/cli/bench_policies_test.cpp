// `lancet bench policies` as a user starts it: what it prints and writes. Its times depend on the machine.
#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "program.h"

namespace lancet {
namespace {

using test::TemporaryFolder;

std::string content_of(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

#if defined(LANCET_HAVE_MPI)
TEST_CASE("bench policies refuses a number of parts that cannot be before the first round") {
  const TemporaryFolder folder;
  const std::string config = folder.write("small.json", test::small_config_text);
  const auto both =
      test::mpirun(2, "bench policies " + config + " --policies sequential,lancet:3 --out " + (folder / "out"));
  INFO(both.output);
  CHECK(both.code == 2);
  CHECK(both.lines_with("overlap.parts: expected a divisor of train.micro_batch_size") == 1);
  CHECK(both.lines_with("round 1/") == 0);
}

TEST_CASE("bench policies runs each policy in each round, and writes a table, numbers, a page and run folders") {
  const TemporaryFolder folder;
  const std::string config = folder.write("small.json", test::small_config_text), out = folder / "out";
  const auto both =
      test::mpirun(2, "bench policies " + config + " --policies sequential,dw,dw --repeats 2 --steps 3 --out " + out);
  INFO(both.output);
  REQUIRE(both.code == 0);
  CHECK(both.lines_with("2 ranks, 2 rounds of 3 steps after 1") == 1);
  for (const char* line : {"round 1/2 sequential: ", "round 1/2 dw: ", "round 2/2 sequential: ", "round 2/2 dw: "})
    CHECK(both.lines_with(line) == 1);
  CHECK(both.lines_with("all-reduces ") == 1);
  const std::string text = content_of(out + "/policies.txt");
  std::istringstream table(text);  // the ranks' lines may come between its own
  for (std::string line; std::getline(table, line);) CHECK(both.output.find(line) != std::string::npos);

  const auto json = test::json_file(out + "/policies.json");
  CHECK(json["ranks"] == 2);
  CHECK(json["steps"] == 3);
  REQUIRE(json["policies"].size() == 2);
  CHECK(json["policies"][0]["policy"] == "sequential");
  CHECK(json["policies"][1]["policy"] == "dw");
  for (const auto& policy : json["policies"]) {
    CHECK(policy["late_pct"].is_null());
    REQUIRE(policy["step_ms"].size() == 2);
    // A round's time is the median of three records in the policy's run folder.
    const auto records = test::metrics(out + "/" + policy["policy"].get<std::string>());
    REQUIRE(records.size() == 6);
    for (std::size_t round = 0; round < 2; ++round) {
      std::vector<double> steps;
      for (std::size_t i = 3 * round; i < 3 * round + 3; ++i) steps.push_back(records[i]["step_ms"]);
      std::sort(steps.begin(), steps.end());
      CHECK(policy["step_ms"][round].get<double>() == Approx(steps[1]).epsilon(1e-6));
    }
    int all_to_alls = 0, all_reduces = 0;
    for (const auto& site : policy["communications"]) {
      CHECK(site["exposed_ms"].get<double>() >= 0);
      CHECK(site["exposed_ms"].get<double>() <= site["ms"].get<double>());
      all_to_alls += site["site"] == "h.0.moe.dispatch.all_to_all" && site["stream"] == "expert" && site["parts"] == 1;
      all_reduces += site["stream"] == "reduce" && site["pass"] == "sync";
    }
    CHECK(all_to_alls == 2);  // forward and backward
    CHECK(all_reduces > 0);
  }
  CHECK(content_of(out + "/policies.html").starts_with("<"));
  for (const char* file : {"/sequential/plan.ir", "/sequential/trace.json", "/dw/config.json", "/dw/metrics.jsonl"})
    CHECK(std::filesystem::exists(out + file));
}

TEST_CASE("bench policies compares forced numbers of parts, and of several micro batches their pairs") {
  const TemporaryFolder folder;
  const std::string config = folder.write("small.json", test::small_config_text), out = folder / "out";
  const auto outcome = test::mpirun(
      2, "bench policies " + config + " --policies tutel:2,tutel:4" + " --repeats 1 --steps 1 --out " + out);
  INFO(outcome.output);
  REQUIRE(outcome.code == 0);
  const auto json = test::json_file(out + "/policies.json");
  for (int i = 0; i < 2; ++i) {
    const std::string name = i == 0 ? "tutel-2" : "tutel-4";
    CHECK(json["policies"][i]["policy"] == name);
    CHECK(test::json_file(out + "/" + name + "/config.json")["overlap"]["parts"] == 2 * (i + 1));
    for (const auto& site : json["policies"][i]["communications"])
      if (site["site"] == "h.0.moe.dispatch.all_to_all") CHECK(site["parts"] == 2 * (i + 1));
  }
  const auto several = test::mpirun(2, "bench policies " + config + " --repeats 1 --steps 1 --out " + out +
                                           " --set train.gradient_accumulation_steps=2");
  INFO(several.output);
  REQUIRE(several.code == 0);
  int pairs = 0;
  const auto of_several = test::json_file(out + "/policies.json");
  for (const auto& policy : of_several["policies"]) pairs += policy["policy"] == "neighbour_microbatches";
  CHECK(pairs == 1);
}
#endif

TEST_CASE("bench policies refuses unknown policies and numbers out of range in one line") {
  const TemporaryFolder folder;
  const std::string config = folder.write("small.json", test::small_config_text);
  const auto unknown = test::lancet("bench policies " + config + " --policies sequential,fastest");
  CHECK(unknown.code == 2);
  CHECK(unknown.lines_with("error: ") == 1);
  CHECK(unknown.lines_with("fastest") == 1);
  const auto parts = test::lancet("bench policies " + config + " --policies sequential,tutel:0");
  CHECK(parts.code == 2);
  CHECK(parts.lines_with("parts of tutel: expected a whole number from 1 to 64, found") == 1);
  CHECK(test::lancet("bench policies " + config + " --repeats 0").code == 2);
  CHECK(test::lancet("bench policies " + config + " --steps 0").code == 2);
}

}  // namespace
}  // namespace lancet
