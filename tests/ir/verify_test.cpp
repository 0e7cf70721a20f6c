// Tests of verify() with planted faults: each text is sound except for one fault.
#include "lancet/ir/plan.h"

#include "lancet/ir/groups.h"
#include "support.h"

using namespace lancet;
using namespace lancet::test;

namespace {

void require_sound(const Status& status) {
  if (!status.ok()) FAIL(status.error().message);
}

void require_fault(const Status& status, const std::string& fragment) {
  REQUIRE_FALSE(status.ok());
  CHECK(status.error().code == ExitCode::internal);
  CHECK_THAT(status.error().message, Catch::Contains(fragment));
}

const std::string chain = R"(input @x : f32[16]
state @s : f32[16]
%0 : f32[16] = f(@x)  # compute forward
%1 : f32[16] in %0 = g(%0)  # compute forward
h(&@s, %1)  # compute update
output y = %1
)";

}  // namespace

TEST_CASE("sound programs pass") {
  require_sound(ir::verify(parsed(every_feature)));
  require_sound(ir::verify(parsed(chain)));
  require_sound(ir::verify(ir::Program{}));
}

TEST_CASE("a value that is read before it is made is found") {
  ir::Program p = parsed(chain);
  std::swap(p.instructions[0], p.instructions[1]);
  require_fault(ir::verify(p), "%0 is read before it is made, in: %1 : f32[16] in %0 = g(%0)");

  p = parsed(chain);
  p.instructions.erase(p.instructions.begin() + 1);
  require_fault(ir::verify(p), "%1 is read before it is made");

  p = parsed(chain);
  p.instructions.resize(1);
  require_fault(ir::verify(p), "output y: %1 is read before it is made");
}

TEST_CASE("a value that is made twice is found") {
  ir::Program p = parsed(chain);
  p.instructions.insert(p.instructions.begin() + 1, p.instructions[0]);
  require_fault(ir::verify(p), "%0 is made twice");
}

TEST_CASE("a value that is read after its memory was overwritten is found") {
  require_fault(ir::verify(parsed(chain + "k(%0)  # compute forward\n")),
                "%0 is read after its memory was overwritten, in: k(%0)");
  require_fault(ir::verify(parsed(chain + "output old = %0\n")),
                "output old: %0 is read after its memory was overwritten");
  // A second value in memory whose content is no longer its operand.
  require_fault(ir::verify(parsed(chain + "%2 : f32[16] in %0 = k(@x)  # compute forward\n")),
                "%0 is read after its memory was overwritten");
  // Two results in one memory.
  require_fault(ir::verify(parsed("input @x : f32[4]\n%0 : f32[4] = f(@x) # compute forward\n"
                                  "%1 : f32[4] in %0, %2 : f32[4] in %0 = g(%0) # compute forward\n")),
                "%0 is read after its memory was overwritten");
}

TEST_CASE("a value whose memory an update overwrote must not be read") {
  const std::string sum = "input @x : f32[4]\nstate @s : f32[4]\n%0 : f32[4] in @s = f(@x) # compute dw\n";
  require_sound(ir::verify(parsed(sum + "g(%0) # compute update\nzero(&@s) # compute update\n")));
  require_sound(ir::verify(parsed(sum + "zero(&@s) # compute update\ng(@s) # compute update\n")));
  require_fault(ir::verify(parsed(sum + "zero(&@s) # compute update\ng(%0) # compute update\n")),
                "%0 is read after its memory was overwritten");
  require_fault(ir::verify(parsed(sum + "zero(&@s) # compute update\noutput y = %0\n")),
                "output y: %0 is read after its memory was overwritten");
  // A value that an update changes stays the same value.
  require_sound(ir::verify(parsed(sum + "k(&%0) # compute update\ng(%0) # compute update\n")));
}

TEST_CASE("a value that does not fit its memory is found") {
  require_fault(
      ir::verify(parsed(
          "input @x : f32[4]\n%0 : bf16[4] = f(@x) # compute forward\n%1 : f32[4] in %0 = g(%0) # compute forward\n")),
      "%1 does not fit where it lives");
  require_sound(ir::verify(parsed(
      "input @x : f32[4]\n%0 : f32[4] = f(@x) # compute forward\n%1 : bf16[8] in %0 = g(%0) # compute forward\n")));
}

