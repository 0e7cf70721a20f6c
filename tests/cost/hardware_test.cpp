// A declared machine: the required content of its file, and the results of its formulas, computed by hand.
#include "lancet/cost/hardware.h"
#include "lancet/base/files.h"

#include <catch2/catch.hpp>

#include "declared_costs.h"
#include "good.h"
#include "lancet/ir/plan.h"
#include "text.h"

using namespace lancet;
using namespace lancet::cost;
using test::replaced;

namespace {

// 4 devices a node of 1 TFLOPS, links of 8 GB/s, one NIC of 16 Gbit/s (2 GB/s); round numbers throughout.
std::string machine_text() {
  return R"({"what": "a machine of round numbers",
"device": {
  "memory_gib": {"value": 2, "source": "t"}, "reserved_gib": {"value": 0.5, "source": "t"},
  "memory_gb_per_s": {"value": 100, "source": "t"}, "memory_efficiency": {"value": 0.5, "source": "t"},
  "fp32_tflops": {"value": 1, "source": "t"}, "bf16_tflops": {"value": 4, "source": "t"},
  "vector_tflops": {"value": 0.1, "source": "t"}, "attention_efficiency": {"value": 0.25, "source": "t"},
  "launch_us": {"value": 10, "source": "t"},
  "fp32_efficiency": {"points": [[100, 0.5], [300, 1]], "source": "t"},
  "bf16_efficiency": {"points": [[100, 0.5]], "source": "t"}},
"node": {"devices": {"value": 4, "source": "t"}, "link_gb_per_s": {"value": 16, "source": "t"},
  "all_to_all_efficiency": {"points": [[4, 1, 0.5]], "source": "t"},
  "all_reduce_efficiency": {"points": [[4, 1, 0.5]], "source": "t"}, "latency_us": {"value": 10, "source": "t"}},
"network": {"nics": {"value": 1, "source": "t"}, "nic_gbit_per_s": {"value": 32, "source": "t"},
  "all_to_all_efficiency": {"points": [[2, 1, 0.5]], "source": "t"},
  "all_reduce_efficiency": {"points": [[2, 1, 0.5]], "source": "t"}, "latency_us": {"value": 100, "source": "t"},
  "hop_us": {"value": 20, "source": "t"}, "message_us": {"value": 50, "source": "t"}},
"overlap": {"core_share": {"value": 0.1, "source": "t"}, "core_ms_per_mb": {"value": 0.5, "source": "t"},
  "network_beside_compute": {"value": 0.9, "source": "t"}, "network_beside_network": {"value": 0.5, "source": "t"},
  "signal_us": {"value": 7, "source": "t"}}})";
}

Hardware machine() { return *parse_hardware(machine_text(), "round.json"); }

std::string refused(const std::string& text) {
  const Error hardware = test::refused(parse_hardware(text, "round.json"));
  CHECK(hardware.code == ExitCode::config);
  return hardware.message;
}

ir::Program one(const std::string& operands, const std::string& line) {
  return *ir::parse("program p\n" + operands + line + "\n");
}

double ms_of(const ir::Program& program) { return op_ms(machine(), program, program.instructions[0]); }

}  // namespace

TEST_CASE("a product costs its arithmetic at the efficiency of its size") {
  // 200^3 multiply-adds: half way between the points.
  const auto square = one("input @x : f32[200,200]\nparameter @w : f32[200,200]\n",
                          "%0 : f32[200,200] = linear(@x, @w)  # compute forward p");
  CHECK(ms_of(square) == Approx(0.010 + 2 * 200.0 * 200 * 200 / (1e9 * 0.75)));
  const auto large = one("input @x : f32[600,600]\nparameter @w : f32[600,600]\n",
                         "%0 : f32[600,600] = linear(@x, @w)  # compute forward p");
  CHECK(ms_of(large) == Approx(0.010 + 2 * 600.0 * 600 * 600 / 1e9));
  const auto small = one("input @x : f32[50,50]\nparameter @w : f32[50,50]\n",
                         "%0 : f32[50,50] = linear(@x, @w)  # compute forward p");
  CHECK(ms_of(small) == Approx(0.010 + std::max(2 * 50.0 * 50 * 50 / (1e9 * 0.25), 3 * 50.0 * 50 * 4 / (50e6))));
  const auto half = one("input @x : bf16[400,400]\nparameter @w : bf16[400,400]\n",
                        "%0 : bf16[400,400] = linear(@x, @w)  # compute forward p");
  CHECK(ms_of(half) == Approx(0.010 + 2 * 400.0 * 400 * 400 / (4e9 * 0.5)));
}

