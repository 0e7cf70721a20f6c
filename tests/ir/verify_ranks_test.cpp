// Plans of several ranks run together: what ends, what deadlocks, what does not match.
#include "ir/support.h"
#include "lancet/ir/plan.h"

using namespace lancet;
using Catch::Matchers::Equals;
using Catch::Matchers::StartsWith;

namespace {

// A plan with these lines, each an instruction on %0 or @x.
ir::Plan plan_of(const std::string& lines) {
  return test::parsed_plan("plan {policy=test}\narena 4096\nprogram p\ninput @x : f32[16]\n" + lines);
}

const std::string data_then_tensor = R"([0] %0 : f32[16] = all_reduce(@x) {axes="data"}  # reduce sync a | at 0
[1] %1 : f32[16] = all_reduce(@x) {axes="tensor"}  # reduce sync b | at 64
)";
const std::string tensor_then_data = R"([0] %0 : f32[16] = all_reduce(@x) {axes="tensor"}  # reduce sync b | at 0
[1] %1 : f32[16] = all_reduce(@x) {axes="data"}  # reduce sync a | at 64
)";
const ir::Mesh data_by_tensor{{1, 2, 1, 2}};

std::string error_of(std::vector<ir::Plan> plans, const ir::Mesh& mesh) {
  std::vector<const ir::Plan*> pointers;
  for (const ir::Plan& plan : plans) pointers.push_back(&plan);
  const Status status = ir::verify_ranks(pointers, mesh);
  return status.ok() ? "" : status.error().message;
}

}  // namespace

TEST_CASE("verify_ranks: one plan on all ranks ends") {
  const ir::Plan plan = plan_of(data_then_tensor);
  CHECK(error_of({plan, plan, plan, plan}, data_by_tensor) == "");
}

TEST_CASE("verify_ranks: ranks that are in one another's groups in different orders deadlock") {
  const ir::Plan plan = plan_of(data_then_tensor), other = plan_of(tensor_then_data);
  CHECK_THAT(
      error_of({plan, other, other, plan}, data_by_tensor),
      Equals("ranks wait for one another: rank 0 in all_reduce (a, instruction 0); rank 1 in all_reduce (b, "
             "instruction 0); rank 2 in all_reduce (b, instruction 0); rank 3 in all_reduce (a, instruction 0)"));
}

TEST_CASE("verify_ranks: a wait across streams that another rank's stream order contradicts deadlocks") {
  const std::string first = "[0] %0 : f32[16] = all_reduce(@x)  # reduce sync a | at 0\n";
  const std::string then = "[1] %1 : f32[16] = all_to_all(@x)  # expert forward b | wait 0 | at 64\n";
  const std::string opposite = R"([0] %0 : f32[16] = all_to_all(@x)  # expert forward b | at 0
[1] %1 : f32[16] = all_reduce(@x)  # reduce sync a | wait 0 | at 64
)";
  const ir::Mesh two{{1, 2, 1, 1}};
  CHECK(error_of({plan_of(first + then), plan_of(first + then)}, two) == "");
  CHECK_THAT(error_of({plan_of(first + then), plan_of(opposite)}, two), StartsWith("ranks wait for one another: "));
}

TEST_CASE("verify_ranks: a rank that leaves out a collective is waited for") {
  const ir::Plan plan = plan_of("[0] %0 : f32[16] = all_reduce(@x)  # reduce sync a | at 0\n");
  const ir::Plan none = plan_of("[0] %0 : f32[16] = gelu(@x)  # compute forward a | at 0\n");
  CHECK_THAT(error_of({plan, none}, {{1, 2, 1, 1}}),
             Equals("ranks wait for one another: rank 0 in all_reduce (a, instruction 0)"));
}

TEST_CASE("verify_ranks: collectives that meet must be the same, of the same size") {
  const ir::Plan plan = plan_of("[0] %0 : f32[16] = all_reduce(@x)  # reduce sync a | at 0\n");
  for (const char* other : {"[0] %0 : f32[16] = all_gather(@x)  # reduce sync c | at 0\n",
                            "[0] %0 : f32[8] = all_reduce(@x)  # reduce sync c | at 0\n"})
    CHECK_THAT(
        error_of({plan, plan_of(other)}, {{1, 2, 1, 1}}),
        StartsWith("two instructions meet in one collective: rank 0 in all_reduce (a, instruction 0) and rank 1"));
}

TEST_CASE("verify_ranks: a group of one rank waits for no other") {
  const ir::Plan plan = plan_of("[0] %0 : f32[16] = all_reduce(@x) {axes=\"expert\"}  # reduce sync a | at 0\n");
  const ir::Plan none = plan_of("[0] %0 : f32[16] = gelu(@x)  # compute forward a | at 0\n");
  CHECK(error_of({plan, none}, {{1, 2, 1, 1}}) == "");
}

TEST_CASE("verify_ranks: a wrong number of plans is named") {
  const ir::Plan plan = plan_of("[0] %0 : f32[16] = all_reduce(@x)  # reduce sync a | at 0\n");
  CHECK_THAT(error_of({plan}, {{1, 2, 1, 1}}), Equals("expected the plans of 2 ranks, found 1"));
}

