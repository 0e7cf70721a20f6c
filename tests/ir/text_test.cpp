// The text forms of Program and Plan: round trips, and the errors of wrong texts.
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "good.h"
#include "support.h"

using namespace lancet;
using namespace lancet::test;

TEST_CASE("a program's text is read and printed unchanged") {
  const ir::Program program = parsed(every_feature);
  REQUIRE(ir::print(program) == every_feature);
  require_same(parsed(ir::print(program)), program);
}

TEST_CASE("every feature of the text has its documented meaning") {
  const ir::Program p = parsed(every_feature);
  REQUIRE(p.name == "demo-1.x");
  REQUIRE(p.attributes.integer("ranks") == 2);
  REQUIRE(p.attributes.integer("less") == -3);
  REQUIRE(p.attributes.real("scale") == 0.5);
  REQUIRE(p.attributes.real("tiny") == 1e-5);
  REQUIRE(p.attributes.real("huge") == 1e20);
  REQUIRE(p.attributes.text("word") == "bf16");
  REQUIRE(p.attributes.text("digits") == "0012");
  REQUIRE_THROWS_AS(p.attributes.integer("whole"), InternalError);  // 2.0 stays a real number
  REQUIRE(p.attributes.real("whole") == 2);

  REQUIRE(p.tensors.size() == 6 + 10);
  const ir::Tensor& expert = p[p.find("h.0.e.w")];
  REQUIRE(expert.kind == ir::TensorKind::parameter);
  REQUIRE(expert.sharding->dimensions[0].axes == std::vector{ir::Axis::expert});
  REQUIRE(expert.type == ir::TensorType{DType::f32, {2, 3}});
  REQUIRE_FALSE(p[p.find("w")].sharding.has_value());
  REQUIRE(p[p.find("w.m")].kind == ir::TensorKind::state);
  REQUIRE(p[p.find("w.m")].state == ir::StateKind::first_moment);
  REQUIRE(p[p.find("long")].kind == ir::TensorKind::input);
  REQUIRE_FALSE(p.find("x").valid());

  REQUIRE(p.instructions.size() == 9);
  const ir::Instruction& gate = p.instructions[1];
  REQUIRE(gate.op == "gate");
  REQUIRE(gate.results.size() == 3);
  REQUIRE(p.type(gate.results[0]) == ir::TensorType{DType::i32, {8, 4}});
  REQUIRE(p.type(gate.results[2]) == ir::TensorType{DType::f32, {}});
  REQUIRE(gate.attributes.integer("capacity") == 5);
  REQUIRE(gate.attributes.text("kind") == "switch");
  REQUIRE(gate.label == "h.0.gate");
  REQUIRE(p.instructions[2].stream == ir::Stream::expert);
  REQUIRE(p.instructions[2].label.empty());
  REQUIRE(p.instructions[3].role == ir::Role::dx);
  REQUIRE(p.instructions[5].stream == ir::Stream::reduce);
  REQUIRE(p.instructions[5].role == ir::Role::sync);
  REQUIRE(p.instructions[6].results.size() == 1);

  const ir::TensorId accumulated = p.instructions[6].results[0];
  REQUIRE(p[accumulated].number == 2000);
  REQUIRE(p[accumulated].storage == p.find("w.m"));
  REQUIRE(p.root(p.instructions[4].results[0]) == p.instructions[0].results[0]);  // %9 in %7 in %0
  REQUIRE(p.instructions[6].role == ir::Role::dw);
  REQUIRE(p.instructions[7].op == "note");
  REQUIRE(p.instructions[7].operands.empty());
  REQUIRE(p.instructions[8].role == ir::Role::update);
  REQUIRE(p.instructions[8].writes == std::vector<ir::TensorId>{p.find("w"), p.find("h.0.e.w")});
  REQUIRE(p.outputs.size() == 3);
  REQUIRE(p.output("w") == p.find("w"));
  REQUIRE(p.output("grad.w") == accumulated);
  REQUIRE(p.outputs[2].kind == ir::OutputKind::gradient);
  REQUIRE(p.outputs[2].parameter == p.find("w"));
  REQUIRE_FALSE(p.output("nothing").valid());
}