TEST_CASE("an op without products costs the slower of memory and vector units") {
  const auto sum = one("input @x : f32[1000,1000]\ninput @y : f32[1000,1000]\n",
                       "%0 : f32[1000,1000] = add(@x, @y)  # compute forward p");
  CHECK(ms_of(sum) == Approx(0.010 + 12e6 / 50e6));
}

TEST_CASE("a choice of experts costs its softmax, and each choice a look at all logits") {
  const auto ms = [](const std::string& k) {
    return ms_of(one("input @x : f32[4,256,8]\n", "%0 : i32[1024," + k + "], %1 : f32[1024," + k +
                                                      "], %2 : f32[4,256,8] = top_k(@x) {k=" + k +
                                                      "}  # compute forward p"));
  };
  const double logits = 4 * 256 * 8;
  CHECK(ms("1") == Approx(0.010 + std::max((2 * 4 * logits + 8 * 1024) / 50e6, 12 * logits / 0.1e9)));
  CHECK(ms("4") == Approx(0.010 + std::max((2 * 4 * logits + 4 * 8 * 1024) / 50e6, 15 * logits / 0.1e9)));
}

TEST_CASE("a batch-prioritized gate costs its sort on top of a Switch gate") {
  const auto ms = [](const std::string& gate) {
    return ms_of(one("input @e : i32[1024,1]\ninput @w : f32[1024,1]\n",
                     "%0 : i32[1024,1], %1 : i32[1,8], %2 : i32[8,2], %3 : f32[2,8] = " + gate +
                         " {capacity=200, groups=1, experts=8}  # compute forward p"));
  };
  CHECK(ms("slots(@e)") == Approx(0.010 + 3 * 4 * 1024 / 50e6));
  // Three more kernels; 1,024 keys of 8 bytes, read and written ten times.
  CHECK(ms("slots_by_priority(@e, @w)") == Approx(0.040 + (3 * 4 * 1024 + 2 * 8 * 1024 * 10) / 50e6));
}

TEST_CASE("all-to-all within a node, between nodes, and by messages") {
  const Hardware h = machine();
  CHECK(all_to_all_ms(h, {1, 1}, 1e6) == 0);
  CHECK(all_to_all_ms(h, {4, 1}, 0) == 0);
  // 8 GB/s of links.
  CHECK(all_to_all_ms(h, {4, 1}, 8e6) == Approx(0.010 + 1));
  // 2 nodes of 4: 4 of 7 MB leave the node, together with those of 3 other ranks, through 2 GB/s.
  CHECK(all_to_all_ms(h, {8, 2}, 7e6) == Approx(0.100 + 4e6 * 4 / 2e6));
  // One rank per node: nothing is gathered, every message goes directly.
  CHECK(all_to_all_ms(h, {2, 2}, 1e6) == Approx(0.100 + 0.5));
  CHECK(all_to_all_ms(h, {101, 101}, 1) == Approx(0.100 + 99 * 0.050));
  // 100 nodes of 4 and few bytes: 396 messages per rank, or 99 after a gathering step.
  CHECK(all_to_all_ms(h, {400, 100}, 4) == Approx(0.110 + 98 * 0.050).epsilon(1e-4));
}

TEST_CASE("an uneven all-to-all waits for the fullest rank; a group of peers sends fewer messages") {
  const Hardware h = machine();
  const Spread twice{.fullest = 2};
  CHECK(all_to_all_ms(h, {4, 1}, 8e6, twice) == Approx(0.010 + 2));
  CHECK(all_to_all_ms(h, {2, 2}, 1e6, twice) == Approx(0.100 + 1));
  // The NICs of a node carry the traffic of all its ranks, fuller ones and others.
  CHECK(all_to_all_ms(h, {8, 2}, 7e6, twice) == Approx(0.100 + 4e6 * 4 / 2e6));
  CHECK(all_to_all_ms(h, {101, 101}, 1, {.share = 0.5}) == Approx(0.100 + 49 * 0.050));
  CHECK(all_to_all_ms(h, {400, 100}, 4, {.share = 0.25}) == Approx(0.110 + 23.75 * 0.050).epsilon(1e-4));
}