TEST_CASE("updates of tensors that must not be updated are found") {
  ir::Program p = parsed(chain);
  p.instructions[2].writes = {p.find("x")};
  require_fault(ir::verify(p), "an instruction updates a tensor that is not an operand");
  require_fault(ir::verify(parsed("input @x : f32[4]\nf(&@x) # compute forward\n")), "an input is updated");
  require_fault(ir::verify(parsed("input @x : f32[4]\n%0 : f32[4] in @x = f(@x) # compute forward\n")),
                "an input is updated");

  p = parsed(chain);
  p.instructions[0].results = {p.find("s")};
  require_fault(ir::verify(p), "@s is a result but not a value");
}

TEST_CASE("invalid ids are found") {
  ir::Program p = parsed(chain);
  p.instructions[1].operands = {{99}};
  require_fault(ir::verify(p), "an operand does not exist, in: %1 : f32[16] in %0 = g(%?)");
  p = parsed(chain);
  p.instructions[1].results = {{99}};
  require_fault(ir::verify(p), "a result does not exist");
  p = parsed(chain);
  p.outputs[0].tensor = {};
  require_fault(ir::verify(p), "output y: an operand does not exist");
}

namespace {

const std::string halves = R"(input @x : f32[8]
view %0 : f32[8]
%1 : f32[4] in %0 + 0 = f(@x)  # compute forward
%2 : f32[4] in %0 + 16 = f(@x)  # compute forward
)";
const std::string slots = R"(input @x : f32[8]
view %0 : f32[8]
%1 : f32[8] in %0 part 0 of 2 = f(@x)  # compute forward
%2 : f32[8] in %0 part 1 of 2 = f(@x)  # compute forward
)";
const std::string whole = "input @x : f32[8]\n%0 : f32[8] = f(@x)  # compute forward\n";

void require_sound_text(const std::string& text) {
  INFO(text);
  require_sound(ir::verify(parsed(text)));
}
void require_text_fault(const std::string& text, const std::string& fragment) {
  INFO(text);
  require_fault(ir::verify(parsed(text)), fragment);
}

}  // namespace

TEST_CASE("a whole is read after all its parts are made") {
  require_sound_text(every_view);
  for (const std::string& parts : {halves, slots}) {
    require_sound_text(parts + "g(%0)  # compute forward\noutput y = %0\n");
    require_sound_text(parts + "view %3 : f32[2] in %0 + 12\ng(%3)  # compute forward\n");
    ir::Program p = parsed(parts + "g(%0)  # compute forward\n");
    p.instructions.erase(p.instructions.begin() + 1);
    require_fault(ir::verify(p), "%0 is read before it is made, in: g(%0)");
    std::swap(p.instructions[0], p.instructions[1]);
    require_fault(ir::verify(p), "%0 is read before it is made, in: g(%0)");
  }
  require_text_fault("view %0 : f32[8]\noutput y = %0\n", "output y: %0 is read before it is made");
  require_text_fault("view %0 : f32[8]\nview %1 : f32[4] in %0 + 0\ng(%1)  # compute forward\n",
                     "%1 is read before it is made");
  // One half twice is not the whole, nor is one part, nor are halves with a gap.
  const std::string start = "input @x : f32[8]\nview %0 : f32[8]\n";
  auto made = [&](const std::string& one, const std::string& other) {
    return start + "%1 : f32[" + one + " = f(@x)  # compute forward\n%2 : f32[" + other +
           " = f(@x)  # compute forward\ng(%0)  # compute forward\n";
  };
  require_sound_text(made("4] in %0 + 16", "4] in %0 + 0"));
  require_sound_text(made("6] in %0 + 0", "4] in %0 + 16"));
  require_text_fault(made("4] in %0 + 0", "4] in %0 + 0"), "%0 is read before it is made");
  require_text_fault(made("4] in %0 + 0", "3] in %0 + 20"), "%0 is read before it is made");
  require_text_fault(made("8] in %0 part 0 of 2", "8] in %0 part 0 of 2"), "%0 is read before it is made");
  require_text_fault(made("8] in %0 part 0 of 3", "8] in %0 part 1 of 2"),
                     "%2 is one of 2 parts, others of the same tensor are of 3");
}