TEST_CASE("the words of a name say what a state or an output is") {
  const ir::Program p = parsed(
      "parameter @w.m : f32[1]\nstate @w.m.v : f32[1]\nstate @w.m.master : f32[1]\nstate @w.m.grad : f32[1]\n"
      "state @a.load : f32[1]\nstate @a.keys : f32[1]\nstate @a.values : f32[1]\nstate @m : f32[1]\n"
      "state @w.moment : f32[1]\n"
      "output loss = @w.m\noutput aux.h.0 = @w.m\noutput load.h.0 = @w.m\noutput grad.w.m = @w.m\n"
      "output grad_norm = @w.m\noutput lossy.a = @w.m\noutput grad.unknown = @w.m\noutput grad = @w.m\n"
      "output z_loss.h.0 = @w.m\noutput bias.h.0 = @w.m\n");
  using State = ir::StateKind;
  std::vector<State> states;
  for (const ir::Tensor& tensor : p.tensors) states.push_back(tensor.state);
  CHECK(states == std::vector<State>{State::other, State::second_moment, State::master, State::gradient_sum,
                                     State::load_sum, State::keys, State::values, State::other, State::other});
  using Output = ir::OutputKind;
  std::vector<Output> outputs;
  std::vector<bool> shares;
  for (const ir::Output& output : p.outputs) {
    outputs.push_back(output.kind);
    shares.push_back(ir::is_share(output.kind));
    CHECK(output.parameter.valid() == (output.kind == Output::gradient));
  }
  CHECK(outputs == std::vector<Output>{Output::loss, Output::aux, Output::load, Output::gradient, Output::norm,
                                       Output::other, Output::other, Output::other, Output::z_loss, Output::bias});
  CHECK(shares == std::vector<bool>{true, true, true, false, false, false, false, false, true, false});
  CHECK(ir::state_name("w", State::master) == "w.master");
  CHECK(ir::output_name(Output::aux, "h.0") == "aux.h.0");
}

TEST_CASE("shardings are read and printed unchanged") {
  const ir::Program p = parsed(every_sharding);
  CHECK(ir::print(p) == every_sharding);
  require_same(parsed(ir::print(p)), p);
  CHECK(ir::verify(p).ok());
  const ir::Sharding& w = *p[p.find("w")].sharding;
  CHECK(p.type(p.find("w")).shape == Shape{3072, 768});
  CHECK(w.dimensions == std::vector<ir::Split>{{{ir::Axis::tensor}, 3}, {}});
  CHECK(p[p.find("e")].sharding->partial == ir::Axes{ir::Axis::data});
  CHECK(p[p.find("scalar")].sharding == ir::Sharding::whole(0));
  CHECK_FALSE(p[p.find("plain")].sharding.has_value());
}

TEST_CASE("errors of shardings say what was expected") {
  auto error = [](const std::string& type) {
    const auto program = ir::parse("input @x : " + type + "\n");
    return program.ok() ? std::string("none") : program.error().message;
  };
  const std::string dimension = "line 1: expected an extent and different axes of the mesh such as 64{data,expert}";
  CHECK(error("f32[8{rank}]") == dimension + ", found '8{rank}]'");
  CHECK(error("f32[4,8{data,data}]") == dimension + ", found '8{data,data}]'");
  CHECK(error("f32[8{data") == dimension + ", found '8{data'");
  CHECK(error("f32[4{data},8{data}]") ==
        "line 1: expected a sharding that names an axis once, found 'f32[4{data},8{data}]'");
  CHECK(error("f32[4{data}] partial{data}") ==
        "line 1: expected a sharding that names an axis once, found 'f32[4{data}] partial{data}'");
  CHECK(error("f32[4] partial{}") ==
        "line 1: expected axes of the mesh, outermost first, such as partial{data,expert}, found 'partial{}'");
  CHECK(error("f32[4] partial{expert,data}").find("expected axes of the mesh") != std::string::npos);
  CHECK(error("f32[4{data}] whole") == "line 1: expected the end of the line, found 'whole'");
}

