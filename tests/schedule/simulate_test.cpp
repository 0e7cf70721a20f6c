// The simulator: timelines computed by hand, and properties of any program.
#include "lancet/schedule/simulate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <random>
#include <string>

#include "lancet/ir/dependencies.h"
#include "lancet/ir/plan.h"
#include "schedule/orders.h"
#include "schedule/slow_simulator.h"
#include "steps/support.h"

using namespace lancet;
using namespace lancet::test;
using cost::Interference;
using cost::OpCost;
using schedule::Dependencies;
using schedule::simulate;
using schedule::Timeline;

namespace {

constexpr Interference no_interference{1, 1};

ir::Program streams_of(const std::string& letters) {  // c, e, r
  ir::Program p;
  for (char letter : letters) {
    const ir::Stream stream = letter == 'c'   ? ir::Stream::compute
                              : letter == 'e' ? ir::Stream::expert
                                              : ir::Stream::reduce;
    p.instructions.push_back({"f", {}, {}, {}, {{"axes", "expert"}}, stream, ir::Role::forward, ""});
  }
  return p;
}

Dependencies needs(const std::vector<std::vector<int>>& of) {
  Dependencies result(of.size());
  for (std::size_t i = 0; i < of.size(); ++i)
    for (int j : of[i]) result[i].push_back({j});
  return result;
}

void check_when(const Timeline& t, const std::vector<ir::Interval>& expected) {
  REQUIRE(t.when.size() == expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    INFO("instruction " << i);
    CHECK(t.when[i].start == Approx(expected[i].start).margin(1e-9));
    CHECK(t.when[i].end == Approx(expected[i].end).margin(1e-9));
  }
}

struct RandomCase {
  ir::Program program;
  Dependencies needed;
  std::vector<OpCost> op_costs;
};

RandomCase random_case(std::uint32_t seed) {
  std::mt19937 random(seed);
  auto below = [&](unsigned n) { return random() % n; };
  std::string letters;
  RandomCase c;
  const std::size_t count = 1 + below(60);
  for (std::size_t i = 0; i < count; ++i) {
    letters += "ccer"[below(4)];
    c.op_costs.push_back({below(5) == 0 ? 0 : below(1000) / 100.0, 0});
    c.op_costs[i].core_ms = letters[i] == 'c' ? 0 : c.op_costs[i].ms * below(100) / 100;
    std::vector<ir::InstructionId> before;
    for (std::size_t j = 0; j < i; ++j)
      if (below(8) == 0) before.push_back({static_cast<std::int32_t>(j)});
    c.needed.push_back(before);
  }
  c.program = streams_of(letters);
  return c;
}

// Start and end in one pass over program order: exact without interference.
std::vector<ir::Interval> in_one_pass(const RandomCase& c, double launch_ms) {
  std::array<double, ir::stream_count> free{};
  std::vector<ir::Interval> when(c.op_costs.size());
  for (std::size_t i = 0; i < when.size(); ++i) {
    const ir::Stream stream = c.program.instructions[i].stream;
    double start = free[std::size_t(stream)];
    for (ir::InstructionId j : c.needed[i])
      start =
          std::max(start, when[j.index()].end + (c.program.instructions[j.index()].stream == stream ? 0 : launch_ms));
    free[std::size_t(stream)] = start + c.op_costs[i].ms;
    when[i] = {start, start + c.op_costs[i].ms};
  }
  return when;
}

}  // namespace

TEST_CASE("a simulated stream runs in order, after its dependencies") {
  // compute 2, all-to-all 3 that needs it, compute 1 beside it, compute 4 that needs both, all-reduce 5 of the first
  const Timeline t = simulate(streams_of("ceccr"), needs({{}, {0}, {}, {1, 2}, {0}}),
                              std::vector<OpCost>{{2}, {3}, {1}, {4}, {5}}, no_interference, 0);
  check_when(t, {{0, 2}, {2, 5}, {2, 3}, {5, 9}, {2, 7}});
  CHECK(t.makespan == Approx(9));
  CHECK(t.compute == Approx(7));
  CHECK(t.all_to_all == Approx(3));
  CHECK(t.all_reduce == Approx(5));
  CHECK(t.communication == Approx(5));  // 2 to 7
  CHECK(t.exposed == Approx(2));        // 3 to 5
}