TEST_CASE("with an imbalanced gate the capacity keeps the tokens that fit") {
  CHECK(Routing{}.kept() == 1);
  CHECK(Routing{.imbalance = 2, .capacity = 2}.kept() == 1);
  CHECK(Routing{.imbalance = 2, .capacity = 4}.fullest() == 2);
  // Expert loads from 0 to 2, cut at 1: a quarter is dropped.
  CHECK(Routing{.imbalance = 2, .capacity = 1}.kept() == Approx(0.75));
  CHECK(Routing{.imbalance = 2, .capacity = 1}.fullest() == 1);
  // Below 1 relative to what even routing keeps: of 2u and at most 0.5, 0.25^2 + 0.5 * 0.75 of 0.5.
  CHECK(Routing{.capacity = 0.5}.kept() == 1);
  CHECK(Routing{.imbalance = 2, .capacity = 0.5}.kept() == Approx(0.4375 / 0.5));
  CHECK(Routing{.imbalance = 2, .capacity = 0.5}.fullest() == 1);
  // 3 u^2 cut at 1.5: u0 = sqrt(1/2), u0^3 + 1.5 (1 - u0).
  CHECK(Routing{.imbalance = 3, .capacity = 1.5}.kept() == Approx(std::pow(0.5, 1.5) + 1.5 * (1 - std::sqrt(0.5))));
}