TEST_CASE("views are read and printed unchanged") {
  const ir::Program p = parsed(every_view);
  REQUIRE(ir::print(p) == every_view);
  require_same(parsed(ir::print(p)), p);
  auto numbered = [&](int number) {
    for (const ir::Tensor& tensor : p.tensors)
      if (tensor.number == number) return tensor;
    return ir::Tensor{};
  };
  REQUIRE(numbered(1).kind == ir::TensorKind::view);
  REQUIRE(numbered(1).slice == ir::Slice{0, 0, 0});
  REQUIRE(numbered(2).slice == ir::Slice{32, 0, 0});
  REQUIRE(numbered(3).kind == ir::TensorKind::view);
  REQUIRE_FALSE(numbered(3).storage.valid());
  REQUIRE_FALSE(numbered(3).slice);
  REQUIRE(numbered(4).kind == ir::TensorKind::value);
  REQUIRE(p[numbered(4).storage].number == 3);
  REQUIRE(numbered(8).slice == ir::Slice{0, 1, 2});
  REQUIRE_FALSE(numbered(9).slice);
  REQUIRE(p[numbered(9).storage].number == 6);
  REQUIRE(p[numbered(11).storage].number == 9);
  REQUIRE(numbered(14).storage == p.find("s"));
}

TEST_CASE("regions follow slices down to the memory") {
  const ir::Program p = parsed(every_view);
  auto region = [&](int number) {
    for (std::size_t i = 0; i < p.tensors.size(); ++i)
      if (p.tensors[i].number == number) return p.region({std::int32_t(i)});
    return ir::Region{};
  };
  const ir::TensorId s = p.find("s");
  REQUIRE(region(12) == ir::Region{s, 24, 40, 0, 0});
  REQUIRE(region(14) == ir::Region{s, 16, 48, 0, 0});
  REQUIRE(region(10) == ir::Region{region(6).root, 0, 64, 0, 2});
  REQUIRE(region(13) == ir::Region{region(6).root, 48, 64, 0, 0});
  REQUIRE(ir::overlap(region(12), region(14)));
  REQUIRE(ir::contains(region(14), region(12)));
  REQUIRE_FALSE(ir::contains(region(12), region(14)));
  REQUIRE_FALSE(ir::overlap(region(1), region(2)));
  REQUIRE_FALSE(ir::overlap(region(1), region(4)));  // not in the same memory
  REQUIRE_FALSE(ir::overlap(region(7), region(11)));
  REQUIRE(ir::overlap(region(7), region(10)));
  REQUIRE(ir::overlap(region(13), region(10)));  // a part's slots may be anywhere
  REQUIRE(ir::contains(region(6), region(10)));
  REQUIRE_FALSE(ir::contains(region(10), region(6)));
  REQUIRE_FALSE(ir::contains(region(10), region(13)));
  const ir::Region third{region(6).root, 0, 64, 0, 3};  // parts of another part count may overlap
  REQUIRE(ir::overlap(third, region(11)));
  REQUIRE_FALSE(ir::contains(third, region(10)));
}

TEST_CASE("views made by hand survive their text") {
  ir::Program p;
  p.name = "views";
  const auto x = p.add_named(ir::TensorKind::input, "x", {DType::f32, {8}});
  const auto half = p.add_view({DType::f32, {4}}, x, ir::Slice{16, 0, 0});
  const auto whole = p.add_view({DType::bf16, {2, 6}});
  const auto part = p.add_value({DType::bf16, {2, 6}}, whole, ir::Slice{0, 63, 64});
  p.instructions.push_back({"f", {half}, {part}, {}, {}, ir::Stream::compute, ir::Role::forward, ""});
  p.outputs.push_back({"half", half});
  p.outputs.push_back({"part", part});
  require_same(parsed(ir::print(p)), p);
}

