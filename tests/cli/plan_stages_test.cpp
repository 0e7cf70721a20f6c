// lancet plan of pipeline stages.
#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "cli/support.h"
#include "lancet/base/files.h"
#include "lancet/ir/plan.h"
#include "program.h"
#include "text.h"

namespace lancet::test {
namespace {

// The table of what hides each communication of a stage.
std::string section_of(const std::string& output, int stage) {
  const std::size_t start = output.find(fmt::format("\nstage {}\n", stage));
  REQUIRE(start != output.npos);
  return output.substr(start, output.find(fmt::format("\nstage {}\n", stage + 1), start) - start);
}

// A communication's milliseconds, the percent that is covered, and by what.
std::vector<std::string> cover_of(const std::string& section, const std::string& site, const std::string& pass) {
  INFO(site << section);
  const auto found = match(section, "\n" + site + " +" + pass + " +1 +([0-9.]+) +([0-9]+)%  ([^\n]+)\n");
  REQUIRE(found.size() == 4);
  return {found[1], found[2], found[3]};
}

}  // namespace

TEST_CASE("plan predicts pipeline stages on every mesh, and says what is idle on each") {
  const TemporaryFolder folder;
  const std::string config = folder.write("small.json", small_config_text);
  for (const char* mesh : {"--ranks 2", "--ranks 4", "--ranks 4 --set mesh.data=2 --set mesh.expert=1",
                           "--ranks 8 --set mesh.tensor=2", "--ranks 4 --set train.zero=1"}) {
    const auto planned = lancet("plan " + config + " --on ethernet-10g-cpu --set overlap.policy=sequential " +
                                "--set mesh.stage=2 --set train.gradient_accumulation_steps=4 " + mesh);
    INFO(mesh << ": " << planned.output);
    CHECK(planned.code == 0);
    CHECK(matches(planned.output, "\n0 +[0-9.]+ +[0-9.]+[^\n]*\n1 +[0-9.]+"));
  }
}

TEST_CASE("what hides a message between stages is computed on the stage at that end of it") {
  const TemporaryFolder folder;
  const auto outcome =
      lancet("plan " + folder.write("small.json", small_config_text) +
             " --ranks 4 --on ethernet-10g-cpu --set mesh.stage=2 --set mesh.expert=2 --set model.n_layer=4 "
             "--set model.n_embd=256 --set train.micro_batch_size=16 --set train.dtype=fp32 "
             "--set train.gradient_accumulation_steps=4");
  INFO(outcome.output);
  REQUIRE(outcome.code == 0);
  const std::string first = section_of(outcome.output, 0), last = section_of(outcome.output, 1);
  const auto sent = cover_of(first, "h.1.mlp.c_proj.send_next", "forward");
  const auto got = cover_of(last, "h.1.mlp.c_proj.receive_previous", "forward");
  CHECK(std::stod(sent[0]) == Approx(std::stod(got[0])).margin(0.011));  // both ends of a message take its time
  CHECK(matches(sent[2], "h.[01].[a-z0-9_.]+ "));
  CHECK_FALSE(matches(sent[2], "h.[23]."));
  CHECK_FALSE(matches(got[2], "h.[01]."));
}

TEST_CASE("plan warns of a pipeline that drains after few micro batches") {
  const TemporaryFolder folder;
  const std::string plan =
      "plan " + folder.write("small.json", small_config_text) + " --ranks 2 --on ethernet-10g-cpu --set mesh.stage=2 ";
  const auto few = lancet(plan + "--set train.gradient_accumulation_steps=67");
  INFO(few.output);
  CHECK(few.code == 0);
  CHECK(few.lines_with("the pipeline drains after every 1 micro batch of a step's 67, since no number from 32 to 64 "
                       "divides 67; of 68, it drains after every 34") == 1);
  CHECK(lancet(plan + "--set train.gradient_accumulation_steps=7").lines_with("drains") == 0);
}

#if defined(LANCET_HAVE_MPI)
TEST_CASE("a run of stages is traced, and its report draws every rank beside its stage's prediction") {
  const TemporaryFolder folder;
  const std::string run = folder / "run";
  const auto outcome = mpirun(
      2, "train " + folder.write("small.json", small_config_text) +
             " --set train.steps=3 --set mesh.stage=2 --set train.gradient_accumulation_steps=4 --set log.trace=3 "
             "--set train.pipeline_schedule=searched --set overlap.profile=" +
             (folder / "costs.json") + " --run-dir " + run);
  INFO(outcome.output);
  REQUIRE(outcome.code == 0);
  std::map<int, std::size_t> events;
  const auto trace = json_in(*read_file(run + "/trace.json", "a trace"));
  for (const auto& event : trace["traceEvents"]) events[event["pid"]] += event["ph"] == "X";
  const auto count = [&](const char* plan) {
    return ir::parse_plan(*read_file(run + plan, "a plan"))->program.instructions.size();
  };
  const std::size_t first = count("/plan.ir"), last = count("/plan.stage1.ir");
  CHECK(events == std::map<int, std::size_t>{{0, first}, {1, last}, {2, first}, {3, last}});

  const auto reported = lancet("report " + run + " --out " + (folder / "page.html"));
  INFO(reported.output);
  REQUIRE(reported.code == 0);
  CHECK(reported.lines_with("left out") == 0);
  const std::string page = *read_file(folder / "page.html", "a page");
  for (const char* process :
       {"predicted, stage 0", "measured, stage 0, rank 0", "predicted, stage 1", "measured, stage 1, rank 1"})
    CHECK(page.find(fmt::format("\"process\":\"{}\",\"stream\":\"compute\"", process)) != std::string::npos);
  CHECK(page.find("\"process\":\"measured, stage 1, rank 1\",\"stream\":\"receive_previous\"") != std::string::npos);
  // The measured times of the messages of both stages are there.
  for (const char* row :
       {"\"stage\":0,\"site\":\"h.0.ln_2.send_next\"", "\"stage\":1,\"site\":\"h.0.ln_2.receive_previous\""}) {
    const std::size_t at = page.find(row);
    REQUIRE(at != page.npos);
    CHECK(page.substr(at, 400).find("\"measured\":{\"ms\":") != std::string::npos);
  }
}
#endif

}  // namespace lancet::test