TEST_CASE("a signal to another stream takes the launch time") {
  check_when(
      simulate(streams_of("cec"), needs({{}, {0}, {1}}), std::vector<OpCost>{{2}, {3}, {1}}, no_interference, 0.5),
      {{0, 2}, {2.5, 5.5}, {6, 7}});
  // none within a stream, and one that came while the stream was busy cost nothing
  check_when(simulate(streams_of("eccc"), needs({{}, {}, {1}, {0}}), std::vector<OpCost>{{1}, {1}, {2}, {1}},
                      no_interference, 0.5),
             {{0, 1}, {0, 1}, {1, 3}, {3, 4}});
}

TEST_CASE("instructions that run side by side slow down") {
  // Transferring bytes takes half of the cores: compute runs at 1/2 for 4 ms, then does its other 4 alone.
  check_when(simulate(streams_of("ce"), needs({{}, {}}), std::vector<OpCost>{{6}, {4, 2}}, no_interference, 0),
             {{0, 8}, {0, 4}});
  // Two transfers at half speed each: 2 ms of work are done at 4, the rest of the other runs alone.
  check_when(simulate(streams_of("er"), needs({{}, {}}), std::vector<OpCost>{{2}, {5}}, {1, 0.5}, 0), {{0, 4}, {0, 7}});
  // The network runs at 0.8 beside compute: 4 of its 5 ms are done at 5.
  check_when(simulate(streams_of("ce"), needs({{}, {}}), std::vector<OpCost>{{5}, {5}}, {0.8, 1}, 0), {{0, 5}, {0, 6}});
  // All three: transfers at 0.8 * 0.5; each takes 0.25 * 0.4 of the cores, so compute runs at 0.8 and ends at 5.
  check_when(simulate(streams_of("cer"), needs({{}, {}, {}}), std::vector<OpCost>{{4}, {4, 1}, {4, 1}}, {0.8, 0.5}, 0),
             {{0, 5}, {0, 9}, {0, 9}});
  // Transfers that would take all cores leave compute a tenth.
  check_when(simulate(streams_of("ce"), needs({{}, {}}), std::vector<OpCost>{{1}, {4, 8}}, no_interference, 0),
             {{0, 4.6}, {0, 4}});
}

TEST_CASE("a waiting all-reduce lets an all-to-all go first") {
  using schedule::Network;
  // The all-reduces (4, 2) are ready at 0 and 4, the all-to-all (3) at 3: the first all-reduce continues, the second
  // waits.
  const ir::Program p = streams_of("crer");
  const Dependencies n = needs({{}, {}, {0}, {}});
  const std::vector<OpCost> op_costs{{3}, {4}, {3}, {2}};
  check_when(simulate(p, n, op_costs, {1, 0.5}, 0, Network::all_to_all_first), {{0, 3}, {0, 5}, {3, 7}, {7, 9}});
  check_when(simulate(p, n, op_costs, {1, 0.5}, 0, Network::shared), {{0, 3}, {0, 5}, {3, 9}, {5, 9}});
  // Both are ready at the same moment, and the all-to-all goes first; an all-reduce of 0 ms does not wait.
  check_when(
      simulate(streams_of("er"), needs({{}, {}}), std::vector<OpCost>{{2}, {1}}, {}, 0, Network::all_to_all_first),
      {{0, 2}, {2, 3}});
}

TEST_CASE("messages that pass the network in order: an all-to-all waits for a round, and the all-reduce for it") {
  constexpr Interference in_order{1, 0.5, 1.5};
  // The expert stream's instructions wait for the first one, a computation of 1 ms.
  const auto when = [&](const std::string& letters, const std::vector<OpCost>& costs) {
    Dependencies needed(letters.size());
    for (std::size_t i = 1; i < letters.size(); ++i)
      if (letters[i] == 'e') needed[i] = needs({{0}})[0];
    return simulate(streams_of(letters), needed, costs, in_order, 0);
  };
  check_when(when("cre", {{1}, {5}, {2}}), {{0, 1}, {0, 7}, {1, 4.5}});
  check_when(when("cree", {{1}, {5}, {2}, {1}}), {{0, 1}, {0, 8}, {1, 4.5}, {4.5, 7}});  // each all-to-all waits
  check_when(when("cre", {{1}, {2}, {2}}), {{0, 1}, {0, 2}, {1, 4}});  // no longer than the all-reduce lasts
  check_when(when("er", {{2}, {5}}), {{0, 2}, {0, 7}});                // an all-reduce that starts with it waits
  // Early ranks' messages pass before: of the round there is less to wait for, and the all-reduce stands still longer.
  check_when(when("cre", {{1}, {5}, {2, 0, 0.3}}), {{0, 1}, {0, 7.3}, {1, 4.2}});
  check_when(when("cre", {{1}, {5}, {2, 0, 2}}), {{0, 1}, {0, 9}, {1, 3}});
  // While it waits it takes no core time.
  check_when(when("crec", {{1}, {5}, {2, 1}, {4}}), {{0, 1}, {0, 7}, {1, 4.5}, {1, 6}});
}

