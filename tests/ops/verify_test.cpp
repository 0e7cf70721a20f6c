// ops::verify checks each instruction against its op: types, the stream, in-place updates.
#include <catch2/catch.hpp>

#include "lancet/ir/plan.h"
#include "lancet/ops/catalogue.h"

namespace lancet {
namespace {

const std::string sound = R"(program p
input @schedule : f32[4]
parameter @w : f32[4]
state @w.momentum : f32[4]
%0 : f32[4] = gelu(@w)  # compute forward a
%1 : f32[4] in %0 = all_reduce(%0)  # reduce sync w
)";

std::string fault(const std::string& from, const std::string& to) {
  std::string text = sound;
  const auto at = text.find(from);
  REQUIRE(at != std::string::npos);
  const auto program = ir::parse(text.replace(at, from.size(), to));
  REQUIRE(program.ok());
  const Status status = ops::verify(*program);
  return status.ok() ? "" : status.error().message;
}

}  // namespace

TEST_CASE("an instruction on a stream other than its op's is found") {
  CHECK(fault("a\n", "a\n").empty());
  CHECK(fault("# compute forward a", "# expert forward a")
            .starts_with("expected it on the stream compute, found expert"));
  CHECK(fault("# reduce sync w", "# compute sync w").starts_with("expected it on the stream reduce, found compute"));
}

TEST_CASE("every op that writes declares it in its instructions") {
  int writers = 0;
  for (const ops::OpDef* op : ops::all_ops()) {
    if (op->writes.empty()) continue;
    const ops::Sample& sample = op->samples.front();
    ir::Program program;
    std::vector<ir::TensorId> operands;
    for (const auto& given : sample.operands)
      operands.push_back(program.add_named(ir::TensorKind::state, "s" + std::to_string(operands.size()), given.type));
    ops::append(program, op->name, operands, sample.attributes, ir::Role::update, "here");
    INFO(op->name);
    REQUIRE(ops::verify(program).ok());
    program.instructions.back().writes.pop_back();
    const Status status = ops::verify(program);
    REQUIRE_FALSE(status.ok());
    CHECK(status.error().message.find("to be updated in place (&), in: ") != std::string::npos);
    ++writers;
  }
  CHECK(writers >= 2);
}

TEST_CASE("an attribute that is missing or of another type is an error for every op") {
  int faults = 0;
  for (const ops::OpDef* op : ops::all_ops())
    for (const ops::Sample& sample : op->samples)
      for (const auto& [name, value] : sample.attributes.items()) {
        ir::Program program;
        std::vector<ir::TensorId> operands;
        for (const auto& given : sample.operands)
          operands.push_back(
              program.add_named(ir::TensorKind::state, "s" + std::to_string(operands.size()), given.type));
        ops::append(program, op->name, operands, sample.attributes, ir::Role::forward, "here");
        ir::Attributes others;
        for (const auto& [other, kept] : sample.attributes.items())
          if (other != name) others.set(other, kept);
        ir::Instruction& instruction = program.instructions.back();
        instruction.attributes = others;
        faults += !ops::verify(program).ok();  // some are optional
        instruction.attributes.set(name, ir::AttributeValue(std::string("none")));
        faults += !ops::verify(program).ok();
      }
  CHECK(faults > 20);
}

}  // namespace lancet