TEST_CASE("updated operands are marked") {
  const ir::Program p = parsed("state @a : f32[1]\nstate @b : f32[1]\nf(@a, &@b)  # compute update\n");
  REQUIRE(p.instructions[0].writes == std::vector<ir::TensorId>{p.find("b")});
  REQUIRE(p.instructions[0].operands == std::vector<ir::TensorId>{p.find("a"), p.find("b")});
  REQUIRE(p.instructions[0].writes_operand(p.find("b")));
  REQUIRE_FALSE(p.instructions[0].writes_operand(p.find("a")));
}

TEST_CASE("a program made by hand survives its text") {
  ir::Program p;
  p.name = "made";
  const auto w =
      p.add_named(ir::TensorKind::parameter, "w", {DType::bf16, {3, 5}}, ir::Sharding{{{{ir::Axis::expert}}, {}}, {}});
  const auto x = p.add_named(ir::TensorKind::input, "x", {DType::i64, {7}});
  const auto a = p.add_value({DType::f32, {2}});
  const auto b = p.add_value({DType::f32, {1}}, a);
  p.instructions.push_back({"f",
                            {w, x},
                            {a},
                            {},
                            {{"third", 1.0 / 3}, {"most", std::numeric_limits<std::int64_t>::max()}},
                            ir::Stream::expert,
                            ir::Role::forward,
                            "h.1"});
  p.instructions.push_back(
      {"g", {a, w}, {b}, {w}, {{"name", std::string("0123456789012345")}}, ir::Stream::compute, ir::Role::dw, ""});
  p.outputs.push_back({"b", b});
  require_same(parsed(ir::print(p)), p);
}

TEST_CASE("texts in attributes are read back as texts, even if they look like numbers") {
  for (const char* text : {"word", "12", "-1", "0012", "1e5", "1234567890123e12", "inf", "nan", "", "two words", "a,b",
                           "{x}", "a=b", "#", "0x1f"}) {
    INFO(text);
    ir::Program p;
    p.name = "t";
    p.attributes.set("a", std::string(text));
    p.attributes.set("b", std::int64_t(7));
    const ir::Program back = parsed(ir::print(p));
    REQUIRE(back.attributes == p.attributes);
  }
}

TEST_CASE("numbers in attributes are read back bit for bit") {
  std::mt19937_64 random(7);
  std::vector<double> values{0.0, -0.0, 1.0, -1.0, 1e300, 5e-324, 0.1, 2.0 / 3, 1e15, 1e16, 1e17, 123456789.0, 1e-5};
  for (int i = 0; i < 200; ++i) {
    double value = 0;
    const std::uint64_t bits = random();
    std::memcpy(&value, &bits, 8);
    if (value == value) values.push_back(value);
  }
  for (double value : values) {
    ir::Program p;
    p.attributes.set("a", value);
    const double back = parsed(ir::print(p)).attributes.real("a");
    REQUIRE(std::memcmp(&back, &value, 8) == 0);
  }
}

TEST_CASE("states that are flat shards say so") {
  const std::string text =
      "program p\nparameter @w : f32[40{expert}]\nstate @w.m : f32[32] shard{data}\n"
      "state @w.v : f32[32] shard{data,expert}\n";
  const auto p = ir::parse(text);
  REQUIRE(p.ok());
  CHECK((*p)[p->find("w")].flat_shard.empty());
  CHECK((*p)[p->find("w.m")].flat_shard == ir::Axes{ir::Axis::data});
  CHECK((*p)[p->find("w.v")].flat_shard == ir::Axes{ir::Axis::data, ir::Axis::expert});
  CHECK(ir::print(*p) == text);
}

TEST_CASE("new values are numbered after the largest") {
  ir::Program p =
      parsed("input @x : f32[1]\n%41 : f32[1] = f(@x)  # compute forward\n%7 : f32[1] = f(%41)  # compute forward\n");
  REQUIRE(p.display(p.add_value({DType::f32, {1}})) == "%42");
}

TEST_CASE("comments and blank lines are skipped, but counted") {
  const Error result = test::refused(ir::parse("// a comment\n\n  // another\r\nprogram p\n\noutput x = %1\n"));
  REQUIRE_THAT(result.message, Catch::StartsWith("line 6: "));
}