TEST_CASE("a part that is read after the whole was overwritten is found") {
  for (const std::string& parts : {halves, slots}) {
    const std::string over = parts + "%3 : f32[8] in %0 = k(%0)  # compute forward\n";
    require_sound_text(over + "g(%3)  # compute forward\n");
    for (const char* old : {"%0", "%1", "%2"})
      require_text_fault(over + "g(" + old + ")  # compute forward\n",
                         old + std::string(" is read after its memory was overwritten"));
    // One part is overwritten in place: the whole is gone, and the other part still valid.
    const std::string one = parts + "%3 : f32[4] in %1 = k(%1)  # compute forward\n";
    require_sound_text(one + "g(%2, %3)  # compute forward\n");
    require_text_fault(one + "g(%1)  # compute forward\n", "%1 is read after its memory was overwritten");
    require_text_fault(one + "g(%0)  # compute forward\n", "%0 is read after its memory was overwritten");
  }
  // Both parts are overwritten in place: they form a new whole.
  const std::string again =
      slots + "view %3 : f32[8] in %0\n%4 : f32[8] in %3 part 0 of 2 = k(%1)  # compute forward\n";
  require_sound_text(again + "%5 : f32[8] in %3 part 1 of 2 = k(%2)  # compute forward\ng(%3)  # compute forward\n");
  require_text_fault(again + "g(%3)  # compute forward\n", "%3 is read before it is made");
  require_text_fault(again + "g(%0)  # compute forward\n", "%0 is read after its memory was overwritten");
}

TEST_CASE("a view of overwritten memory is found, whether it was read before or not") {
  const std::string views = whole + "view %1 : f32[4] in %0 + 0\nview %2 : f32[4] in %0 + 16\n";
  const std::string read = "g(%1)  # compute forward\n", over = "%3 : f32[8] in %0 = f(%0)  # compute forward\n",
                    half = "%3 : f32[4] in %1 = f(%1)  # compute forward\n";
  require_sound_text(views + read + over);
  require_text_fault(views + over + read, "%1 is read after its memory was overwritten");
  require_text_fault(views + read + over + read, "%1 is read after its memory was overwritten");
  require_text_fault(views + half + read, "%1 is read after its memory was overwritten");
  require_text_fault(views + half + "g(%0)  # compute forward\n", "%0 is read after its memory was overwritten");
  require_sound_text(views + half + "g(%2, %3)  # compute forward\n");
  // A view made of the new value shows the new value, and so does a view of a value that is updated in place.
  require_sound_text(views + over + "view %4 : f32[4] in %3 + 0\ng(%4)  # compute forward\n");
  require_sound_text(views + "k(&%0)  # compute forward\n" + read);
}

TEST_CASE("slices that do not fit, and parts of a tensor that is not a view, are found") {
  require_text_fault(whole + "view %1 : f32[4] in %0 + 20\n", "%1 does not fit where it lives");
  require_text_fault(whole + "view %1 : f32[9] in %0 part 0 of 2\n", "%1 does not fit where it lives");
  require_text_fault("input @x : f32[8]\nview %0 : f32[8]\n%1 : f32[4] in %0 + 20 = f(@x)  # compute forward\n",
                     "%1 does not fit where it lives");
  require_text_fault(whole + "%1 : f32[4] in %0 + 0 = g(@x)  # compute forward\n",
                     "%1 is made as a slice of a tensor that is not a view");
  require_text_fault("input @x : f32[8]\nview %0 : f32[4] in @x + 0\nf(&%0)  # compute forward\n",
                     "an input is updated");
  require_text_fault("input @x : f32[8]\nstate @s : f32[8]\n%0 : f32[4] in @s part 1 of 2 = f(@x)  # compute forward\n",
                     "%0 is made as a slice of a tensor that is not a view");
  for (const ir::Slice& slice : {ir::Slice{0, 2, 2}, {0, -1, 2}, {0, 0, -1}, {0, 0, 65}}) {
    ir::Program p = parsed(slots);
    p.tensors.back().slice = slice;
    require_fault(ir::verify(p), "which does not exist");
  }
  ir::Program p = parsed(halves);
  p.tensors.back().slice->offset = -4;
  require_fault(ir::verify(p), "%2 does not fit where it lives");
}

namespace {

// The compute stream makes %0; the expert stream reads it while compute continues; then %2 reuses %0's memory.
const std::string sound_plan = R"(plan {policy=test}
arena 256
input @x : f32[16]
state @s : f32[16]
[0] %0 : f32[16] = f(@x)  # compute forward a | at 0
[1] %1 : f32[16] = send(%0)  # expert forward b | wait 0 | at 64
[2] %3 : f32[16] = f(@x)  # compute forward c | at 128
[3] %2 : f32[16] = f(%3)  # compute forward d | wait 1 | at 0
[4] %4 : f32[16] in %1 = sum(%1)  # reduce sync e | wait 1 | at -
[5] h(&@s, %2, %4)  # compute update f | wait 4
output y = %4
)";

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const auto at = text.find(from);
  REQUIRE(at != std::string::npos);
  REQUIRE(text.find(from, at + 1) == std::string::npos);
  return text.replace(at, from.size(), to);
}