TEST_CASE("instructions of cost 0 take no time and signal at once") {
  const Timeline t = simulate(streams_of("cecec"), needs({{}, {0}, {1}, {2}, {3}}),
                              std::vector<OpCost>{{2}, {0}, {0}, {0}, {3}}, {0.5, 0.5}, 0);
  check_when(t, {{0, 2}, {2, 2}, {2, 2}, {2, 2}, {2, 5}});
  CHECK(t.communication == 0);
  CHECK(simulate({}, {}, {}, {}, 0).makespan == 0);
}

TEST_CASE("dependencies that point forward and missing op costs are refused") {
  REQUIRE_THROWS_WITH(simulate(streams_of("cc"), needs({{1}, {}}), std::vector<OpCost>{{1}, {1}}, {}, 0),
                      Catch::Contains("needs the later instruction"));
  REQUIRE_THROWS_WITH(simulate(streams_of("cc"), needs({{}, {}}), std::vector<OpCost>{{1}}, {}, 0),
                      Catch::Contains("expected needs and op_costs of 2"));
}

TEST_CASE("without interference the simulation is a list schedule") {
  for (std::uint32_t seed = 1; seed <= 300; ++seed) {
    RandomCase c = random_case(seed);
    for (OpCost& load : c.op_costs) load.core_ms = 0;
    const double launch_ms = seed % 3 * 0.05;
    INFO("seed " << seed);
    check_when(simulate(c.program, c.needed, c.op_costs, no_interference, launch_ms), in_one_pass(c, launch_ms));
  }
}

namespace {

// Random work of some classes, which meet in messages and all-reduces in one order.
struct RandomClasses {
  std::vector<RandomCase> of;
  std::vector<Interference> laws;
  ir::Mesh mesh;

  RandomClasses(std::uint32_t seed, int classes, bool in_turns) : of(std::size_t(classes)) {
    mesh[ir::Axis::stage] = classes;
    std::mt19937 random(seed);
    const auto below = [&](unsigned n) { return random() % n; };
    const auto add = [&](int c, ir::Stream stream, const char* axes) {
      RandomCase& at = of[std::size_t(c)];
      const std::size_t i = at.needed.size();
      at.program.instructions.push_back({"f", {}, {}, {}, {{"axes", axes}}, stream, ir::Role::forward, ""});
      const bool empty = stream == ir::Stream::compute && below(5) == 0;
      at.op_costs.push_back({empty ? 0 : (1 + below(1'000'000)) * 1e-5, 0});
      if (stream != ir::Stream::compute) at.op_costs[i].core_ms = at.op_costs[i].ms * below(100) / 100;
      if (stream == ir::Stream::expert) at.op_costs[i].early_ms = at.op_costs[i].ms * below(20) / 100;
      at.needed.emplace_back();
      for (std::size_t before = 0; before < i; ++before)
        if (below(8) == 0) at.needed[i].push_back(ir::id_of(before));
    };
    for (int job = 20 * classes; job > 0; --job) {
      const int c = int(below(unsigned(classes))), kind = int(below(classes > 1 ? 9 : 6));
      if (kind < 6) {
        add(c, kind < 3 ? ir::Stream::compute : kind < 5 ? ir::Stream::expert : ir::Stream::reduce, "expert");
      } else if (kind == 8) {
        for (int each = 0; each < classes; ++each) add(each, ir::Stream::reduce, "stage");
      } else {
        const int first = int(below(unsigned(classes - 1)));
        add(first, kind == 6 ? ir::Stream::send_next : ir::Stream::receive_next, "stage");
        add(first + 1, kind == 6 ? ir::Stream::receive_previous : ir::Stream::send_previous, "stage");
      }
    }
    for (int c = 0; c < classes; ++c) {
      laws.push_back({1 - below(5) * 0.1, 0.5 + below(3) * 0.25});
      if (in_turns) laws.back().queue_ms = below(20) * 0.1;
    }
  }

  std::vector<schedule::RankClass> classes(double launch_ms) const {
    std::vector<schedule::RankClass> all;
    for (std::size_t c = 0; c < of.size(); ++c)
      all.push_back({of[c].program, of[c].needed, of[c].op_costs, laws[c], launch_ms});
    return all;
  }
};

}  // namespace