namespace {

struct BadText {
  const char* text;
  const char* expected;  // the begin of the message
};

constexpr BadText bad_programs[] = {
    {"program p {ranks}", "line 1: expected '=', found '}'"},
    {"program p {ranks=}", "line 1: expected an attribute's value, found '}'"},
    {"program p {=2}", "line 1: expected an attribute's name, found '=2}'"},
    {"program p {a=1 b=2}", "line 1: expected ',' or '}', found 'b=2}'"},
    {"program p {a=1,}", "line 1: expected an attribute's name, found '}'"},
    {"program p {a=1, a=2}", "line 1: expected a new attribute, found 'a=2}'"},
    {"program p {a=1", "line 1: expected ',' or '}', found 'end of line'"},
    {"program p {a=\"1}", "line 1: expected an attribute's value, found '\"1}'"},
    {"program p q", "line 1: expected the end of the line, found 'q'"},
    {"\n\nparameter @w", "line 3: expected ':', found 'end of line'"},
    {"state @w : f32[4] shard", "line 1: expected the end of the line, found 'shard'"},
    {"state @w : f32[4] shard{}", "line 1: expected axes of the mesh, outermost first, such as shard{data,expert}, "},
    {"parameter @w : f32[4] local", "line 1: expected the end of the line, found 'local'"},
    {"parameter @ : f32[1]", "line 1: expected a new name, found 'parameter @ : f32[1]'"},
    {"parameter @w : f33[1]", "line 1: expected a type such as f32[2,3], found 'f33[1]'"},
    {"parameter @w : f32", "line 1: expected '[', found 'end of line'"},
    {"parameter @w : f32[1", "line 1: expected ',' or ']', found 'end of line'"},
    {"parameter @w : f32[1,]", "line 1: expected an integer, found ']'"},
    {"parameter @w : f32[a]", "line 1: expected an integer, found 'a]'"},
    {"parameter @w : f32[1.5]", "line 1: expected an integer, found '1.5]'"},
    {"parameter @w : f32[-1]", "line 1: expected extents of at least 0 and below 2^40"},
    {"parameter @w : f32[99999999999999999999]", "line 1: expected an integer"},
    {"parameter @w : f32[2000000000000]", "line 1: expected extents of at least 0 and below 2^40"},
    {"parameter @w : f32[1099511627776,1099511627776]", "line 1: expected fewer than 2^50 elements"},
    {"parameter @w : f32[1,1,1,1,1,1,1]", "line 1: expected at most 6 axes"},
    {"parameter @w : route[3,4]", "line 1: expected a type such as f32[2,3]"},
    {"parameter @w : f32[1] shared", "line 1: expected the end of the line, found 'shared'"},
    {"parameter @w : f32[16] shard{data}",
     "line 1: expected a state with one axis, without a sharding, before the word shard, found 'shard{data}'"},
    {"state @w.m : f32[4,4] shard{data}",
     "line 1: expected a state with one axis, without a sharding, before the word shard, found 'shard{data}'"},
    {"parameter @w : f32[1]\nstate @w : f32[1]", "line 2: expected a new name, found 'state @w : f32[1]'"},
    {"parameters @w : f32[1]", "line 1: expected '(', found '@w : f32[1]'"},
    {"output x", "line 1: expected '=', found 'end of line'"},
    {"output = %1", "line 1: expected an output's name, found '= %1'"},
    {"output x = @y", "line 1: expected a declared tensor, found '@y'"},
    {"output x = %1", "line 1: expected a value made above, found '%1'"},
    {"output x = 1", "line 1: expected '%', found '1'"},
    {"f", "line 1: expected '(', found 'end of line'"},
    {"= f()  # compute forward", "line 1: expected an op's name, found '= f()"},
    {"f(@x)  # compute forward", "line 1: expected a declared tensor, found '@x)"},
    {"f(x)  # compute forward", "line 1: expected '%', found 'x)"},
    {"f(%x)  # compute forward", "line 1: expected an integer, found 'x)"},
    {"input @x : f32[1]\nf(@x  # compute forward", "line 2: expected ',' or ')', found '# compute forward'"},
    {"input @x : f32[1]\nf(@x @x)  # compute forward", "line 2: expected ',' or ')', found '@x)"},
    {"input @x : f32[1]\nf(@x,)  # compute forward", "line 2: expected '%', found ')"},
    {"f()", "line 1: expected '#', found 'end of line'"},
    {"f() # compute", "line 1: expected forward, dx, dw, sync, update or recompute, found 'end of line'"},
    {"f() # gpu forward", "line 1: expected a stream, found 'gpu forward'"},
    {"f() # compute backward", "line 1: expected forward, dx, dw, sync, update or recompute, found 'backward'"},
    {"f() # compute forward a b", "line 1: expected the end of the line, found 'b'"},
    {"%1 = f() # compute forward", "line 1: expected ':', found '= f()"},
    {"%1 : f32[1] f() # compute forward", "line 1: expected '=', found 'f()"},
    {"%1 : f32[1], = f() # compute forward", "line 1: expected '%', found '= f()"},
    {"%-1 : f32[1] = f() # compute forward", "line 1: expected a new value, found '%-1"},
    {"%9999999999 : f32[1] = f() # compute forward", "line 1: expected a new value, found '%9999999999"},
    {"%1 : f32[1] in %2 = f() # compute forward", "line 1: expected a value made above, found '%2"},
    {"%1 : f32[1] = f() # compute forward\n%1 : f32[1] = f() # compute forward",
     "line 2: expected a new value, found '%1"},
    {"view %1 : f32[4] in %2 + 0", "line 1: expected a value made above, found '%2 + 0'"},
    {"view %1 : f32[4] in @x + 0", "line 1: expected a declared tensor, found '@x + 0'"},
    {"view %1 : f32[4] in %1", "line 1: expected a value made above, found '%1'"},
    {"view @x : f32[4]", "line 1: expected '%', found '@x : f32[4]'"},
    {"view %1", "line 1: expected ':', found 'end of line'"},
    {"view %1 : f32[4] = f() # compute forward", "line 1: expected the end of the line, found '= f()"},
    {"view %1 : f32[4]\nview %1 : f32[4]", "line 2: expected a new value, found '%1"},
    {"view %1 : f32[4]\nview %2 : f32[1] in %1 + -4", "line 2: expected an offset of at least 0, found '+ -4'"},
    {"view %1 : f32[4]\nview %2 : f32[1] in %1 + x", "line 2: expected an integer, found 'x'"},
    {"view %1 : f32[4]\nview %2 : f32[1] in %1 + 9999999999999999", "line 2: expected an offset of at least 0"},
    {"view %1 : f32[4]\n%2 : f32[4] in %1 part 2 of 2 = f() # compute forward",
     "line 2: expected a part below the number of parts, found 'part 2 of 2 = f()"},
    {"view %1 : f32[4]\nview %2 : f32[4] in %1 part -1 of 2", "line 2: expected a part below the number of parts"},
    {"view %1 : f32[4]\nview %2 : f32[4] in %1 part 0 of 0", "line 2: expected a part below the number of parts"},
    {"view %1 : f32[4]\nview %2 : f32[4] in %1 part 0 of 65", "line 2: expected a part below the number of parts"},
    {"view %1 : f32[4]\nview %2 : f32[4] in %1 part 0", "line 2: expected 'of ', found 'end of line'"},
    // 2^32 + 1 is not 1
    {"%1 : f32[1] = f() # compute forward\ng(%4294967297) # compute forward",
     "line 2: expected a value made above, found '%4294967297"},
};

constexpr BadText bad_plans[] = {
    {"arena many", "line 1: expected an integer, found 'many'"},
    {"arena -1", "line 1: expected a size of at least 0, found '-1'"},
    {"f() # compute forward", "line 1: expected '[', found 'f()"},
    {"[1] f() # compute forward", "line 1: expected instruction [0], found '] f()"},
    {"[0 f() # compute forward", "line 1: expected ']', found 'f()"},
    {"[0] f() # compute forward | wait 0", "line 1: expected the number of an earlier instruction, found '0'"},
    {"[0] f() # compute forward\n[1] f() # compute forward | wait 1",
     "line 2: expected the number of an earlier instruction, found '1'"},
    {"[0] f() # compute forward | wait -1", "line 1: expected the number of an earlier instruction, found '-1'"},
    {"[0] f() # compute forward | wait x", "line 1: expected an integer, found 'x'"},
    {"[0] f() # compute forward | ms 1", "line 1: expected a number, found 'end of line'"},
    {"[0] f() # compute forward | ms a b", "line 1: expected a number, found 'a b'"},
    {"view %0 : f32[4] | at -1", "line 1: expected an offset of at least 0, found '-1'"},
    {"view %0 : f32[4] | at x", "line 1: expected an integer, found 'x'"},
    {"view %0 : f32[4] | wait 0", "line 1: expected 'at ', found 'wait 0'"},
    {"view %0 : f32[4] at 0", "line 1: expected the end of the line, found 'at 0'"},
    {"[0] f() # compute forward | later 1", "line 1: expected 'ms ', found 'later 1'"},
    {"[0] f() # compute forward | at 0", "line 1: expected the end of the line, found '0'"},
    {"[0] %0 : f32[1] = f() # compute forward | at ", "line 1: expected an integer, found 'end of line'"},
    {"[0] %0 : f32[1] = f() # compute forward | at x", "line 1: expected an integer, found 'x'"},
    {"[0] %0 : f32[1], %1 : f32[1] = f() # compute forward | at 0", "line 1: expected an integer, found 'end of line'"},
    {"[0] %0 : f32[1], %1 : f32[1] = f() # compute forward | at -5",
     "line 1: expected an offset of at least 0, found '-5'"},
};

}  // namespace

