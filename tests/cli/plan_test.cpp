// lancet plan without ranks or a device, and runs from the plans that it writes.
#include <catch2/catch.hpp>

#include "cli/support.h"
#include "declared_profile.h"
#include "good.h"
#include "lancet/base/files.h"
#include "lancet/base/json.h"
#include "lancet/ir/plan.h"
#include "lancet/planner/planner.h"
#include "lancet/report/report.h"
#include "program.h"
#include "text.h"

namespace lancet {
namespace {

using test::lancet;
using test::TemporaryFolder;

config::Config small() { return *config::parse(test::small_config_text, "small.json"); }

struct PlanFiles {
  TemporaryFolder folder;
  std::string config = folder.write("small.json", test::small_config_text);
  std::string profile = test::write_declared_profile(folder / "costs.json", small(), 2, 2);
  std::string for_two = " --ranks 2 --hosts 2 --profile " + profile;
};

std::string text_of(const std::string& path) { return *read_file(path, "a file"); }

// The number in column `column` of the line that starts with `policy`.
double number_in(const std::string& output, const std::string& policy, int column) {
  const auto row = test::match(output, "(^|\n)" + policy + "( \\*)?( +[0-9.]+%?){8}");
  REQUIRE_FALSE(row.empty());
  std::istringstream in(row[0].substr(row[0].find_first_of("0123456789")));
  double value = 0;
  std::string word;
  for (int i = 0; i <= column; ++i) in >> word;
  value = std::stod(word);
  return value;
}

}  // namespace

TEST_CASE("plan --cuts lists the cuts with their source, without a config") {
  const auto outcome = lancet("plan --cuts");
  REQUIRE(outcome.code == 0);
  for (const char* name : {"batch", "capacity", "columns", "peers", "source_rows"}) {
    INFO(name);
    CHECK_FALSE(test::match(outcome.output, "(^|\n)" + std::string(name) + "\n  splits +[^\n]+\n  pairs ").empty());
  }
  CHECK(outcome.lines_with("  source    Comet") == 2);
  CHECK(outcome.lines_with("  source    collective matmul") == 1);
  CHECK(outcome.lines_with("  memory    ") == outcome.lines_with("  launches  "));
  CHECK(outcome.lines_with("  policies  comet, lancet") == 2);
  CHECK(outcome.lines_with("  policies  collective_matmul, lancet") == 1);
}

TEST_CASE("plan prints the prediction of every policy and the reason for its choice") {
  const PlanFiles files;
  const auto outcome =
      lancet("plan " + files.config + files.for_two + " --set overlap.policy=auto --out " + (files.folder / "plan.ir"));
  INFO(outcome.output);
  REQUIRE(outcome.code == 0);
  CHECK(outcome.lines_with("costs: Declared CPU (none), 1 thread, 1 rank a host, build 0123456789abcdef; mpi, 2 ranks, "
                           "2 hosts") == 1);
  const auto plan = test::good(ir::parse_plan(text_of(files.folder / "plan.ir")));
  CHECK(ir::verify(*plan).ok());
  CHECK(plan->header.integer("ranks") == 2);
  CHECK(plan->header.text("build") == cost::kernel_build());
  CHECK(plan->header.text("profile") == test::declared_profile(small(), test::declared_machine(2, 2)).identity());
  CHECK(plan->header.text("optimizer") == "adamw beta1=0.9 beta2=0.999 eps=1e-08 weight_decay=0 clip_grad=1");

  double fastest = 1e9, sequential = number_in(outcome.output, "sequential", 0);
  for (const char* policy : {"sequential", "dw", "partition", "tutel", "fastermoe", "comet", "lancet"})
    fastest = std::min(fastest, number_in(outcome.output, std::string(policy), 0));
  const std::string chosen = plan->header.text("policy");
  CHECK(outcome.lines_with(chosen + " *") == 1);
  CHECK(number_in(outcome.output, chosen, 0) == fastest);
  CHECK(fastest < sequential);
  CHECK(plan->header.real("predicted_ms") == Approx(fastest).margin(0.051));
  CHECK(plan->header.real("exposed_ms") == Approx(number_in(outcome.output, chosen, 4)).margin(0.051));
  CHECK(number_in(outcome.output, chosen, 7) == Approx(double(plan->arena_bytes) * 1e-6).margin(0.051));
  const auto bound = test::match(outcome.output, "bound +([0-9.]+)");
  REQUIRE(bound.size() == 2);
  CHECK(std::stod(bound[1]) <= fastest);
  CHECK(std::stod(bound[1]) > 0);
  for (const char* row : {"h.0.moe.dispatch.all_to_all +forward", "h.0.moe.experts.c_proj.all_to_all_back +forward",
                          "h.0.moe.experts.c_proj.all_to_all_back +backward", "h.0.moe.dispatch.all_to_all +backward",
                          "h.0.moe.gate.all_to_all_counts +forward", "bucket.[0-9]+ +sync"})
    CHECK(test::matches(outcome.output, row));
  CHECK(outcome.lines_with("predicted step, ") == 1);
}

TEST_CASE("without measured costs plan takes a declared machine and names the command that measures") {
  const PlanFiles files;
  const auto outcome = test::shell("XDG_CACHE_HOME=" + (files.folder / "empty") + " " LANCET_BINARY " plan " +
                                   files.config + " --ranks 2 --set train.seq_len=8 --set \"log.run_dir=it's a run\"");
  INFO(outcome.output);
  CHECK(outcome.code == 0);
  CHECK(outcome.lines_with("planned for the declared machine ethernet-10g-cpu instead; to measure this one: ") == 1);
  CHECK(outcome.lines_with("scripts/mpirun.sh 2 ") == 1);
  CHECK(outcome.lines_with("lancet profile " + files.config +
                           " --set train.seq_len=8 --set 'log.run_dir=it'\\''s a run'") == 1);
  CHECK(outcome.lines_with("costs: ethernet-10g-cpu, declared") == 1);
}

TEST_CASE("plan refuses an emulated cluster that it does not know") {
  const PlanFiles files;
  const auto outcome =
      lancet("plan " + files.config + " --ranks 2 --set device=emulated --set emulated.hardware=p3dn-v100 " +
             "--set emulated.routing=zipf:x");
  CHECK(outcome.code == 2);
  CHECK(outcome.output ==
        "error: emulated.routing: expected even, zipf:S with S from 0 to 10, zipf:S:N with N steps from 1 to "
        "1000000, or a file of records (metrics.jsonl), found zipf:x\n");
}

TEST_CASE("the costs of several hosts are measured on them, as plan says") {
  const PlanFiles files;
  const auto outcome = test::shell("XDG_CACHE_HOME=" + (files.folder / "empty") + " " LANCET_BINARY " plan " +
                                   files.config + " --ranks 4 --hosts 2");
  INFO(outcome.output);
  CHECK(outcome.code == 0);
  CHECK(outcome.lines_with("instead; to measure one of 2 hosts, on them (docs/clusters.md): mpirun --hostfile hosts "
                           "--bind-to none -np 4 ") == 1);
  CHECK(outcome.lines_with("lancet profile " + files.config) == 1);
  CHECK(outcome.lines_with("scripts/mpirun.sh") == 0);
}

TEST_CASE("one rank has no communication to hide") {
  const PlanFiles files;
  const std::string profile = test::write_declared_profile(files.folder / "alone.json", small(), 1, 1);
  const auto outcome = lancet("plan " + files.config + " --profile " + profile);
  INFO(outcome.output);
  REQUIRE(outcome.code == 0);
  CHECK(outcome.lines_with("1 rank, 1 host") == 1);
  CHECK(outcome.lines_with("no communication takes time") == 1);
}

TEST_CASE("a step that cannot fit a declared machine's memory is refused before it is planned") {
  const PlanFiles files;
  const auto outcome = lancet("plan " + files.config + " --ranks 2 --on ethernet-10g-cpu --set model.n_embd=65536");
  INFO(outcome.output);
  CHECK(outcome.code == 2);
  CHECK(test::matches(outcome.output,
                      "^error: ethernet-10g-cpu: expected [0-9]+ MB of memory a rank "
                      "\\([0-9]+ parameters, [0-9]+ optimizer, [0-9]+ gradients, "
                      "besides activations\\), found 33286 MB\n$"));
}

TEST_CASE("a large step is planned by the policy that was asked for alone, and plan says so") {
  const PlanFiles files;
  const std::string command = "plan " + files.config + " --ranks 2 --on ethernet-10g-cpu --set model.n_layer=";
  const auto large = lancet(command + "60");
  INFO(large.output);
  REQUIRE(large.code == 0);
  CHECK(large.lines_with("sequential *") == 1);
  CHECK(large.lines_with("tutel") == 0);
  CHECK(large.lines_with("note: a large step is planned by sequential and overlap.policy alone") == 1);
  const auto small_step = lancet(command + "2");
  CHECK(small_step.lines_with("tutel") == 1);
  CHECK(small_step.lines_with("note: a large step") == 0);
}

TEST_CASE("a profile of another device is used if --profile names it") {
  const PlanFiles files;
  auto refused = [&](const std::string& arguments, const std::vector<std::string>& said) {
    const auto outcome = lancet("plan " + files.config + " " + arguments);
    INFO(outcome.output);
    CHECK(outcome.code == 2);
    CHECK(std::count(outcome.output.begin(), outcome.output.end(), '\n') == 1);
    for (const std::string& text : said) CHECK(outcome.lines_with(text) == 1);
  };
  refused("--ranks 2 --hosts 2 --set overlap.profile=" + files.profile,
          {"costs.json: expected a profile of ", ", found one of Declared CPU (none), "});
  refused("--ranks 4 --hosts 4 --profile " + files.profile,
          {"expected ops and communication measured with 4 ranks on 4 hosts of 1 thread each",
           "and communication of Declared CPU (none), 1 thread, 1 rank a host, build 0123456789abcdef; mpi, 2 ranks, 2 "
           "hosts"});
  refused("--ranks 2 --hosts 2 --set threads=3 --profile " + files.profile, {"2 hosts of 3 threads each"});
  refused("--ranks 2 --hosts 3 --profile " + files.profile, {"--hosts: expected at most the 2 ranks, found 3"});
  refused("--ranks 3 --hosts 3 --profile " + files.profile, {"measured with 3 ranks on 3 hosts of 1 thread each"});
  refused("--ranks 3 --hosts 3 --set mesh.expert=3", {"mesh.expert: expected a divisor of the 4 experts"});
  refused("--ranks 2 --profile " + (files.folder / "none.json"), {"none.json: expected a profile"});

  const auto outcome = lancet("plan " + files.config + files.for_two);
  CHECK(outcome.code == 0);
  CHECK(outcome.lines_with("build 0123456789abcdef; mpi") == 1);
}

#if defined(LANCET_HAVE_MPI)
TEST_CASE("train --plan runs the plan, and its trace holds every instruction") {
  const PlanFiles files;
  const std::string plan_file = files.folder / "plan.ir", run = files.folder / "run", plain = files.folder / "plain";
  REQUIRE(lancet("plan " + files.config + files.for_two + " --set overlap.policy=lancet --out " + plan_file).code == 0);
  const std::string train =
      "train " + files.config + " --set train.steps=4 --set overlap.profile=" + (files.folder / "none.json ");
  REQUIRE(test::mpirun(2, train + "--run-dir " + plain).code == 0);
  const auto outcome = test::mpirun(2, train + "--set log.trace=3 --plan " + plan_file + " --run-dir " + run);
  INFO(outcome.output);
  REQUIRE(outcome.code == 0);
  const auto plan = ir::parse_plan(text_of(plan_file));
  CHECK(text_of(run + "/plan.ir") == text_of(plan_file));
  const std::string policy = plan->header.text("policy");
  CHECK(policy != "sequential");
  CHECK(outcome.lines_with("policy     " + policy + ": ") == 1);
  CHECK(outcome.lines_with("; predicted step ") == 1);
  const auto records = test::metrics(run), expected = test::metrics(plain);
  REQUIRE(records.size() == 4);
  for (std::size_t i = 0; i < records.size(); ++i) {
    CHECK(records[i]["predicted_ms"].get<double>() == Approx(plan->header.real("predicted_ms")));
    CHECK(records[i]["loss"].get<double>() == Approx(expected[i]["loss"].get<double>()).epsilon(1e-5));
    CHECK(expected[i]["predicted_ms"].is_null());
  }
  const auto trace = test::json_in(text_of(run + "/trace.json"));
  std::map<int, std::size_t> events;
  for (const auto& event : trace["traceEvents"]) events[event["pid"]] += event["ph"] == "X";
  const std::size_t count = plan->program.instructions.size();
  CHECK(events == std::map<int, std::size_t>{{0, count}, {1, count}, {2, count}});
  CHECK_FALSE(std::filesystem::exists(plain + "/trace.json"));

  const std::string again = "plan " + files.config + files.for_two + " --plan " + plan_file + " --trace ";
  const auto shown = lancet(again + run + "/trace.json");
  INFO(shown.output);
  REQUIRE(shown.code == 0);
  CHECK(test::matches(shown.output,
                      "h.0.moe.dispatch.all_to_all +forward +[0-9]+ +[0-9.]+ +[0-9]+%  [^\n]+\n"
                      " +[0-9.]+ +[0-9]+%  measured: "));
  // Each communication that takes time on two ranks has both lines.
  const auto sites = test::good(report::communications(*plan, std::filesystem::path(run + "/trace.json")));
  REQUIRE_FALSE(sites->empty());
  CHECK(shown.lines_with("measured: ") == int(sites->size()));
  for (const report::Communication& site : *sites) {
    INFO(site.site);
    REQUIRE((site.predicted && site.measured));
    CHECK(site.measured->ms > 0);
    CHECK(site.measured->hidden_ms <= site.measured->ms * (1 + 1e-9));
  }
  const std::string other = files.folder / "other.ir";
  REQUIRE(lancet("plan " + files.config + files.for_two + " --set overlap.policy=sequential --out " + other).code == 0);
  const auto of_other =
      lancet("plan " + files.config + files.for_two + " --plan " + other + " --trace " + run + "/trace.json");
  CHECK(of_other.code == 3);
  CHECK(of_other.lines_with("trace.json: expected the times of the plan's instructions, found event '") == 1);
  const auto of_none = lancet(again + files.folder.write("none.json", R"({"traceEvents": []})"));
  CHECK(of_none.code == 3);
  CHECK(of_none.lines_with("none.json: expected ") == 1);

  const auto refused = test::mpirun(2, train + "--set model.n_embd=64 --plan " + plan_file + " --run-dir " + run);
  CHECK(refused.code == 2);
  CHECK(refused.lines_with("plan.ir: header: model: expected a plan of the model with the hash ") == 1);
}
#endif

TEST_CASE("a plan file with a byte order mark and CRLF line ends runs") {
  const test::TemporaryFolder folder;
  const std::string train = "train " + folder.write("small.json", test::small_config_text) + " --set train.steps=2 ";
  REQUIRE(lancet(train + "--run-dir " + (folder / "made")).code == 0);
  std::string text = "\xef\xbb\xbf";
  for (const char c : text_of(folder / "made/plan.ir")) text += c == '\n' ? std::string("\r\n") : std::string(1, c);
  const auto outcome = lancet(train + "--plan " + folder.write("edited.ir", text) + " --run-dir " + (folder / "run"));
  INFO(outcome.output);
  CHECK(outcome.code == 0);
  CHECK(text_of(folder / "run/plan.ir") == text_of(folder / "made/plan.ir"));
}

TEST_CASE("plan --plan predicts the plan of a file, made for other costs, and refuses one of another step") {
  const PlanFiles files;
  const std::string plan = files.folder / "plan.ir", on = "plan " + files.config + " --on p3dn-v100";
  REQUIRE(lancet(on + " --ranks 2 --hosts 2 --set overlap.policy=dw --out " + plan).code == 0);
  const auto same = lancet(on + " --ranks 2 --hosts 2 --plan " + plan);
  const auto slow = lancet(on + ":network.nic_gbit_per_s=25 --ranks 2 --hosts 2 --plan " + plan);
  INFO(same.output << slow.output);
  REQUIRE((same.code == 0 && slow.code == 0));
  CHECK(slow.lines_with("as in " + plan) == 1);
  CHECK(number_in(same.output, "dw", 0) ==
        Approx(ir::parse_plan(text_of(plan))->header.real("predicted_ms")).margin(0.051));
  CHECK(number_in(slow.output, "dw", 0) > number_in(same.output, "dw", 0));

  const auto refusal = [&](const std::string& arguments) {
    const auto outcome = lancet(on + arguments);
    CHECK(outcome.code == 2);
    return outcome.output;
  };
  CHECK(refusal(" --ranks 4 --plan " + plan) ==
        "error: plan " + plan + ": header: ranks: expected a plan whose number of ranks is 4, found 2\n");
  CHECK(refusal(" --ranks 2 --plan " + plan + "x") ==
        "error: plan " + plan + "x: expected a plan, as lancet plan --out writes it, found no such file\n");
  const std::string other = files.folder.write("other.ir", "hello\n");
  CHECK(refusal(" --ranks 2 --plan " + other) == "error: plan " + other + ": line 1: expected '[', found 'hello'\n");
  CHECK(refusal(" --ranks 2 --passes --plan " + plan) ==
        "error: lancet plan: --passes excludes --plan; see lancet plan --help\n");
}

TEST_CASE("plan writes the program after each pass of the chosen policy, and lists the passes") {
  const PlanFiles files;
  const std::string folder = files.folder / "passes";
  const auto outcome =
      lancet("plan " + files.config + files.for_two + " --set overlap.policy=dw --passes --dump " + folder);
  INFO(outcome.output);
  REQUIRE(outcome.code == 0);
  const char* names[] = {"00_logical",    "01_autodiff", "02_shard",   "03_partition_spmd",
                         "04_sync",       "05_optimize", "06_move_dw", "07_chunk_all_reduces",
                         "08_plan_memory"};
  std::size_t found = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) found += entry.path().extension() == ".ir";
  CHECK(found == std::size(names));
  for (const char* name : names) {
    INFO(name);
    CHECK(outcome.lines_with(std::string(name).substr(3) + " ") >= 1);
    const std::string text = text_of(folder + "/" + name + ".ir");
    if (std::string_view(name) == "08_plan_memory")
      CHECK(ir::parse_plan(text).ok());
    else
      CHECK(ir::parse(text).ok());
  }
  const std::string policies = text_of(folder + "/policies.txt");
  for (std::string_view policy : planner::compared_policies()) CHECK(policies.find(policy) != std::string::npos);
  CHECK(policies.find("dw *") != std::string::npos);