TEST_CASE("a second simulator, without what makes the first one fast, ends every instruction at the same time") {
  for (std::uint32_t seed = 1; seed <= 300; ++seed) {
    const RandomClasses random(seed, 1 + int(seed % 3), seed % 2 == 0);
    const auto classes = random.classes(0.01 + seed % 4 * 0.03);
    INFO("seed " << seed);
    const auto fast = simulate(classes, random.mesh);
    const auto slow = SlowSimulator(classes, random.mesh).run();
    for (std::size_t c = 0; c < slow.size(); ++c) check_when(fast.stages[c], slow[c]);
  }
}

TEST_CASE("properties of any simulation") {
  for (std::uint32_t seed = 1; seed <= 300; ++seed) {
    const RandomCase c = random_case(seed);
    const Interference interference{1 - seed % 5 * 0.1, 0.5 + seed % 3 * 0.25};
    const double launch_ms = seed % 4 * 0.03;
    INFO("seed " << seed);
    const Timeline t = simulate(c.program, c.needed, c.op_costs, interference, launch_ms);
    std::array<double, ir::stream_count> alone{}, free{};
    double work = 0, waits = 0;
    bool in_order = true, after_needs = true, long_enough = true;
    for (std::size_t i = 0; i < c.op_costs.size(); ++i) {
      const std::size_t stream = std::size_t(c.program.instructions[i].stream);
      alone[stream] += c.op_costs[i].ms;
      work += c.op_costs[i].ms + c.op_costs[i].core_ms;
      waits += launch_ms;
      in_order &= t.when[i].start >= free[stream];
      free[stream] = t.when[i].end;
      for (ir::InstructionId j : c.needed[i]) after_needs &= t.when[j.index()].end <= t.when[i].start;
      long_enough &= t.when[i].end - t.when[i].start >= c.op_costs[i].ms - 1e-9;
    }
    CHECK(in_order);
    CHECK(after_needs);
    CHECK(long_enough);
    CHECK(t.makespan >= *std::max_element(alone.begin(), alone.end()) - 1e-9);
    // Slowed down to at least 0.1 (compute) and 0.6 * 0.5 (networks).
    CHECK(t.makespan <= work * 10 + waits + 1e-9);
    CHECK(t.communication <= t.all_to_all + t.all_reduce + 1e-9);
    CHECK(t.exposed <= t.communication + 1e-9);
    CHECK(t.makespan >= t.compute + t.exposed - 1e-9);
    double least = 0;  // without interference; the order is fixed, so slower work never ends a step earlier
    for (const ir::Interval& interval : in_one_pass(c, launch_ms)) least = std::max(least, interval.end);
    CHECK(t.makespan >= least - 1e-9);
    CHECK(simulate(c.program, c.needed, c.op_costs, interference, launch_ms).when == t.when);  // reproducible
  }
}

TEST_CASE("an order is simulated as the program in that order") {
  for (std::uint32_t seed = 0; seed < 50; ++seed) {
    const auto [program, needed, op_costs] = random_case(seed);
    // Those that wait for nothing first, then by how many steps of dependencies are before them.
    std::vector<int> depth(needed.size());
    for (std::size_t i = 0; i < needed.size(); ++i)
      for (const ir::InstructionId before : needed[i]) depth[i] = std::max(depth[i], depth[before.index()] + 1);
    schedule::Order order;
    for (std::size_t i = 0; i < needed.size(); ++i) order.push_back(ir::id_of(i));
    std::ranges::stable_sort(order, {}, [&](ir::InstructionId id) { return depth[id.index()]; });
    const Interference beside{0.8, 0.6};
    const double found = schedule::makespan_in_order(program, order, needed, op_costs, beside, 0.1);
    CHECK(found == simulate(schedule::permuted(program, order), schedule::renumbered(needed, order),
                            schedule::permuted(op_costs, order), beside, 0.1)
                       .makespan);
  }
}