void require_plan_fault(const std::string& from, const std::string& to, const std::string& fragment) {
  INFO(from << " -> " << to);
  require_fault(ir::verify(parsed_plan(replaced(sound_plan, from, to))), fragment);
}

}  // namespace

TEST_CASE("a sound plan passes") { require_sound(ir::verify(parsed_plan(sound_plan))); }

TEST_CASE("a missing wait is found") {
  require_plan_fault("b | wait 0", "b", "nothing makes instruction [1] wait for [0], whose memory it uses: %1");
  require_plan_fault("e | wait 1", "e", "nothing makes instruction [4] wait for [1]");
  require_plan_fault("f | wait 4", "f", "nothing makes instruction [5] wait for [4]");
  require_plan_fault("f | wait 4", "f | wait 1", "nothing makes instruction [5] wait for [4]");
}

TEST_CASE("streams that share bytes need a wait: program order is not enough") {
  // %2 is made after the last use of %0 in program order, but the expert stream may still be sending %0.
  require_plan_fault("d | wait 1", "d", "%0 and %2 share bytes of the arena, and nothing orders [0] against [3]");
  // Partial overlap, from either side.
  require_plan_fault("c | at 128", "c | at 32", "share bytes of the arena");
  require_plan_fault("c | at 128", "c | at 64", "%1 and %3 share bytes of the arena");
  require_plan_fault("b | wait 0 | at 64", "b | wait 0 | at 124", "share bytes of the arena");
  require_plan_fault("b | wait 0 | at 64", "b | wait 0 | at 188", "share bytes of the arena");  // by one float
}

TEST_CASE("a view's memory is in use from the first part's maker to the last reader on any stream") {
  auto require_views_fault = [&](const std::string& from, const std::string& to, const std::string& fragment) {
    INFO(from << " -> " << to);
    require_fault(ir::verify(parsed_plan(replaced(plan_views, from, to))), fragment);
  };
  require_sound(ir::verify(parsed_plan(plan_views)));
  // Parts on two streams, and the reader of the whole on a third.
  require_views_fault("a/1 | wait 0", "a/1", "nothing makes instruction [2] wait for [0]");
  require_views_fault("wait 1 2", "wait 1", "nothing makes instruction [3] wait for [2]");
  require_views_fault("wait 1 2", "wait 2", "nothing makes instruction [3] wait for [1]");
  // Compute continues while the whole is read: its results may not share that memory until [6], which waits for the
  // reader.
  require_views_fault("c | at 192", "c | at 64", "%3 and %7 share bytes of the arena");
  require_views_fault("d | at 256", "d | at 96", "%3 and %8 share bytes of the arena");
  require_views_fault("e | wait 3 | at 64", "e | wait 3 | at 256", "%8 and %9 share bytes of the arena");
  require_views_fault("view %3 : f32[16] | at 64", "view %3 : f32[16] | at 32", "%0 and %3 share bytes of the arena");
  require_views_fault("view %3 : f32[16] | at 64", "view %3 : f32[16]", "%3 lacks an offset in the arena");
  require_views_fault("view %2 : f32[8] in %0 + 32", "view %2 : f32[8] in %0 + 32 | at 0",
                      "%2 must not have an offset in the arena");
  require_views_fault("view %3 : f32[16] | at 64", "view %3 : f32[16] | at 260",
                      "%3 ends at byte 324 of an arena of 320");
}

TEST_CASE("memory is free for a view when it is free for all its parts") {
  // %1 reuses %0's memory. Its first part is made on the compute stream, after %0 was read there; its second on the
  // expert stream, which must wait for that.
  const std::string plan = R"(plan {policy=test}
arena 64
input @x : f32[16]
[0] %0 : f32[16] = f(@x)  # compute forward | at 0
[1] g(%0)  # compute forward
view %1 : f32[16] | at 0
[2] %2 : f32[8] in %1 + 0 = f(@x)  # compute forward | at -
[3] %3 : f32[8] in %1 + 32 = f(@x)  # expert forward | wait 1 | at -
)";
  require_sound(ir::verify(parsed_plan(plan)));
  require_fault(ir::verify(parsed_plan(replaced(plan, " | wait 1", ""))), "%0 and %1 share bytes of the arena");
  require_fault(ir::verify(parsed_plan(replaced(plan, " | wait 1", " | wait 0"))),
                "%0 and %1 share bytes of the arena");
}