TEST_CASE("routing scales all-to-alls of tokens and the experts' work, but not the counts or other work") {
  // 2 nodes of 4, 8 experts of 100 slots: 8 MB of 10,000 bytes per token, 7/8 of them to other ranks.
  const auto program = *ir::parse(R"(program p
input @expert : i32[400,1]
input @slot : i32[400,1]
input @filled : i32[8,2]
input @slots : f32[8,100,2500]
parameter @w : f32[1,300,2500]
parameter @b : f32[1,300]
%0 : i32[1,9] = all_to_all_counts(@filled) {ranks=8}  # expert forward h.0.counts
%1 : f32[1,800,2500] = all_to_all(@slots, @filled, %0) {tokens=400}  # expert forward h.0.there
%2 : f32[1,800,300] = expert_linear(%1, @w, @b, %0) {tokens=400}  # compute forward h.0.experts
%3 : f32[8,100,2500] = dispatch(@slots, @expert, @slot, @filled) {slots=100}  # compute forward dispatch
)");
  const auto all_to_all = [&](std::size_t i, const Routing& routing) {
    return HardwareCosts(machine(), {8, 2}, {}, routing).all_to_all(program, program.instructions[i]).ms;
  };
  const auto work = [&](std::size_t i, const Routing& routing) {
    return HardwareCosts(machine(), {8, 2}, {}, routing).op_ms(program, program.instructions[i]).value();
  };
  // 3.5 MB, of which 4/7 pass the NIC together with those of 3 other ranks.
  CHECK(all_to_all(1, {}) == Approx(0.100 + 2e6 * 4 / 2e6));
  CHECK(all_to_all(1, {.imbalance = 2, .capacity = 2}) == Approx(0.100 + 4));
  CHECK(all_to_all(1, {.imbalance = 2, .capacity = 1}) == Approx(0.100 + 0.75 * 4));
  CHECK(all_to_all(1, {.capacity = 2, .padded = true}) == Approx(0.100 + 2 * 4));
  CHECK(all_to_all(1, {.imbalance = 2, .capacity = 2, .padded = true}) == Approx(0.100 + 2 * 4));
  CHECK(all_to_all(0, {.imbalance = 2, .capacity = 2, .padded = true}) == all_to_all(0, {}));
  // One rank per node, and so few bytes that only message start times count: 7, or 3 to three ranks.
  const HardwareCosts apart(machine(), {8, 8});
  CHECK(apart.all_to_all(program, program.instructions[0]).ms == Approx(0.100 + 6 * 0.050));
  ir::Instruction to_three = program.instructions[0];
  to_three.attributes.set("peers", std::int64_t(3));
  CHECK(apart.all_to_all(program, to_three).ms == Approx(0.100 + 2 * 0.050));
  // Of 4 MB, what goes to three others, if all goes to these, or the own rank is among the four, or all stays.
  ir::Instruction part = program.instructions[1];
  part.attributes.set("peers", std::int64_t(3));
  CHECK(bytes_sent(program, part) == Approx(4e6));
  part.attributes.set("own", std::int64_t(1));
  CHECK(bytes_sent(program, part) == Approx(3e6));
  part.attributes.set("peers", std::int64_t(0));
  CHECK(bytes_sent(program, part) == 0);
  const double products = 2 * 400.0 * 300 * 2500;
  CHECK(work(2, {}) == Approx(0.010 + products / 1e9));
  CHECK(work(2, {.imbalance = 2, .capacity = 2}) == Approx(0.010 + 2 * products / 1e9));
  CHECK(work(2, {.imbalance = 2, .capacity = 1}) == Approx(0.010 + products / 1e9));
  CHECK(work(2, {.capacity = 2, .padded = true}) == Approx(0.010 + 2 * products / 1e9));
  CHECK(work(3, {.imbalance = 2, .capacity = 2}) == work(3, {}));

  // Under other loads the first costs stay what they are.
  const HardwareCosts even(machine(), {2, 2});
  const auto uneven = even.under(test::loads_of_fullest(2, 1.5));  // 1.5 and 0.75 of the mean
  CHECK(uneven->all_to_all(program, program.instructions[1]).ms == Approx(0.100 + 1.5 * 3.5 / 2));
  CHECK(uneven->op_ms(program, program.instructions[2]).value() == Approx(0.010 + 1.5 * products / 1e9));
  CHECK(even.op_ms(program, program.instructions[2]).value() == Approx(0.010 + products / 1e9));
  CHECK(uneven->identity() != even.identity());

  // Of two ranks with 1.5 and 0.5 times the mean, the one that is done with the experts first sends while the other
  // computes: a third of the message, or less where the others' time is short. Even ranks send at once.
  const auto back = *ir::parse(R"(program p
input @filled : i32[2,2]
input @rows : i32[1,3]
input @slots : f32[1,200,2500]
parameter @w : f32[1,300,2500]
parameter @b : f32[1,300]
%0 : f32[1,200,300] = expert_linear(@slots, @w, @b, @rows) {tokens=100}  # compute forward h.0.moe.experts
%1 : f32[2,100,300] = all_to_all_back(%0, @filled, @rows) {tokens=100}  # expert forward h.0.moe.back
%2 : f32[2,100,300] = all_to_all_back(%0, @filled, @rows) {tokens=100}  # expert forward h.0.moe.back
)");
  const auto early = *op_costs(*even.under(test::loads_of_fullest(1.5)), back);
  CHECK(early[1].early_ms == Approx(std::min(early[0].ms * 2 / 3, early[1].ms / 3)));
  CHECK(early[1].early_ms > 0);
  CHECK(early[2].early_ms == 0);
  CHECK((*op_costs(even, back))[1].early_ms == 0);

  // Measured costs know only evenly spread tokens.
  const test::DeclaredCosts measured;
  const auto loaded = measured.under(test::loads_of_fullest(2, 1.5));
  const ir::Instruction &counts = program.instructions[0], &there = program.instructions[1],
                        &experts = program.instructions[2], &dispatch = program.instructions[3];
  CHECK(loaded->all_to_all(program, counts).ms == measured.all_to_all(program, counts).ms);
  CHECK(loaded->all_to_all(program, there).ms == Approx(measured.all_to_all_ms(1.5 * 3.5e6)));
  CHECK(loaded->op_ms(program, experts).value() == Approx(1.5 * measured.op_ms(program, experts).value()));
  CHECK(loaded->op_ms(program, dispatch) == measured.op_ms(program, dispatch));
}

TEST_CASE("a group of ranks is priced by its size and hosts, and shares the NICs with the groups beside it") {
  const Hardware h = machine();
  const ir::Axes data{ir::Axis::data}, expert{ir::Axis::expert};
  const HardwareCosts costs(h, {8, 2, ir::Mesh{{1, 2, 4, 1}}});
  CHECK(costs.layout().group(data).ranks == 2);
  CHECK(costs.layout().group(data).hosts == 2);
  CHECK(costs.layout().group(data).beside == 4);
  CHECK(costs.layout().group(expert).hosts == 1);
  CHECK(costs.all_to_all_ms(8e6, expert) == all_to_all_ms(h, {4, 1}, 8e6));
  CHECK(costs.all_reduce_ms(8e6, expert) == all_reduce_ms(h, {4, 1}, 8e6));
  CHECK(costs.all_reduce_ms(8e6, data) == Approx(0.040 + 4 * 2 * 8e6 / 2 / 2e6));
  CHECK(costs.all_to_all_ms(8e6, data) == Approx(0.100 + 4 * 8e6 / 2e6));
  CHECK(costs.all_reduce_ms(8e6) == all_reduce_ms(h, {8, 2}, 8e6));
  CHECK(costs.identity() != HardwareCosts(h, {8, 2, ir::Mesh{{1, 4, 2, 1}}}).identity());
  CHECK(HardwareCosts(h, {8, 2}).identity() == HardwareCosts(h, {8, 2, ir::of_experts(8)}).identity());
}

