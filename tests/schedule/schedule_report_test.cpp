// The report of a schedule, computed from programs and times made by hand.
#include "lancet/schedule/schedule_report.h"

#include "steps/support.h"

using namespace lancet;

namespace {

ir::Program parsed(std::string_view text) {
  auto program = ir::parse(text);
  if (!program.ok()) FAIL(program.error().message);
  return *program;
}

}  // namespace

TEST_CASE("the instructions under a communication") {
  const ir::Program program = parsed(R"(program p
input @x : f32[4]
%0 : f32[4] = gelu(@x)  # compute forward a
%1 : f32[4] = all_gather(%0) {shards=2, axis=0}  # expert forward b
%2 : f32[4] = gelu(%0)  # compute dw c
%3 : f32[4] = gelu(%2)  # compute dw d
%4 : f32[4] = all_gather(%1) {shards=2, axis=0}  # expert forward e
%5 : f32[4] = gelu(%4)  # compute forward f
%6 : f32[4] = all_gather(%5) {shards=2, axis=0}  # expert forward g
)");
  //                                   a       b       c       d       e       f        g
  const std::vector<ir::Interval> when{{0, 2}, {1, 5}, {2, 3}, {4, 8}, {6, 9}, {9, 10}, {10, 10}};
  const auto sites = schedule::communication_sites(program, when);
  REQUIRE(sites.size() == 2);  // the last one takes no time
  CHECK(sites[0].site == "b");
  CHECK(sites[0].ms == 4);
  CHECK(sites[0].covered_ms == 1 + 1 + 1);
  CHECK(schedule::longest_first(sites[0].under) == "a forward 1.00, c dw 1.00, d dw 1.00");
  CHECK(sites[1].site == "e");
  CHECK(sites[1].covered_ms == 2);
  CHECK(schedule::longest_first(sites[1].under) == "d dw 2.00");  // the same one runs under both
}

TEST_CASE("a communication is one at each place and pass, with the computation beside its parts") {
  const ir::Program program = parsed(R"(program p
input @x : f32[4]
%0 : f32[4] = gelu(@x)  # compute forward a
%1 : f32[4] = all_to_all(%0, @x, @x) {peers=0, part=0, parts=3, tokens=4}  # expert forward b/0
%2 : f32[4] = all_to_all(%0, @x, @x) {peers=1, part=1, parts=3, tokens=4}  # expert forward b/1
%3 : f32[4] = all_to_all(%0, @x, @x) {peers=1, part=2, parts=3, tokens=4}  # expert forward b/2
%4 : f32[4] = gelu(%0) {part=0, parts=2}  # compute forward c/0
%5 : f32[4] = gelu(%0) {part=1, parts=2}  # compute forward c/1
%6 : f32[4] = gelu(%0)  # compute dw d
%7 : f32[4] = all_reduce(%6)  # reduce sync bucket.0
%8 : f32[4] = all_gather(%6) {shards=2, axis=0}  # expert dx b
%9 : f32[4] = all_gather(%6) {shards=2, axis=0}  # expert dw b
%10 : f32[4] = split_peers(%6) {part=0, parts=3}  # expert forward e/0
)");
  //                                   a       b/0     b/1     b/2     c/0     c/1
  const std::vector<ir::Interval> when{{0, 2},  {0, 2},  {2, 4}, {4, 8},   {3, 5},  {5, 6},
                                       {8, 10}, {9, 12}, {8, 9}, {10, 11}, {20, 21}};
  const auto sites = schedule::communication_sites(program, when);
  REQUIRE(sites.size() == 3);  // neither the rank's own rows nor the helper
  CHECK(sites[0].site == "b");
  CHECK(sites[0].pass == "forward");
  CHECK(sites[0].parts == 2);
  CHECK(sites[0].ms == 6);
  CHECK(sites[0].covered_ms == 3);
  CHECK(schedule::longest_first(sites[0].under) == "c forward 3.00");
  CHECK(sites[1].site == "bucket.0");
  CHECK(sites[1].pass == "sync");
  CHECK(sites[1].stream == ir::Stream::reduce);
  CHECK(sites[1].ms == 3);
  CHECK(sites[1].covered_ms == 1);
  CHECK(sites[2].pass == "backward");  // gradients of activations and of weights
  CHECK(sites[2].parts == 2);
  CHECK(sites[2].ms == 2);
  CHECK(sites[2].covered_ms == 1);
  CHECK(schedule::longest_first(sites[2].under) == "d dw 1.00");
  CHECK(schedule::longest_first({}) == "-");
  const std::vector<std::pair<std::string, double>> five{{"a", 5}, {"b", 4}, {"c", 3}, {"d", 2}, {"e", 1}};
  CHECK(schedule::longest_first(five) == "a 5.00, b 4.00, c 3.00, 2 more 3.00");
}

TEST_CASE("ranges consist of consecutive parts, with any instructions between them") {
  const ir::Program program = parsed(R"(program p
input @x : f32[4]
%0 : f32[4] = gelu(@x)  # compute forward whole.0
%1 : f32[4] = gelu(%0) {part=0, parts=2}  # compute forward a/0
%2 : f32[4] = gelu(%0) {part=1, parts=2}  # compute forward a/1
%3 : f32[4] = sum(%1, %2)  # compute forward a
%4 : f32[4] = gelu(%1) {part=0, parts=2}  # compute forward b/0
%5 : f32[4] = gelu(%2) {part=1, parts=2}  # compute forward b/1
%10 : f32[4] = sum(%4, %5)  # compute forward joined
%6 : f32[4] = gelu(%3)  # compute forward whole.1
%7 : f32[4] = gelu(%6) {part=0, parts=2}  # compute forward c/0
%8 : f32[4] = gelu(%7) {part=0, parts=4}  # compute forward d/0
%9 : f32[4] = gelu(%7) {part=0, parts=2}  # compute dx c/0
)");
  struct Expected {
    ir::Role role;
    int parts;
    std::string first, last;
  };
  const std::vector<Expected> expected{{ir::Role::forward, 2, "a", "b"},
                                       {ir::Role::forward, 2, "c", "c"},
                                       {ir::Role::forward, 4, "d", "d"},
                                       {ir::Role::dx, 2, "c", "c"}};
  const auto ranges = schedule::split_ranges(program);
  REQUIRE(ranges.size() == expected.size());
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    CHECK(ranges[i].role == expected[i].role);
    CHECK(ranges[i].parts == expected[i].parts);
    CHECK(ranges[i].first == expected[i].first);
    CHECK(ranges[i].last == expected[i].last);
  }
  CHECK(schedule::split_ranges(parsed("program p\ninput @x : f32[4]\n%0 : f32[4] = gelu(@x)  # compute forward a\n"))
            .empty());
}

TEST_CASE("a site is the label without the part") {
  const ir::Program program = parsed(R"(program p
input @x : f32[4]
%0 : f32[4] = gelu(@x) {part=3, parts=4}  # compute forward h.0.mlp/3
%1 : f32[4] = gelu(@x) {part=11, parts=12}  # compute forward h.0.mlp/11
%2 : f32[4] = gelu(@x)  # compute forward h.0.mlp/3
)");
  CHECK(schedule::site_of(program.instructions[0]) == "h.0.mlp");
  CHECK(schedule::site_of(program.instructions[1]) == "h.0.mlp");
  CHECK(schedule::site_of(program.instructions[2]) == "h.0.mlp/3");
}
