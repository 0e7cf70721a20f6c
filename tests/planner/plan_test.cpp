// Whole plans of the small GPT-2 MoE (tests/golden/gpt2_moe_*.ir, checked by tests/model), and of a larger one.
#include <map>
#include <random>
#include <set>

#include "declared_costs.h"
#include "golden/golden.h"
#include "good.h"
#include "lancet/cost/profile.h"
#include "lancet/ir/dependencies.h"
#include "lancet/planner/planner.h"
#include "lancet/schedule/plan_memory.h"
#include "steps/models.h"
#include "steps/support.h"

using namespace lancet;
using namespace lancet::test;
using ir::TensorId;

namespace {

planner::PlanRequest request(int ranks) {
  planner::PlanRequest r;
  r.mesh = ir::of_experts(ranks);
  r.overlap.bucket_bytes = 20'000;
  r.optimizer.weight_decay = 0.1;
  r.optimizer.clip_grad = 1;
  r.optimizer.mesh = ir::of_experts(ranks);
  return r;
}

ir::Plan planned(const ir::Program& forward, const planner::PlanRequest& r) {
  auto plan = test::good(planner::make_plan(forward, r));
  return *plan;
}

// The most bytes alive at once when instructions run one by one in program order: a lower bound of any arena.
std::int64_t most_alive(const ir::Program& p) {
  const int never = -1, end = int(p.instructions.size());
  struct Life {
    int first = -1, last = -1;
  };
  std::map<std::int32_t, Life> lives;  // by owner of memory
  auto touch = [&](TensorId id, int time) {
    while (p.tensors[id.index()].storage.valid()) id = p.tensors[id.index()].storage;
    if (p.tensors[id.index()].kind != ir::TensorKind::value) return;
    Life& life = lives[id.value];
    if (life.first == never) life.first = time;
    life.last = time;
  };
  for (int i = 0; i < end; ++i) {
    for (TensorId id : p.instructions[std::size_t(i)].operands) touch(id, i);
    for (TensorId id : p.instructions[std::size_t(i)].results) touch(id, i);
  }
  for (const ir::Output& output : p.outputs) touch(output.tensor, end);
  std::int64_t most = 0;
  for (int i = 0; i < end; ++i) {
    std::int64_t alive = 0;
    for (const auto& [id, life] : lives)
      if (life.first <= i && i <= life.last) alive += ir::bytes(p.type(TensorId{id}));
    most = std::max(most, alive);
  }
  return most;
}

int count(const ir::Program& p, std::string_view op) {
  int n = 0;
  for (const ir::Instruction& i : p.instructions) n += i.op == op;
  return n;
}

}  // namespace

TEST_CASE("the whole step of the small model survives a round trip through text") {
  for (int ranks : {1, 2}) {
    const ir::Plan plan = planned(model(ranks), request(ranks));
    require_sound(ops::verify(plan.program));
    const std::string text = ir::print(plan);
    const auto read = test::good(ir::parse_plan(text));
    require_sound(ir::verify(*read));
    REQUIRE((ir::print(*read) == text));
    REQUIRE((ir::print(planned(model(ranks), request(ranks))) == text));  // the same plan twice
    REQUIRE(plan.header.text("policy") == "sequential");
    REQUIRE(plan.header.integer("ranks") == ranks);
    REQUIRE(plan.header.text("model").size() == 16);
  }
}