TEST_CASE("a message between stages takes the link between their ranks, beside those of the stage's other ranks") {
  // Four stages of two ranks; two stages a node.
  const HardwareCosts costs(machine(), {8, 2, ir::Mesh{{4, 2, 1, 1}}});
  const auto program = ir::parse(R"(program p
input @x : f32[500,1000]
send_next(@x)  # send_next forward a
%0 : f32[500,1000] = receive_previous() {dtype=f32, shape="500,1000"}  # receive_previous forward a
%1 : f32[500,1000] in @x = all_reduce(@x) {axes=stage, stages="0,3"}  # reduce sync b
)");
  if (!program.ok()) FAIL(program.error().message);
  const auto ms = [&](int stage, std::size_t i) { return (*op_costs(*costs.of_stage(stage), *program))[i].ms; };
  const double within = 0.01 + 2 / 8., between = 0.1 + 2 * 2 / 2.;  // 2 MB; links of 8 GB/s, a NIC of 2 GB/s
  CHECK(ms(0, 0) == Approx(within));
  CHECK(ms(1, 1) == Approx(within));
  CHECK(ms(1, 0) == Approx(between));
  CHECK(ms(2, 1) == Approx(between));
  // Two hosts, one rank each, beside the other rank of the stage: the NIC carries the vector of each there and back.
  CHECK(ms(0, 2) == Approx(2 * 0.02 + 2 * 2 / 2.));
  CHECK(costs.of_stage(1)->identity() == costs.identity());
}

TEST_CASE("a permute leaves the node from the ranks at its end alone") {
  const Hardware h = machine();
  CHECK(permute_ms(h, {1, 1}, 8e6, 1) == 0);
  CHECK(permute_ms(h, {4, 1}, 0, 1) == 0);
  CHECK(permute_ms(h, {4, 1}, 8e6, 1) == Approx(0.010 + 1));       // 8 GB/s of links
  CHECK(permute_ms(h, {8, 2}, 8e6, 1) == Approx(0.100 + 4));       // one of four ranks through 2 GB/s
  CHECK(permute_ms(h, {8, 2}, 8e6, 2) == Approx(0.100 + 2 * 4));   // two of them
  CHECK(permute_ms(h, {16, 4}, 8e6, 7) == Approx(0.100 + 4 * 4));  // all
  CHECK(permute_ms(h, {2, 2}, 8e6, 1) == all_to_all_ms(h, {2, 2}, 8e6));
  // Along data, every rank's neighbour is on the other node, beside three groups like its own.
  const HardwareCosts costs(h, {8, 2, ir::Mesh{{1, 2, 4, 1}}});
  const auto p = one("input @x : f32[1000,1000]\n",
                     "%0 : f32[1000,1000] = permute_shards(@x) {axes=data, shards=2, of=all_gather, shift=1}"
                     "  # expert forward p");
  CHECK(costs.all_to_all(p, p.instructions[0]).ms == Approx(0.100 + 4 * 4e6 / 2e6));
  CHECK(costs.all_to_all(p, p.instructions[0]).ms == costs.all_to_all_ms(4e6, ir::Axes{ir::Axis::data}));
}

TEST_CASE("all-reduce passes the slower of links and NICs twice") {
  const Hardware h = machine();
  CHECK(all_reduce_ms(h, {1, 1}, 1e6) == 0);
  CHECK(all_reduce_ms(h, {4, 1}, 8e6) == Approx(0.010 + 2 * 0.75));
  CHECK(all_reduce_ms(h, {8, 2}, 8e6) == Approx(0.010 + 2 * 0.020 + 2 * 0.5 * 4));
  CHECK(all_reduce_ms(h, {16, 4}, 8e6) == Approx(0.010 + 4 * 0.020 + 2 * 0.75 * 4));
  // An emulated host of half a node: half its NIC for the vectors of two ranks.
  CHECK(all_reduce_ms(h.part_of_node(2, 2), {4, 2}, 8e6) == Approx(0.010 + 2 * 0.020 + 2 * 2 * 0.5 * 8));
  // Its links have one rate, whatever the size: that of large all-to-alls among as many nodes.
  Hardware uneven = h;
  uneven.network.all_to_all_efficiency = {{2, 1, 0.25}, {2, 8, 0.5}, {4, 8, 0.25}};
  const Hardware host = uneven.part_of_node(2, 2);
  CHECK(all_reduce_ms(host, {4, 2}, 2e6) - all_reduce_ms(host, {4, 2}, 1e6) == Approx(2 * 2 * 0.5));
}