TEST_CASE("an output's memory is never reused") {
  // %1 (the output's memory) is last touched by [5]; [6] comes after it, and still may not reuse its memory.
  const std::string later = "[6] %5 : f32[16] = k(%2)  # compute forward g | at ";
  require_plan_fault("output y = %4", later + "64\noutput y = %4", "%1 and %5 share bytes of the arena");
  require_sound(ir::verify(parsed_plan(replaced(sound_plan, "output y = %4", later + "128\noutput y = %4"))));
  require_sound(ir::verify(parsed_plan(replaced(sound_plan, "output y = %4", later + "64\noutput s = @s"))));
}

TEST_CASE("a value without an offset, or with a wrong one, is found") {
  require_plan_fault("b | wait 0 | at 64", "b | wait 0 | at -", "%1 lacks an offset in the arena");
  require_plan_fault("a | at 0", "a", "%0 lacks an offset in the arena");
  require_plan_fault("e | wait 1 | at -", "e | wait 1 | at 192", "%4 must not have an offset in the arena");
}

TEST_CASE("a value past the arena's end is found") {
  require_plan_fault("c | at 128", "c | at 196", "%3 ends at byte 260 of an arena of 256");
  require_plan_fault("arena 256", "arena 191", "%3 ends at byte 192 of an arena of 191");
  require_sound(ir::verify(parsed_plan(replaced(sound_plan, "arena 256", "arena 192"))));
}

TEST_CASE("waits for instructions that do not come before are found") {
  ir::Plan plan = parsed_plan(sound_plan);
  plan.waits[1] = {{3}};
  require_fault(ir::verify(plan), "instruction [1] waits for [3], which does not come before it");
  plan.waits[1] = {{1}};
  require_fault(ir::verify(plan), "instruction [1] waits for [1], which does not come before it");
  plan.waits[1] = {{-1}};
  require_fault(ir::verify(plan), "instruction [1] waits for [-1]");
}

TEST_CASE("tables of the wrong length are found") {
  for (int table = 0; table < 3; ++table) {
    ir::Plan plan = parsed_plan(sound_plan);
    if (table == 0) plan.waits.pop_back();
    if (table == 1) plan.predicted.pop_back();
    if (table == 2) plan.offsets.pop_back();
    require_fault(ir::verify(plan), "the plan's tables do not fit its program");
  }
}

TEST_CASE("verify: a sharding fits its tensor") {
  ir::Program program = parsed("input @x : f32[4{data},6]\noutput y = @x\n");
  REQUIRE(ir::verify(program).ok());
  ir::Sharding& sharding = *program.tensors[0].sharding;
  sharding.partial.add(ir::Axis::data);
  CHECK(ir::verify(program).error().message ==
        "@x: dimension 0: expected each axis once in a sharding, found data again");
  sharding = ir::Sharding::whole(3);
  CHECK(ir::verify(program).error().message == "@x: expected a split for each of 2 dimensions, found 3");
}

TEST_CASE("a group of ranks is named by axes of the mesh, outermost first") {
  const std::string writable = "state @x : f32[16]\n%0 : f32[16] = f(@x) {axes=";
  for (const char* axes : {"data", "\"data,expert\"", "\"stage,data,expert,tensor\""}) {
    INFO(axes);
    require_sound(ir::verify(parsed(writable + axes + "}  # reduce sync a\n")));
  }
  for (const char* axes : {"3", "\"\"", "rows", "\"expert,data\"", "\"data, expert\""}) {
    INFO(axes);
    require_fault(ir::verify(parsed(writable + axes + "}  # reduce sync a\n")),
                  "expected axes of the mesh, outermost first, such as data,expert");
  }
  const ir::Program program =
      parsed(writable + "\"data,expert\"}  # reduce sync a\n%1 : f32[16] = f(%0)  # expert sync\n");
  const auto used = ir::used_keys(program);
  CHECK(used[std::size_t(ir::Stream::reduce)] == std::set<std::string>{"data,expert"});
  CHECK(used[std::size_t(ir::Stream::expert)].empty());
  CHECK(ir::axes_text(program.instructions[0]) == "data,expert");
  CHECK(ir::axes_text(program.instructions[1]).empty());
}