TEST_CASE("every product has exactly one dW, as a separate instruction with role dw") {
  const ir::Program p = planned(model(2), request(2)).program;
  std::multiset<std::string> products, gradients;
  for (const ir::Instruction& i : p.instructions) {
    if (i.op == "linear" || i.op == "expert_linear" || i.op == "router") products.insert(i.label);
    if (i.op == "linear_dw" || i.op == "expert_linear_dw" || i.op == "router_dw") gradients.insert(i.label);
    const bool dw = i.op.ends_with("_dw");
    INFO(i.op << " " << i.label);
    REQUIRE((i.role == ir::Role::dw) == dw);
    if (i.op.ends_with("_dx")) REQUIRE(i.role == ir::Role::dx);
  }
  REQUIRE(products.size() == 4 * 2 + 2 * 2 + 2 * 2 + 2 + 1);  // attention, dense, experts, gates, head
  REQUIRE(gradients == products);
  REQUIRE(count(p, "linear_dx") == count(p, "linear"));
  REQUIRE(count(p, "expert_linear_dx") == count(p, "expert_linear"));
  REQUIRE(count(p, "adamw") == 2 + 2 + 2 * 13 + 2 * 12);  // each parameter once
}

TEST_CASE("memory: at least the bytes alive at once, and little more") {
  for (int ranks : {1, 2})
    for (auto [accumulate, micro_batches] : {std::pair(false, 1), std::pair(true, 1), std::pair(true, 3)}) {
      planner::PlanRequest r = request(ranks);
      r.accumulate = accumulate;
      r.micro_batches = micro_batches;
      const ir::Plan plan = planned(model(ranks), r);
      const std::int64_t least = most_alive(plan.program);
      INFO(ranks << " ranks: " << plan.arena_bytes << " bytes, at least " << least);
      REQUIRE(least > 100'000);
      CHECK(plan.arena_bytes >= least);
      CHECK(double(plan.arena_bytes) <= 1.15 * double(least));
    }
}

TEST_CASE("memory: only values that are not alive side by side share bytes") {
  // a chain of values of one size: two offsets are enough
  const ir::Program chain = program(
      "input @x : f32[32]\n%0 : f32[32] = add(@x, @x)  # compute forward\n%1 : f32[32] = add(%0, @x)  # compute "
      "forward\n"
      "%2 : f32[32] = add(%1, @x)  # compute forward\n%3 : f32[32] = add(%2, @x)  # compute forward\noutput y = %3\n");
  const ir::Plan plan = schedule::plan_memory(chain, ir::dependencies(chain));
  require_sound(ir::verify(plan));
  REQUIRE(plan.arena_bytes == 256);
  // The reduce stream may still read %0 when the compute stream makes %2: three offsets, as compute does not wait.
  const ir::Program streams = program(
      "input @x : f32[32]\n%0 : f32[32] = add(@x, @x)  # compute forward\n%1 : f32[32] in %0 = all_reduce(%0)  # "
      "reduce sync\n"
      "%2 : f32[32] = add(@x, @x)  # compute forward\n%3 : f32[32] = add(%2, @x)  # compute forward\n%4 : f32[32] = "
      "add(%3, @x)  # compute forward\n"
      "%5 : f32[32] = add(%4, %1)  # compute forward\noutput y = %5\n");
  const ir::Plan apart = schedule::plan_memory(streams, ir::dependencies(streams));
  require_sound(ir::verify(apart));
  REQUIRE(apart.arena_bytes == 3 * 128);
  REQUIRE(apart.waits[1] == std::vector<ir::InstructionId>{{0}});
  REQUIRE(apart.waits[5] == std::vector<ir::InstructionId>{{1}});
  REQUIRE(apart.waits[2].empty());
}

TEST_CASE("memory: a view lives from the first part's maker to the last reader on any stream") {
  const ir::Program p = *ir::parse(R"(input @x : f32[32]
%0 : f32[32] = f(@x)  # compute forward
view %1 : f32[32]
%2 : f32[16] in %1 + 0 = g(%0)  # expert forward
%3 : f32[16] in %1 + 64 = g(%0)  # compute forward
%4 : f32[32] = h(%1)  # reduce forward
%5 : f32[32] = f(@x)  # compute forward
%6 : f32[32] = k(%5)  # compute forward
%7 : f32[32] = k(%6, %4)  # compute forward
output y = %7
)");
  const ir::Plan plan = schedule::plan_memory(p, ir::dependencies(p));
  require_sound(ir::verify(plan));
  REQUIRE(plan.waits[1] == std::vector<ir::InstructionId>{{0}});
  REQUIRE(plan.waits[2].empty());
  REQUIRE(plan.waits[3] == std::vector<ir::InstructionId>{{1}, {2}});
  REQUIRE(plan.waits[6] == std::vector<ir::InstructionId>{{3}});
  std::map<int, std::int64_t> at;
  for (std::size_t i = 0; i < p.tensors.size(); ++i) at[p.tensors[i].number] = plan.offsets[i];
  REQUIRE(at[2] == -1);
  REQUIRE(at[3] == -1);
  // The reduce stream waits for both readers of %0, so %4 may reuse its memory. Compute waits for the other streams
  // only in its last instruction: %1, %4, %5 and %6 are alive at once.
  REQUIRE(plan.arena_bytes == 4 * 128);
  REQUIRE(at[4] == at[0]);
  REQUIRE((at[7] == at[1] || at[7] == at[5]));

  // In one stream three offsets are enough.
  ir::Program chain = p;
  for (ir::Instruction& i : chain.instructions) i.stream = ir::Stream::compute;
  REQUIRE(schedule::plan_memory(chain, ir::dependencies(chain)).arena_bytes == 3 * 128);
}

namespace {

// Values, wholes of two halves or two parts, and readers, on random streams.
ir::Program random_parts(std::mt19937_64& random) {
  auto below = [&](std::size_t bound) { return std::size_t(random() % bound); };
  ir::Program p;
  std::vector<TensorId> readable{p.add_named(ir::TensorKind::input, "x", {DType::f32, {16}})};
  auto emit = [&](std::vector<TensorId> results) {
    ir::Instruction i{"f", {}, std::move(results), {}, {}, static_cast<ir::Stream>(below(3)), ir::Role::forward, ""};
    for (std::size_t n = below(3); n > 0; --n)
      i.operands.push_back(readable[readable.size() - 1 - below(std::min<std::size_t>(readable.size(), 5))]);
    p.instructions.push_back(i);
  };
  while (p.instructions.size() < 30) {
    const std::int64_t extent = std::int64_t(16 << below(3));
    const ir::TensorType type{DType::f32, {extent}};
    const std::size_t what = below(3);
    if (what == 0) {
      const TensorId value = p.add_value(type);
      emit({value});
      readable.push_back(value);
      readable.push_back(p.add_view({DType::f32, {8}}, value, ir::Slice{32, 0, 0}));
      continue;
    }
    const TensorId whole = p.add_view(type);
    const bool halves = what == 1;
    for (std::int32_t part = 0; part < 2; ++part) {
      emit({halves ? p.add_value({DType::f32, {extent / 2}}, whole, ir::Slice{part * extent * 2, 0, 0})
                   : p.add_value(type, whole, ir::Slice{0, part, 2})});
      if (below(2)) emit({});  // another instruction in between
    }
    readable.push_back(whole);
  }
  p.outputs.push_back({"y", readable.back()});
  return p;
}

}  // namespace

TEST_CASE("memory: values that share bytes are used in turn, on any streams") {
  std::mt19937_64 random(11);
  int shared = 0;
  for (int round = 0; round < 100; ++round) {
    const ir::Program p = random_parts(random);
    INFO(ir::print(p));
    const ir::Plan plan = schedule::plan_memory(p, ir::dependencies(p));
    require_sound(ir::verify(plan));
    const ir::HappensBefore order(p, plan.waits);
    const auto touched = ir::accesses(p);
    auto all_before = [&](std::size_t a, std::size_t b) {
      for (ir::InstructionId i : touched[a])
        for (ir::InstructionId j : touched[b])
          if (!order.ordered(i, j)) return false;
      return true;
    };
    for (std::size_t a = 0; a < p.tensors.size(); ++a)
      for (std::size_t b = 0; b < a; ++b) {
        const std::int64_t x = plan.offsets[a], y = plan.offsets[b];
        if (x < 0 || y < 0 || x >= y + ir::bytes(p.tensors[b].type) || y >= x + ir::bytes(p.tensors[a].type)) continue;
        ++shared;
        REQUIRE((all_before(a, b) || all_before(b, a)));
      }
  }
  REQUIRE(shared > 100);
}

TEST_CASE("memory: the tensors that one all-reduce sums are contiguous") {
  for (std::int64_t bucket : {1, 20'000, 1 << 30}) {
    planner::PlanRequest r = request(2);
    r.overlap.bucket_bytes = bucket;
    const ir::Plan plan = planned(model(2), r);
    int groups = 0;
    for (const ir::Instruction& i : plan.program.instructions) {
      if (i.op != "all_reduce" || i.operands.size() < 2) continue;
      ++groups;
      std::int64_t end = -1;
      for (TensorId id : i.operands) {
        const TensorId root = plan.program.root(id);
        INFO(i.label << " " << plan.program.display(id));
        REQUIRE(plan.offsets[root.index()] >= 0);
        if (end >= 0) REQUIRE(plan.offsets[root.index()] == end);
        CHECK(plan.offsets[root.index()] % 64 == 0);
        end = (plan.offsets[root.index()] + ir::bytes(plan.program.type(root)) + 63) / 64 * 64;
      }
    }
    REQUIRE(groups >= (bucket == 1 ? 1 : 2));  // metrics, and gradients if a bucket holds more than one
  }
}

TEST_CASE("in the sequential policy compute and all-to-all take turns") {
  const ir::Plan plan = planned(model(2), request(2));
  const ir::HappensBefore order(plan.program, plan.waits);
  const auto n = std::int32_t(plan.program.instructions.size());
  int pairs = 0;
  for (std::int32_t i = 0; i < n; ++i)
    for (std::int32_t j = 0; j < i; ++j) {
      const ir::Stream a = plan.program.instructions[std::size_t(j)].stream,
                       b = plan.program.instructions[std::size_t(i)].stream;
      if (a == ir::Stream::reduce || b == ir::Stream::reduce || a == b) continue;
      ++pairs;
      REQUIRE(order.ordered({j}, {i}));
    }
  REQUIRE(pairs > 1000);
  REQUIRE(count(plan.program, "all_to_all") == 2 * 2);  // forward and backward
  REQUIRE(count(plan.program, "all_to_all_back") == 2 * 2);
  REQUIRE(count(plan.program, "all_to_all_counts") == 2);  // rule 3: once
}

TEST_CASE("gradients of experts are not reduced, all others once") {
  const ir::Program p = planned(model(2),
                                [] {
                                  planner::PlanRequest r = request(2);
                                  r.optimizer.keep_gradients = true;
                                  return r;
                                }())
                            .program;
  std::set<std::int32_t> reduced;
  for (const ir::Instruction& i : p.instructions)
    if (i.op == "all_reduce")
      for (TensorId id : i.results) REQUIRE(reduced.insert(p.root(id).value).second);
  int local = 0, shared = 0;
  for (const ir::Output& output : p.outputs) {
    if (output.kind != ir::OutputKind::gradient) continue;
    const bool is_local = p[output.parameter].sharding.has_value();
    (is_local ? local : shared)++;
    INFO(output.name);
    REQUIRE(reduced.contains(p.root(output.tensor).value) == !is_local);
  }
  REQUIRE(local == 2 * 4);
  REQUIRE(shared == 2 + 2 + 2 * 9 + 2 * 12);
}

TEST_CASE("an unknown policy is refused by name") {
  const DeclaredCosts costs;
  planner::PlanRequest r = request(1);
  r.overlap.policy = "magic";
  const Error plan = test::refused(planner::make_plan(model(1), r));
  REQUIRE(plan.code == ExitCode::config);
  REQUIRE_THAT(plan.message, Catch::Contains("overlap.policy: expected one of") && Catch::Contains("found 'magic'"));
  REQUIRE(plan.message.find('\n') == std::string::npos);
  REQUIRE_FALSE(planner::policies().empty());
  for (const auto& [known, what, cuts] : planner::policies()) {
    REQUIRE_THAT(plan.message, Catch::Contains(std::string(known)));
    r.overlap.policy = known;
    r.costs = &costs;
    REQUIRE(planner::make_plan(model(1), r).ok());
    r.costs = nullptr;  // only the program's own order needs no costs
    REQUIRE(planner::make_plan(model(1), r).ok() == (known == "sequential"));
  }
}

std::vector<std::string> names_of(const planner::PlanReport& report) {
  std::vector<std::string> names;
  for (const planner::PassRun& run : report.passes) names.push_back(run.name);
  return names;
}

TEST_CASE("a policy leaves sequential only for a gain above least_gain; auto is a name of lancet") {
  const ir::Program forward = model(2);
  planner::PlanRequest r = request(2);
  const DeclaredCosts costs;
  r.costs = &costs;
  r.compare = true;
  r.overlap.policy = "auto";
  planner::PlanReport report;
  REQUIRE(planner::make_plan(forward, r, &report).ok());
  REQUIRE(report.chosen == "lancet");
  const auto ms_of = [&](std::string_view policy) {
    for (const planner::PolicyResult& result : report.policies)
      if (result.policy == policy) return result.timeline.makespan;
    return 0.0;
  };
  const double gain = 1 - ms_of("lancet") / ms_of("sequential");
  for (const auto& [policy, least_gain, chosen] :
       {std::tuple{"auto", gain * 0.99, "lancet"}, std::tuple{"auto", gain * 1.01, "sequential"},
        std::tuple{"lancet", gain * 0.99, "lancet"}, std::tuple{"tutel", 0.99, "sequential"}}) {
    r.overlap.policy = policy;
    r.least_gain = least_gain;
    REQUIRE(planner::make_plan(forward, r, &report).ok());
    CHECK(report.chosen == chosen);
    CHECK((report.why.find("by which predictions err") != std::string::npos) == (report.chosen == "sequential"));
  }
}

TEST_CASE("a plan alone is predicted to take what its policy predicts, and under a load as much longer as that says") {
  DeclaredCosts costs;
  costs.network_mb_per_s = 2;
  planner::PlanRequest r = request(2);
  r.costs = &costs;
  for (const std::string_view policy : planner::compared_policies()) {
    r.overlap.policy = policy;
    const ir::Plan plan = planned(model(2), r);
    const auto alone = schedule::simulate(plan, costs), loaded = schedule::simulate(plan, *costs.under({2, 1}));
    REQUIRE(alone.ok());
    REQUIRE(loaded.ok());
    INFO(policy);
    CHECK(alone->makespan == Approx(plan.header.real("predicted_ms")).epsilon(2e-3));
    CHECK(loaded->makespan > 1.04 * alone->makespan);
    CHECK(loaded->makespan < 2 * alone->makespan);
  }
  const cost::Profile empty;
  CHECK_FALSE(schedule::simulate(planned(model(2), r), empty).ok());
}

TEST_CASE("the pipeline keeps the program after each pass, and names a pass that breaks it") {
  planner::PlanRequest r = request(2);
  r.keep_texts = true;
  planner::PlanReport report;
  const auto plan = test::good(planner::make_plan(model(2), r, &report));
  REQUIRE(names_of(report) == std::vector<std::string>{"logical", "autodiff", "shard", "partition_spmd", "sync",
                                                       "optimize", "take_turns", "plan_memory"});
  CHECK(report.passes[0].text == ir::print(model(2)));
  CHECK(report.passes[1].text == ir::print(passes::autodiff(model(2))));
  CHECK(report.passes[5].text == ir::print(plan->program));
  CHECK(report.passes[5].instructions == plan->program.instructions.size());
  ir::Plan last = *plan;
  last.header = {};
  CHECK(report.passes[7].text == ir::print(last));

  ir::Program broken = model(1);
  broken.instructions[0].op = "no_such_op";
  REQUIRE_THROWS_WITH(planner::make_plan(broken, request(1)),
                      Catch::Contains("after pass logical") && Catch::Contains("no such op"));
}

TEST_CASE("a policy that starts from the fastest other one reports the passes that made its plan") {
  const DeclaredCosts costs;
  planner::PlanRequest r = request(2);
  r.costs = &costs;
  r.overlap.policy = "dw";
  planner::PlanReport report;
  REQUIRE(planner::make_plan(model(2), r, &report).ok());
  const std::vector<std::string> step{"logical", "autodiff", "shard", "partition_spmd", "sync", "optimize"};
  auto with = [&](std::vector<std::string> names) {
    names.insert(names.begin(), step.begin(), step.end());
    names.push_back("plan_memory");
    return names;
  };
  CHECK(report.chosen == "dw");
  CHECK(names_of(report) == with({"move_dw", "chunk_all_reduces"}));
  CHECK(report.passes[0].text.empty());  // texts were not requested

  r.overlap.policy = "lancet";
  REQUIRE(planner::make_plan(model(2), r, &report).ok());
  CHECK(report.chosen == "lancet");
  CHECK(names_of(report) ==
        with({"move_dw", "chunk_all_reduces", "search_orders", "search_orders_with_rings", "across_steps"}));
}

TEST_CASE("a pass is skipped by name; required or unknown passes are refused") {
  const DeclaredCosts costs;
  planner::PlanRequest r = request(2);
  r.costs = &costs;
  r.overlap.policy = "dw";
  planner::PlanReport with, without;
  REQUIRE(planner::make_plan(model(2), r, &with).ok());
  r.skip = {"chunk_all_reduces"};
  REQUIRE(planner::make_plan(model(2), r, &without).ok());
  CHECK(names_of(with).size() == names_of(without).size() + 1);
  for (const std::string& name : names_of(without)) CHECK(name != "chunk_all_reduces");
  r.skip = {"autodiff"};
  CHECK(planner::make_plan(model(2), r).error().message == "--skip: no plan can do without pass autodiff");
  r.skip = {"magic"};
  const Error unknown = planner::make_plan(model(2), r).error();
  CHECK(unknown.code == ExitCode::config);
  CHECK_THAT(unknown.message, Catch::Contains("--skip: expected one of fuse, take_turns, ") &&
                                  Catch::Contains("search_orders_with_rings, across_steps, found 'magic'"));
}

TEST_CASE("a forward plan sums its shares, and keeps nothing for a backward pass") {
  const ir::Program forward = program(R"(input @tokens : i32[4{data,expert},3]
parameter @wte : f32[11,4]
parameter @wpe : f32[5,4]
input @targets : i32[4{data,expert},3]
%0 : f32[4,3,4] = embedding(@tokens, @wte, @wpe)  # compute forward wte
%1 : f32[4,3,11] = linear(%0, @wte)  # compute forward head
%2 : f32[1] = cross_entropy(%1, @targets) {vocabulary=11, total_tokens=12}  # compute forward loss
output loss = %2
)");
  for (int ranks : {1, 2}) {
    const ir::Plan plan = planner::make_forward_plans(forward, ir::of_experts(ranks)).value()[0];
    REQUIRE(plan.program.instructions.size() == (ranks == 1 ? 3 : 4));
    REQUIRE(count(plan.program, "all_reduce") == ranks - 1);
    require_sound(ir::verify(plan));
  }
}