  const auto again =
      lancet("plan " + files.config + files.for_two + " --set overlap.policy=sequential --dump " + folder);
  CHECK(again.code == 0);
  CHECK(std::filesystem::exists(folder + "/06_take_turns.ir"));
  CHECK_FALSE(std::filesystem::exists(folder + "/06_move_dw.ir"));
  for (const char* words : {" --dump /dev/null/x", " --out /dev/null/x", " --skip nope"}) {
    const auto refused = lancet("plan " + files.config + files.for_two + words);
    INFO(refused.output);
    CHECK(refused.code != 0);
    CHECK(refused.lines_with("costs: ") == 0);
  }
}

TEST_CASE("plan writes the logical program first, and the sharding of every tensor after the pass shard") {
  const PlanFiles files;
  const std::string folder = files.folder / "passes";
  const auto outcome =
      lancet("plan " + files.config + " --ranks 4 --set mesh.tensor=2 --on ethernet-10g-cpu --dump " + folder);
  INFO(outcome.output);
  REQUIRE(outcome.code == 0);
  CHECK(outcome.lines_with("mesh: expert 2 x tensor 2;") == 1);
  const std::string logical = text_of(folder + "/00_logical.ir"), text = text_of(folder + "/02_shard.ir");
  // The whole batch, with annotations on the inputs and parameters only.
  CHECK(test::matches(logical, "\ninput @tokens : i32\\[8\\{data,expert\\},16\\]\n"));
  CHECK(test::matches(logical, "\n%0 : f32\\[8,16,32\\] = embedding"));
  CHECK(test::matches(text, "\n%0 : f32\\[8\\{expert\\},16,32\\] partial\\{tensor\\} = embedding"));
  CHECK(test::matches(text, "\nparameter @h\\.0\\.attn\\.c_attn\\.weight : f32\\[3x32\\{tensor\\},32\\]\n"));
  CHECK(test::matches(text, "\nparameter @wpe\\.weight : f32\\[16,32\\] whole\n"));
  const auto sharded = test::good(ir::parse(text));
  REQUIRE(sharded->tensors.size() > 100);
  for (std::size_t i = 0; i < sharded->tensors.size(); ++i) {
    INFO(sharded->display({std::int32_t(i)}));
    CHECK(sharded->tensors[i].sharding);
  }
}