namespace {

// A message from one stage to the next, before or after the answer.
const std::string sends = "[0] send_next(@x)  # send_next forward a\n";
const std::string answered =
    "[1] %1 : f32[16] = receive_next() {dtype=f32, shape=\"16\"}  # receive_next dx a | at 0\n";
const std::string receives =
    "[0] %0 : f32[16] = receive_previous() {dtype=f32, shape=\"16\"}  # receive_previous forward a | at 0\n";
const std::string answers = "[1] send_previous(@x)  # send_previous dx a | wait 0\n";
const ir::Mesh two_stages{{2, 1, 1, 1}};

}  // namespace

TEST_CASE("verify_ranks: plans that differ by stage meet in their messages") {
  CHECK(error_of({plan_of(sends + answered), plan_of(receives + answers)}, two_stages) == "");
  const ir::Mesh by_data{{2, 2, 1, 1}};
  const ir::Plan first = plan_of(sends + answered), last = plan_of(receives + answers);
  CHECK(error_of({first, first, last, last}, by_data) == "");
}

TEST_CASE("verify_ranks: a stage that waits for a message that comes after its own answer is named") {
  const std::string late =
      "[0] %0 : f32[16] = receive_next() {dtype=f32, shape=\"16\"}  # receive_next dx a | at 0\n"
      "[1] send_next(@x)  # send_next forward a | wait 0\n";
  CHECK_THAT(error_of({plan_of(late), plan_of(receives + answers)}, two_stages),
             Equals("ranks wait for one another: rank 0 in send_next (a, instruction 1); rank 0 in receive_next (a, "
                    "instruction 0); rank 1 in receive_previous (a, instruction 0); rank 1 in send_previous (a, "
                    "instruction 1)"));
}

TEST_CASE("verify_ranks: messages without another end or of another size are named") {
  CHECK_THAT(error_of({plan_of(receives)}, ir::Mesh{{1, 1, 1, 1}}),
             Equals("rank 0 in receive_previous (a, instruction 0): expected a neighbouring stage, found none"));
  CHECK_THAT(error_of({plan_of(receives), plan_of(receives)}, two_stages),
             Equals("ranks wait for one another: rank 0 in receive_previous (a, instruction 0); rank 1 in "
                    "receive_previous (a, instruction 0)"));
  const std::string shorter =
      "[0] %0 : f32[8] = receive_previous() {dtype=f32, shape=\"8\"}  # receive_previous forward a | at 0\n";
  CHECK_THAT(error_of({plan_of(sends), plan_of(shorter)}, two_stages),
             Equals("a message between stages differs: rank 0 in send_next (a, instruction 0) with 64 bytes and rank 1 "
                    "in receive_previous (a, instruction 0) with 32 bytes"));
}

TEST_CASE("verify_ranks: a collective of some stages waits for these alone") {
  const ir::Plan ends =
      plan_of("[0] %0 : f32[16] = all_reduce(@x) {axes=\"stage\", stages=\"0,2\"}  # reduce sync w | at 0\n");
  const ir::Plan middle = plan_of("[0] %0 : f32[16] = gelu(@x)  # compute forward a | at 0\n");
  const ir::Mesh three{{3, 1, 1, 1}};
  CHECK(error_of({ends, middle, ends}, three) == "");
  CHECK_THAT(error_of({ends, middle, middle}, three),
             Equals("ranks wait for one another: rank 0 in all_reduce (w, instruction 0)"));
}

// As listed, the first rank would wait in its second send for the other one, which waits in its own send.
TEST_CASE("order_together: ranks that run one instruction after the other meet") {
  const ir::Plan first =
      plan_of(sends +
              "[1] send_next(@x)  # send_next forward b\n"
              "[2] %2 : f32[16] = receive_next() {dtype=f32, shape=\"16\"}  # receive_next dx a | at 0\n");
  const ir::Plan last = plan_of(
      receives +
      "[1] send_previous(@x)  # send_previous dx a | wait 0\n"
      "[2] %2 : f32[16] = receive_previous() {dtype=f32, shape=\"16\"}  # receive_previous forward b | at 64\n");
  const std::vector<const ir::Plan*> plans{&first, &last};
  const auto orders = ir::order_together(plans, two_stages);
  REQUIRE(orders.ok());
  const auto placed = [&](std::size_t rank) {
    std::vector<std::pair<int, std::int64_t>> found;
    for (const auto& [id, place] : (*orders)[rank]) found.emplace_back(int(id.index()), place);
    return found;
  };
  using Order = std::vector<std::pair<int, std::int64_t>>;
  CHECK(placed(0) == Order{{0, 0}, {1, 1}, {2, 2}});
  CHECK(placed(1) == Order{{0, 0}, {2, 1}, {1, 2}});
  CHECK_FALSE(ir::order_together(plans, data_by_tensor).ok());
  const auto of_last = ir::order_of_stage(std::vector{first, last}, 1);
  REQUIRE(of_last.ok());
  CHECK(std::ranges::equal(*of_last, (*orders)[1], {}, &ir::PlacedInstruction::instruction,
                           &ir::PlacedInstruction::instruction));
}