TEST_CASE("the costs of a declared machine answer every query of the planner") {
  const HardwareCosts costs(machine(), {8, 2});
  CHECK(costs.launch_ms() == Approx(0.007));
  CHECK(costs.interference().network_beside_compute == 0.9);
  CHECK(costs.all_to_all_ms(7e6) == all_to_all_ms(machine(), {8, 2}, 7e6));
  // A tenth of the time, and half a millisecond per MB of 10^6 bytes.
  const double ms = costs.all_to_all_ms(700e6);
  CHECK(costs.all_to_all_core().ms(700e6) == Approx(0.1 * ms + 0.5 * 700).epsilon(1e-3));
  CHECK(costs.free_bytes() == std::int64_t(1.5 * (1 << 30)));
  CHECK(costs.identity() == HardwareCosts(machine(), {8, 2}).identity());
  CHECK(costs.identity() != HardwareCosts(machine(), {16, 4}).identity());
  CHECK(machine().nodes(1) == 1);
  CHECK(machine().nodes(5) == 2);
}

TEST_CASE("measured costs take precedence over declared ones") {
  const auto sum = one("input @x : f32[1000,1000]\ninput @y : f32[1000,1000]\n",
                       "%0 : f32[1000,1000] = add(@x, @y)  # compute forward p");
  Profile measured;
  measured.ops[op_key(sum, sum.instructions[0])] = {3, 1, 0};
  const HardwareCosts costs(machine(), {8, 2}, measured);
  CHECK(costs.op_ms(sum, sum.instructions[0]) == 3.0);
  CHECK(costs.all_to_all_ms(7e6) == all_to_all_ms(machine(), {8, 2}, 7e6));
  measured.machine.cluster = {"mpi", 8, 2};
  measured.network.all_to_all = {{1, 5}};
  measured.network.all_reduce = {{1, 6}};
  const HardwareCosts both(machine(), {8, 2}, measured);
  CHECK(both.all_to_all_ms(7e6) == 5);
  CHECK(both.all_reduce_ms(7e6) == 6);
}

TEST_CASE("what measured costs lack of a group of ranks is unknown, not declared") {
  ir::Instruction step;
  step.op = "permute_shards";
  step.stream = ir::Stream::expert;
  step.attributes = {{"of", "all_gather"}, {"shards", std::int64_t(8)}, {"shift", std::int64_t(1)}};
  ir::Instruction of_group = step;
  of_group.attributes = {{"of", "all_gather"}, {"shards", std::int64_t(4)}, {"shift", std::int64_t(1)}};
  of_group.attributes.set("axes", "expert");
  const Layout layout{8, 2, ir::Mesh{{1, 2, 4, 1}}};
  Profile measured;
  measured.machine.cluster = {"mpi", 8, 2};
  measured.machine.device.local_ranks = 4;
  measured.mesh = layout.mesh;
  CHECK_FALSE(HardwareCosts(machine(), layout, measured).unknown_messages(step));  // all communication is declared
  measured.network.all_to_all = {{1, 5}};
  measured.network.all_reduce = {{1, 6}};
  const HardwareCosts lacking(machine(), layout, measured);
  CHECK(lacking.unknown_messages(step) == "messages 'neighbour 1' over all ranks");
  CHECK(SlowestCosts({lacking}).unknown_messages(step) == "messages 'neighbour 1' over all ranks");
  CHECK_FALSE(lacking.unknown_messages(of_group));  // the group is declared
  CHECK(lacking.message_ms(1e6, of_group) == permute_ms(machine(), {4, 1, {}, 1}, 1e6, 1));
  measured.network.messages["neighbour 1"] = {{1, 4}};
  measured.network.groups["expert 4"] = {{{1, 7}}, {{1, 8}}};
  const HardwareCosts knowing(machine(), layout, measured);
  CHECK_FALSE(knowing.unknown_messages(step));
  CHECK(knowing.message_ms(1e6, step) == 4);
  CHECK(knowing.unknown_messages(of_group) == "messages 'neighbour 1' over the mesh's axes expert");
}