TEST_CASE("plan says why the end of a step does not run in the next one: the memory, or no gain") {
  const TemporaryFolder folder;
  const std::string hosts = LANCET_SOURCE_DIR "/configs/hardware/ethernet-10g-cpu.json";
  const std::string slow = folder.write(
      "slow.json",
      test::replaced(text_of(hosts), "\"nic_gbit_per_s\": {\"value\": 10,", "\"nic_gbit_per_s\": {\"value\": 0.5,"));
  const std::string command = "plan " LANCET_SOURCE_DIR
                              "/configs/bench-overlap.json --ranks 2 --set model.moe_layer_freq=0 "
                              "--set overlap.policy=lancet --set train.clip_grad=0 --on ";
  const std::string border = "border: each step ends before the next one begins: ";
  test::check_said(lancet(command + slow + " --set overlap.memory_factor=1.05"), 0,
                   {border + "nothing can be left to the next step within the memory that a plan may take; with more a "
                             "step is "});
  const auto crosses = lancet(command + slow);
  INFO(crosses.output);
  CHECK(crosses.lines_with("border: ") == 0);
  CHECK(crosses.lines_with(" in the next step") == 1);
  test::check_said(
      lancet(command + hosts), 0,
      {"why: lancet runs sequential: predicted ", border + "nothing left to the next step makes a step 0.2% shorter"});
}