TEST_CASE("a malformed program names the line and what was expected") {
  for (const BadText& bad : bad_programs) {
    INFO(bad.text);
    const Error result = test::refused(ir::parse(bad.text));
    CHECK(result.code == ExitCode::config);
    CHECK_THAT(result.message, Catch::StartsWith(bad.expected));
    CHECK(result.message.find('\n') == std::string::npos);
  }
}

TEST_CASE("a plan's text is read and printed unchanged") {
  const ir::Plan plan = parsed_plan(plan_features);
  REQUIRE(ir::print(plan) == plan_features);
  REQUIRE(plan.header.text("policy") == "sequential");
  REQUIRE(plan.header.real("predicted_ms") == 1.5);
  REQUIRE(plan.arena_bytes == 4096);
  REQUIRE(plan.waits[0].empty());
  REQUIRE(plan.waits[4] == std::vector<ir::InstructionId>{{2}, {3}});
  REQUIRE(plan.predicted[1] == ir::Interval{0.125, 0.5});
  REQUIRE(plan.predicted[0] == ir::Interval{});
  const auto& results = plan.program.instructions[1].results;
  REQUIRE(plan.offsets[results[0].index()] == 64);
  REQUIRE(plan.offsets[results[1].index()] == -1);
}

TEST_CASE("views in a plan have their offset") {
  const ir::Plan plan = parsed_plan(plan_views);
  REQUIRE(ir::print(plan) == plan_views);
  REQUIRE(plan.offsets.size() == plan.program.tensors.size());
  for (std::size_t i = 0; i < plan.offsets.size(); ++i) {
    const int number = plan.program.tensors[i].number;
    INFO("%" << number);
    if (number == 3) REQUIRE(plan.offsets[i] == 64);
    if (number == 1 || number == 4 || number == 10) REQUIRE(plan.offsets[i] == -1);
  }
}

TEST_CASE("a malformed plan names the line and what was expected") {
  for (const BadText& bad : bad_plans) {
    INFO(bad.text);
    const Error result = test::refused(ir::parse_plan(bad.text));
    CHECK(result.code == ExitCode::config);
    CHECK_THAT(result.message, Catch::StartsWith(bad.expected));
  }
}