TEST_CASE("a message for a filler alone waits for what else the filler needs") {
  const ir::Program program = test::program(R"(
program p
input @x : f32[2,4]
input @dy : f32[4,4]
parameter @w : f32[4,4]
%0 : f32[4,4] = gelu(@dy)  # compute forward a
%1 : f32[4,4] = gelu(%0)  # compute dx b
%2 : f32[4,4] = all_gather(@x) {shards=2, axis=0}  # expert dw x.all_gather
%3 : f32[4,4] = linear_dw(%1, %2) {bias=0}  # compute dw c
%4 : f32[4,4] = linear(%1, @w)  # compute dx d
output y = %4
output dw = %3
)");
  const schedule::Orders orders(program, std::vector<OpCost>(5, OpCost{1, 0}));
  std::vector<std::string> labels;
  for (const ir::InstructionId id : orders.find({}).order) labels.push_back(program.instructions[id.index()].label);
  // Without waiting, the gather would be first.
  CHECK(labels == std::vector<std::string>{"a", "b", "x.all_gather", "d", "c"});
}

TEST_CASE("never longer than sequential if running side by side pays") {
  for (std::uint32_t seed = 1; seed <= 200; ++seed) {
    RandomCase c = random_case(seed);
    double sum = 0;
    for (OpCost& load : c.op_costs) {
      load.core_ms /= 4;  // two transfers together take fewer cores than they leave
      sum += load.ms;
    }
    INFO("seed " << seed);
    CHECK(simulate(c.program, c.needed, c.op_costs, {0.8, 0.5}, 0).makespan <= sum + 1e-9);
  }
}

namespace {

// Two stages, of which the first sends beside other work of its own.
struct TwoStages {
  ir::Program first, second;
  Dependencies of_first, of_second;
  std::vector<OpCost> first_ms, second_ms;
  ir::Mesh mesh;

  TwoStages(const std::string& beside, const std::vector<OpCost>& beside_ms, OpCost sent, OpCost received)
      : first(streams_of(beside + "c")), second(streams_of("cc")), first_ms(beside_ms), second_ms{{1}, received} {
    first.instructions.back().stream = ir::Stream::send_next;
    second.instructions.back().stream = ir::Stream::receive_previous;
    first_ms.push_back(sent);
    of_first.resize(first_ms.size());
    of_second = needs({{}, {0}});
    mesh[ir::Axis::stage] = 2;
  }

  schedule::StagesTimeline timeline(const Interference& of_both) const {
    const schedule::RankClass classes[] = {{first, of_first, first_ms, of_both, 0.5},
                                           {second, of_second, second_ms, of_both, 0.5}};
    return simulate(classes, mesh);
  }
};

}  // namespace

TEST_CASE("a message between stages starts when both have reached it, and runs at the speed of the slower one") {
  // The receive is reached at 1 + launch; the longer of both times counts.
  const TwoStages alone("", {}, {2}, {3});
  check_when(alone.timeline({}).stages[0], {{1.5, 4.5}});
  check_when(alone.timeline({}).stages[1], {{0, 1}, {1.5, 4.5}});
  // An all-to-all of the sender until 5: both at half speed from 1.5 on.
  const TwoStages shares("e", {{5}}, {2}, {2});
  check_when(shares.timeline({1, 0.5}).stages[0], {{0, 7}, {1.5, 5.5}});
  check_when(shares.timeline({1, 0.5}).stages[1], {{0, 1}, {1.5, 5.5}});
  check_when(shares.timeline({1, 1}).stages[0], {{0, 5}, {1.5, 3.5}});
  // Three at once have what two have together.
  check_when(TwoStages("er", {{9}, {9}}, {2}, {2}).timeline({1, 0.5}).stages[1], {{0, 1}, {1.5, 7.5}});
  // Computation of the sender until 4 slows the message, which takes half of the cores meanwhile.
  check_when(TwoStages("c", {{4}}, {2, 1}, {2}).timeline({0.5, 1}).stages[0],
             {{0, 1.5 + 2.5 / 0.75}, {1.5, 3.5 + 2.5 / 1.5}});
}

TEST_CASE("stages without anything between them run as they do alone") {
  for (std::uint32_t seed = 1; seed <= 30; ++seed) {
    const RandomCase a = random_case(seed), b = random_case(seed + 100);
    const Interference of_a{0.9, 0.5}, of_b{0.8, 0.7, 0.3};
    const schedule::RankClass classes[] = {{a.program, a.needed, a.op_costs, of_a, 0.03},
                                           {b.program, b.needed, b.op_costs, of_b, 0.02}};
    ir::Mesh mesh;
    mesh[ir::Axis::stage] = 2;
    const auto both = simulate(classes, mesh);
    INFO("seed " << seed);
    check_when(both.stages[0], simulate(a.program, a.needed, a.op_costs, of_a, 0.03).when);
    check_when(both.stages[1], simulate(b.program, b.needed, b.op_costs, of_b, 0.02).when);
  }
}