TEST_CASE("nodes of a declared machine are told apart where each has as many ranks") {
  CHECK(HardwareCosts(machine(), {8, 2}).ranks_on_host({}) == 4);
  CHECK(HardwareCosts(machine(), {6, 2}).ranks_on_host({}) == 1);  // four and two
  CHECK(HardwareCosts(machine(), {6, 3}).ranks_on_host({}) == 2);
  CHECK(HardwareCosts(machine(), {3, 1}).ranks_on_host({}) == 1);
  const HardwareCosts groups(machine(), {12, 3, ir::Mesh{{1, 2, 6, 1}}});
  CHECK(groups.ranks_on_host({ir::Axis::expert}) == 1);
  Profile measured;  // on hosts of three
  measured.machine.cluster = {"mpi", 6, 2};
  measured.machine.device.local_ranks = 3;
  measured.network.all_to_all = measured.network.all_reduce = {{1, 5}};
  CHECK(HardwareCosts(machine(), {6, 2}, measured).ranks_on_host({}) == 3);
}

TEST_CASE("a hardware file without a number is refused with its name") {
  const std::string good = machine_text();
  CHECK(refused(replaced(good, R"("nics": {"value": 1, "source": "t"}, )", "")) ==
        "round.json: network.nics: expected a number with its source, found none");
  CHECK(refused(replaced(good, R"("nics": {"value": 1, "source": "t"})", R"("nics": {"value": 1})")) ==
        "round.json: network.nics.source: expected where the number comes from, found none");
  CHECK(refused(replaced(good, R"("nics": {"value": 1)", R"("nics": {"value": -1)")) ==
        "round.json: network.nics.value: expected a number from 1 to 4096, found -1");
  CHECK(refused(replaced(good, R"("nics":)", R"("nicks": {}, "nics":)"))
            .starts_with("round.json: network.nicks: expected one of nics"));
  CHECK(refused(replaced(good, R"([300, 1])", R"([100, 1])"))
            .starts_with("round.json: device.fp32_efficiency.points: expected a list of [n, share] with rising n"));
  CHECK(refused(replaced(good, R"("what": "a machine of round numbers",)", "")) ==
        "round.json: what: expected a text, found none");
  CHECK(refused(replaced(good, R"([[2, 1, 0.5]])", R"([[2, 1, 0.5], [2, 1, 0.6]])"))
            .starts_with("round.json: network.all_to_all_efficiency.points: expected a list of [nodes, MB, share] in "
                         "rising order of nodes and MB, with shares in [0.001, 1], found [[2,1,0.5]"));
  CHECK(refused("{").find(":1:2: expected JSON: ") != std::string::npos);
  CHECK(refused("{\"what\": 1e999}").find("number overflow") != std::string::npos);
  CHECK(refused("[]").starts_with("round.json: the file: expected an object"));
  CHECK(refused(replaced(good, R"("devices": {"value": 4)", R"("devices": {"value": 4.5)")) ==
        "round.json: node.devices: expected an integer, found 4.5");
  CHECK(refused(replaced(good, R"("reserved_gib": {"value": 0.5)", R"("reserved_gib": {"value": 3)")) ==
        "round.json: device.reserved_gib: expected at most device.memory_gib = 2, found 3");
}

TEST_CASE("a share is interpolated by places and bytes, and is constant beyond the table") {
  const LinkShares shares{{2, 1, 0.2}, {2, 100, 0.8}, {8, 1, 0.1}, {8, 100, 0.4}};
  CHECK(share_at(shares, 2, 1e6) == Approx(0.2));
  CHECK(share_at(shares, 1, 0) == Approx(0.2));
  CHECK(share_at(shares, 2, 10e6) == Approx(0.5));   // half of the way from 1 to 100
  CHECK(share_at(shares, 4, 100e6) == Approx(0.6));  // half of the way from 2 to 8
  CHECK(share_at(shares, 4, 10e6) == Approx((0.5 + 0.25) / 2));
  CHECK(share_at(shares, 64, 1e9) == Approx(0.4));
}