TEST_CASE("plan fits a step into a memory limit, says what is recomputed, and refuses a limit that nothing fits") {
  const TemporaryFolder folder;
  const std::string command = "plan " LANCET_SOURCE_DIR "/configs/bench-overlap.json --ranks 2 --on ethernet-10g-cpu ";
  const std::string limit = "--set train.memory_limit_mb=";
  const auto refused = lancet(command + limit + "10");
  INFO(refused.output);
  CHECK(refused.code == 2);
  CHECK(refused.lines_with("error: ") == 1);
  const auto least = test::match(
      refused.output, "train.memory_limit_mb: expected at least ([0-9]+), with all recomputed that can be, found 10");
  REQUIRE(least.size() == 2);
  const std::string file = folder / "plan.ir";
  const auto planned = lancet(command + limit + least[1] + " --out " + file);
  INFO(planned.output);
  REQUIRE(planned.code == 0);
  const auto memory = test::match(planned.output,
                                  "\nlimit: ([0-9.]+) MB a rank of [0-9.]+ MB; the sequential step that "
                                  "keeps all activations needs ([0-9.]+) MB\n"
                                  "kept for the backward pass: ([0-9.]+) of ([0-9.]+) MB of activations\n");
  REQUIRE(memory.size() == 5);
  CHECK(std::stod(memory[1]) <= std::stod(least[1]));
  CHECK(std::stod(memory[1]) < std::stod(memory[2]));
  CHECK(std::stod(memory[3]) < std::stod(memory[4]));
  CHECK(planned.lines_with("recomputed in the backward pass: ") == 1);
  CHECK(planned.lines_with("  h.*.moe.experts.gelu") == 1);
  CHECK(planned.lines_with("; c recomputed") == 1);
  // The plan is one of the step without a limit, and keeps to a limit that it fits.
  CHECK(lancet(command + "--plan " + file).code == 0);
  CHECK(lancet(command + limit + least[1] + " --plan " + file).code == 0);
  const auto above = lancet(command + limit + "10 --plan " + file);
  CHECK(above.code == 2);
  CHECK(above.lines_with("expected a plan within train.memory_limit_mb, 10 MB a rank, found one of " + least[1]) == 1);
}

TEST_CASE("plan leaves out a pass that is named, and refuses one that no plan can do without") {
  const PlanFiles files;
  const std::string command = "plan " + files.config + files.for_two + " --set overlap.policy=dw --passes";
  CHECK(lancet(command + " --skip chunk_all_reduces").lines_with("chunk_all_reduces") == 0);
  CHECK(lancet(command).lines_with("chunk_all_reduces") == 1);
  const auto refused = lancet(command + " --skip sync");
  CHECK(refused.code == 2);
  CHECK(refused.lines_with("--skip: no plan can do without pass sync") == 1);
}

}  // namespace lancet
