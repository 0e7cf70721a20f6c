// The communications of a step, as lancet plan --explain lists them.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <optional>
#include <sstream>

#include "lancet/base/files.h"
#include "lancet/planner/planner.h"
#include "program.h"
#include "temporary_folder.h"
#include "text.h"

namespace lancet::test {
namespace {

// The explained plan of two MoE blocks and two dense ones on a declared machine.
Outcome explained_step(const std::string& mesh) {
  const TemporaryFolder folder;
  const auto outcome =
      lancet("plan " + folder.write("small.json", small_config_text) +
             " --on ethernet-10g-cpu --explain --set overlap.policy=sequential --set model.n_layer=4 " +
             "--set model.n_embd=256 --set train.micro_batch_size=16 --set train.dtype=fp32 " + mesh);
  INFO(outcome.output);
  REQUIRE(outcome.code == 0);
  return outcome;
}

// A row of the table, but for its last two columns.
struct CommunicationRow {
  int count = 0;
  std::string over;
  double megabytes = 0, ms_each = 0, ms = 0, exposed = 0;
};

// The rows that end with this text.
std::vector<CommunicationRow> communication_rows(const std::string& output, const std::string& end) {
  std::vector<CommunicationRow> rows;
  std::istringstream lines(output.substr(output.find("\ncommunication of a step") + 1));
  std::string line;
  std::getline(lines, line);
  std::getline(lines, line);
  while (std::getline(lines, line)) {
    if (!line.ends_with(end)) continue;
    CommunicationRow& row = rows.emplace_back();
    std::istringstream(line) >> row.count >> row.over >> row.megabytes >> row.ms_each >> row.ms >> row.exposed;
  }
  return rows;
}

// Checks the one row with this label and reason, and what a communication of it sends. count 0: any number of any size.
void check_row(const Outcome& outcome, int count, const std::string& over, double megabytes, std::string what,
               const std::string& why) {
  INFO(what << ": " << why);
  for (std::size_t at = 0; (at = what.find('*', at)) != what.npos; at += 2) what.insert(at, "\\");
  const auto found = match(outcome.output, "  (" + what + " +" + why + ")\n");
  REQUIRE(found.size() == 2);
  const auto rows = communication_rows(outcome.output, "  " + found[1]);
  REQUIRE(rows.size() == 1);
  const CommunicationRow& row = rows[0];
  CHECK(row.over == over);
  CHECK(row.ms == Approx(row.count * row.ms_each).margin(0.006 * (1 + row.count)));
  if (count == 0) return;
  CHECK(row.count == count);
  CHECK(row.megabytes == Approx(megabytes).margin(0.0051));
}

// All rows together take as long as the policy table says that the plan communicates.
void check_sums(const Outcome& outcome) {
  const auto rows = communication_rows(outcome.output, "");
  double ms = 0, exposed = 0;
  for (const CommunicationRow& row : rows) {
    CHECK(row.exposed <= row.ms);
    ms += row.ms;
    exposed += row.exposed;
  }
  const auto policy = match(outcome.output, "\nsequential \\* +[0-9.]+ +[0-9.]+ +([0-9.]+) +([0-9.]+) +([0-9.]+) ");
  REQUIRE(policy.size() == 4);
  const double margin = 0.1 + 0.005 * double(rows.size());
  CHECK(ms == Approx(std::stod(policy[1]) + std::stod(policy[2])).margin(margin));
  CHECK(exposed >= std::stod(policy[3]) - margin);  // two communications may be exposed at once
}

std::string sum_of(const std::string& maker, const std::string& reader) {
  return "the ranks have summands of " + maker + "'s result, " + reader + " reads the sum";
}

}  // namespace

// Of 256 tokens of 1 KB half go to the other rank.
TEST_CASE("the explanation says why each communication is there: experts on several ranks") {
  const auto outcome = explained_step("--ranks 2");
  INFO(outcome.output);
  REQUIRE(outcome.lines_with("communication of a step (expert 2)") == 1);
  CHECK(outcome.lines_with("Experts are on different ranks") == 1);
  const std::string to = " go to the ranks of the tokens' experts";
  const std::string back = " return from the experts to the ranks of the tokens";
  check_row(outcome, 2, "expert", 0.13, "h.*.moe.dispatch.all_to_all", "forward: activations" + to);
  check_row(outcome, 2, "expert", 0.13, "h.*.moe.experts.c_proj.all_to_all_back", "forward: activations" + back);
  check_row(outcome, 2, "expert", 0.13, "h.*.moe.experts.c_proj.all_to_all_back", "backward: gradients" + to);
  check_row(outcome, 2, "expert", 0.13, "h.*.moe.dispatch.all_to_all", "backward: gradients" + back);
  check_row(outcome, 2, "expert", 0, "h.*.moe.gate.all_to_all_counts",
            "forward: the ranks tell each other how many tokens their experts get");
  // Of the 54 parameters, four of each MoE block are of experts.
  check_row(outcome, 0, "expert", 0, "bucket.*",
            "the ranks have summands of the gradients of 46 parameters, the updates read the sums");
  check_row(outcome, 1, "expert", 0, "metrics",
            "the ranks have shares of the loss and of the other logged numbers, the records have the sums");
  check_row(outcome, 1, "expert", 0, "norm.expert", sum_of("squared_norm", "clip_scale"));
  check_sums(outcome);
}

// Activations of 16 sequences of 16 tokens of 1 KB; to be summed over two ranks, half of them are sent twice.
TEST_CASE("the explanation says why each communication is there: split weights and a split batch") {
  const std::string mesh = "--ranks 4 --set mesh.data=2 --set mesh.tensor=2";
  const auto outcome = explained_step(mesh);
  INFO(outcome.output);
  REQUIRE(outcome.lines_with("communication of a step (data 2 x tensor 2)") == 1);
  CHECK(outcome.lines_with("Every rank holds all experts: there is no all-to-all. Tensors are split") == 1);
  check_row(outcome, 4, "tensor", 0.26, "h.*.attn.c_proj.sum_shards", "forward: " + sum_of("linear", "add_layer_norm"));
  check_row(outcome, 2, "tensor", 0.26, "h.*.moe.combine.sum_shards",
            "forward: " + sum_of("combine", "add_layer_norm"));
  check_row(outcome, 4, "tensor", 0.26, "h.*.attn.c_attn.sum_shards",
            "backward: " + sum_of("linear_dx", "layer_norm_dx"));
  check_row(outcome, 1, "tensor", 0.26, "wte.sum_shards", "forward: " + sum_of("embedding", "layer_norm"));
  check_row(outcome, 1, "tensor", 0, "lm_head.stats.all_gather",
            "forward: the ranks have shards of logit_stats's result, loss_of_stats reads the whole");
  check_row(outcome, 0, "data", 0, "bucket.*",
            "the ranks have summands of the gradients of 54 parameters, the updates read the sums");
  check_row(outcome, 1, "tensor", 0, "norm.tensor", sum_of("squared_norm", "clip_scale"));
  check_sums(outcome);

  const auto sharded = explained_step(mesh + " --set train.zero=1 --set train.sequence_parallel=true");
  INFO(sharded.output);
  check_row(sharded, 0, "data", 0, "weights.*",
            "each rank has updated its shard of 34 parameters, the next step reads the whole");
  check_row(sharded, 0, "data", 0, "bucket.*",
            "the ranks have summands of the gradients of 34 parameters, each updates with its shard of the sums");
  // Layer norms and gates see a share of each sequence.
  check_row(sharded, 1, "data,tensor", 0.02, "bucket.*",
            "the ranks have summands of the gradients of 20 parameters, each updates with its shard of the sums");
  check_row(sharded, 1, "tensor", 0.13, "wte.reduce_scatter",
            "forward: the ranks have summands of embedding's result, layer_norm reads a shard of the sum");
  check_sums(sharded);
}

// The experts' results return as shards of their features. The backward pass needs them whole, so they travel once
// more.
TEST_CASE("the explanation says why each communication is there: experts whose weights are split") {
  const auto outcome =
      explained_step("--ranks 4 --set mesh.expert=2 --set mesh.tensor=2 --set model.capacity_factor=1.25");

  INFO(outcome.output);
  REQUIRE(outcome.lines_with("communication of a step (expert 2 x tensor 2)") == 1);
  check_row(outcome, 2, "tensor", 0.16, "h.*.moe.experts.c_proj.reduce_scatter",
            "forward: the ranks have summands of expert_linear's result, all_to_all_back reads a shard of the sum");
  check_row(outcome, 2, "expert", 0.07, "h.*.moe.experts.c_proj.all_to_all_back",
            "forward: activations return from the experts to the ranks of the tokens");
  check_row(outcome, 2, "expert", 0.13, "h.*.moe.combine.all_to_all",
            "backward: activations return from the experts to the ranks of the tokens");
  check_row(outcome, 1, "expert,tensor", 0, "norm.expert.tensor", sum_of("squared_norm", "clip_scale"));
  check_sums(outcome);
}

// Schedules of fastermoe have helpers on the stream of the all-to-alls.
TEST_CASE("the explanation names every communication, and nothing else, under every policy") {
  const TemporaryFolder folder;
  const std::string config = folder.write("small.json", small_config_text), plan = folder / "plan.ir";
  bool splits_peers = false;
  for (const planner::PolicyInfo& policy : planner::policies()) {
    INFO(policy.name);
    const auto outcome = lancet(
        fmt::format("plan {} --ranks 16 --on p3dn-v100 --explain --set overlap.policy={} --set model.n_embd=768 --set "
                    "model.n_positions=512 --set train.seq_len=512 --set train.micro_batch_size=8 --set "
                    "model.num_local_experts=32 --set model.capacity_factor=1.25 --out {}",
                    config, policy.name, plan));
    INFO(outcome.output);
    REQUIRE(outcome.code == 0);
    CHECK(outcome.lines_with("communication of a step (expert 16)") == 1);
    CHECK_FALSE(communication_rows(outcome.output, "").empty());
    splits_peers |= read_file(plan, "a plan")->find("= split_peers(") != std::string::npos;
  }
  CHECK(splits_peers);
}

}  // namespace lancet::test