TEST_CASE("all-to-all and all-reduce have their own shares, by nodes") {
  std::string text = replaced(machine_text(), R"("all_reduce_efficiency": {"points": [[2, 1, 0.5]])",
                              R"("all_reduce_efficiency": {"points": [[2, 1, 1], [4, 1, 0.25]])");
  const auto h = test::good(parse_hardware(text, "round.json"));
  CHECK(all_reduce_ms(*h, {8, 2}, 8e6) == Approx(0.010 + 2 * 0.020 + 2 * 0.5 * 2));
  CHECK(all_reduce_ms(*h, {16, 4}, 8e6) == Approx(0.010 + 4 * 0.020 + 2 * 0.75 * 8));
  CHECK(all_to_all_ms(*h, {16, 4}, 7e6) == all_to_all_ms(machine(), {16, 4}, 7e6));
}

TEST_CASE("values behind a name replace those of the file, whose ends of bands are left alone") {
  std::string text = replaced(machine_text(), R"("latency_us": {"value": 100,)",
                              R"("latency_us": {"value": 100, "low": 80, "high": 200,)");
  text =
      replaced(text, R"("all_to_all_efficiency": {"points": [[2, 1, 0.5]],)",
               R"("all_to_all_efficiency": {"points": [[2, 1, 0.5]], "low": [[2, 1, 0.25]], "high": [[2, 1, 0.75]],)");
  const auto nominal = test::good(parse_hardware(text, "round.json"));
  CHECK(nominal->network.latency_us == 100);
  CHECK(nominal->network.all_to_all_efficiency[0].share == 0.5);
  const std::string values = "network.latency_us=7,network.all_to_all_efficiency=0.3";
  const auto replaced_values = test::good(parse_hardware(text, "round.json", values));
  CHECK(replaced_values->network.latency_us == 7);
  CHECK(replaced_values->network.all_to_all_efficiency[0].share == 0.3);
  CHECK(replaced_values->name == "round:" + values);
  CHECK(replaced_values->identity != nominal->identity);
  for (const char* wrong : {"slow", "device=3", "device.fp32_tflops=", "device.fp32_tflops=two", "device.tflops=2",
                            "device.fp32_tflops=x2", "memory.latency_us=2", "=1"}) {
    const auto h = parse_hardware(text, "round.json", wrong);
    INFO(wrong);
    REQUIRE_FALSE(h.ok());
    CHECK(h.error().code == ExitCode::config);
    CHECK(h.error().message.starts_with("hardware: expected values behind a name as in NAME:network.latency_us=50"));
  }
  const Error out_of_range = test::refused(parse_hardware(text, "round.json", "network.all_to_all_efficiency=4.5"));
  CHECK(out_of_range.message == "round.json: network.all_to_all_efficiency: expected shares in [0.001, 1], found 4.5");
}

TEST_CASE("the shipped hardware files are complete") {
  for (const char* name : {"p3dn-v100", "p4de-a100", "dgx-h100", "hgx-h800", "ethernet-10g-cpu", "rtx-2080ti",
                           "rtx-3060ti", "tesla-p100", "tesla-p4", "tesla-t4"}) {
    const auto hardware =
        test::good(read_hardware(std::string(LANCET_SOURCE_DIR "/configs/hardware/") + name + ".json"));
    CHECK(hardware->name == name);
  }
  const Error unknown = test::refused(read_hardware("pdp-11"));
  CHECK(unknown.message.find("found 'pdp-11'") != std::string::npos);
}

TEST_CASE("shipped hardware is found from any folder, else the error names all searched folders") {
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(std::filesystem::temp_directory_path());
  const auto by_name = read_hardware("p4de-a100"), by_path = read_hardware("configs/hardware/p4de-a100.json"),
             unknown = read_hardware("pdp-11"), no_file = read_hardware("machines/pdp-11.json");
  std::filesystem::current_path(before);
  for (const auto& found : {by_name, by_path}) {
    INFO((found.ok() ? "" : found.error().message));
    REQUIRE(found.ok());
    CHECK(found->name == "p4de-a100");
  }
  const auto folder = program_path().parent_path();
  auto says = [&](const Result<Hardware>& refused, const std::string& file) {
    REQUIRE_FALSE(refused.ok());
    INFO(refused.error().message);
    CHECK(refused.error().code == ExitCode::config);
    CHECK(refused.error().message.find("expected a file or one of dgx-h100, ethernet-10g-cpu, hgx-h800, p3dn-v100") !=
          std::string::npos);
    CHECK(refused.error().message.find("not at " + file + ", " + (folder / "share/lancet" / file).string() + " or " +
                                       (folder.parent_path() / "share/lancet" / file).string()) != std::string::npos);
  };
  says(unknown, "configs/hardware/pdp-11.json");
  says(no_file, "machines/pdp-11.json");
}
