// Dependencies, happens-before and waits: small cases by hand, random programs against a transitive closure.
#include "lancet/ir/dependencies.h"

#include <random>

#include "support.h"

using namespace lancet;
using namespace lancet::test;
using ir::InstructionId;

namespace {

using Lists = std::vector<std::vector<InstructionId>>;

// The dependencies of the last line.
std::vector<int> last_needs(const std::string& text) {
  const Lists needed = ir::dependencies(parsed(text));
  std::vector<int> result;
  for (InstructionId id : needed.back()) result.push_back(id.value);
  return result;
}
using Needs = std::vector<int>;

const std::string head = "input @x : f32[4]\nstate @s : f32[4]\nstate @t : f32[4]\n";

}  // namespace

TEST_CASE("reading depends on the last write") {
  REQUIRE(last_needs(head + "%0 : f32[4] = f(@x) # compute forward\ng(%0) # expert forward\n") == Needs{0});
  REQUIRE(last_needs(head + "f(&@s) # compute forward\ng(@s) # expert forward\n") == Needs{0});
  REQUIRE(last_needs(head + "f(&@s) # compute forward\nf(&@s) # compute forward\ng(@s) # expert forward\n") ==
          Needs{1});
  REQUIRE(last_needs(head + "%0 : f32[4] in @s = f(@x) # compute forward\ng(@s) # expert forward\n") == Needs{0});
  REQUIRE(last_needs(head + "f(&@s) # compute forward\nf(&@t) # compute forward\ng(@s, @t) # expert forward\n") ==
          Needs{0, 1});
}

TEST_CASE("overwriting depends on the reads since the last write, and on that write") {
  const std::string made = head + "%0 : f32[4] = f(@x) # compute forward\n";
  REQUIRE(last_needs(made +
                     "g(%0) # expert forward\ng(%0) # reduce forward\n%1 : f32[4] in %0 = h(@x) # compute forward\n") ==
          Needs{0, 1, 2});
  REQUIRE(
      last_needs(made + "%1 : f32[4] in %0 = f(%0) # compute forward\n%2 : f32[4] in %1 = f(@x) # expert forward\n") ==
      Needs{1});
  REQUIRE(last_needs(head + "g(@s) # expert forward\nf(&@s) # compute forward\n") == Needs{0});
  REQUIRE(last_needs(head + "f(&@s) # expert forward\nf(&@s) # compute forward\n") == Needs{0});
  REQUIRE(last_needs(head + "g(@s) # expert forward\n%0 : f32[4] in @s = f(@x) # compute forward\n") == Needs{0});
}

TEST_CASE("readers do not depend on one another, nor on what lies in other memory") {
  REQUIRE(last_needs(head + "g(@s) # expert forward\ng(@s) # compute forward\n") == Needs{});
  REQUIRE(last_needs(head + "f(&@s) # expert forward\nf(&@t) # compute forward\n") == Needs{});
  REQUIRE(last_needs(head + "f(&@s, @s, @s) # expert forward\n") == Needs{});  // not on itself
}

namespace {

// A random program: values, values in others' memory, updates in place; not always one that verify() would pass.
ir::Program random_program(std::mt19937_64& random, int instructions) {
  auto below = [&](std::size_t bound) { return std::size_t(random() % bound); };
  ir::Program p;
  std::vector<ir::TensorId> tensors;
  for (int i = 0; i < 3; ++i)
    tensors.push_back(p.add_named(ir::TensorKind::state, std::string(1, char('a' + i)), {DType::f32, {1}}));
  for (int i = 0; i < instructions; ++i) {
    ir::Instruction instruction{"f", {}, {}, {}, {}, static_cast<ir::Lane>(below(3)), ir::Role::forward, ""};
    for (std::size_t n = below(3); n > 0; --n) {
      const ir::TensorId id = tensors[tensors.size() - 1 - below(std::min<std::size_t>(tensors.size(), 8))];
      instruction.operands.push_back(id);
      if (below(4) == 0) instruction.writes.push_back(id);
    }
    for (std::size_t n = below(3); n > 0; --n)
      instruction.results.push_back(
          p.add_value({DType::f32, {1}}, below(3) ? ir::TensorId{} : tensors[below(tensors.size())]));
    tensors.insert(tensors.end(), instruction.results.begin(), instruction.results.end());
    p.instructions.push_back(instruction);
  }
  return p;
}

using Matrix = std::vector<std::vector<bool>>;

// before[i][j]: a path leads from j to i.
Matrix closure(Matrix before) {
  const std::size_t n = before.size();
  for (std::size_t k = 0; k < n; ++k)
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t j = 0; j < n; ++j)
        if (before[i][k] && before[k][j]) before[i][j] = true;
  return before;
}

Matrix edges(const Lists& lists) {
  Matrix result(lists.size(), std::vector<bool>(lists.size()));
  for (std::size_t i = 0; i < lists.size(); ++i)
    for (InstructionId id : lists[i]) result[i][id.index()] = true;
  return result;
}

// Lane order and these waits.
Matrix ordered_by(const ir::Program& p, const Lists& waits) {
  Matrix before = edges(waits);
  for (std::size_t i = 0; i < before.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      if (p.instructions[i].lane == p.instructions[j].lane) before[i][j] = true;
  return closure(before);
}

// Both touch one root, and at least one writes there.
bool conflict(const ir::Program& p, const ir::Instruction& a, const ir::Instruction& b) {
  auto touches = [&](const ir::Instruction& i, ir::TensorId root, bool writing) {
    for (ir::TensorId id : i.results)
      if (p.root(id) == root) return true;
    for (ir::TensorId id : writing ? i.writes : i.operands)
      if (p.root(id) == root) return true;
    return false;
  };
  for (std::size_t t = 0; t < p.tensors.size(); ++t) {
    const ir::TensorId root{std::int32_t(t)};
    if (p[root].storage.valid()) continue;
    if (touches(a, root, false) && touches(b, root, false) && (touches(a, root, true) || touches(b, root, true)))
      return true;
  }
  return false;
}

bool covers(const Matrix& order, const Matrix& needed) {
  for (std::size_t i = 0; i < order.size(); ++i)
    for (std::size_t j = 0; j < order.size(); ++j)
      if (needed[i][j] && !order[i][j]) return false;
  return true;
}

}  // namespace

TEST_CASE("dependencies of random programs reach what conflicts, and nothing else") {
  std::mt19937_64 random(1);
  for (int round = 0; round < 150; ++round) {
    const ir::Program p = random_program(random, 24);
    INFO(ir::print(p));
    Matrix conflicts(p.instructions.size(), std::vector<bool>(p.instructions.size()));
    for (std::size_t i = 0; i < conflicts.size(); ++i)
      for (std::size_t j = 0; j < i; ++j) conflicts[i][j] = conflict(p, p.instructions[i], p.instructions[j]);
    const Lists needed = ir::dependencies(p);
    for (std::size_t i = 0; i < needed.size(); ++i) {
      REQUIRE(std::is_sorted(needed[i].begin(), needed[i].end()));
      REQUIRE(std::adjacent_find(needed[i].begin(), needed[i].end()) == needed[i].end());
      for (InstructionId id : needed[i]) REQUIRE(conflicts[i][id.index()]);
    }
    REQUIRE(closure(edges(needed)) == closure(conflicts));
  }
}

TEST_CASE("happens-before of random waits is their closure with lane order") {
  std::mt19937_64 random(2);
  for (int round = 0; round < 100; ++round) {
    const ir::Program p = random_program(random, 30);
    Lists waits(p.instructions.size());
    for (std::size_t i = 1; i < waits.size(); ++i)
      for (std::size_t n = random() % 3; n > 0; --n) waits[i].push_back({std::int32_t(random() % i)});
    const Matrix expected = ordered_by(p, waits);
    const ir::HappensBefore order(p, waits);
    for (std::size_t i = 0; i < waits.size(); ++i)
      for (std::size_t j = 0; j < waits.size(); ++j)
        if (i != j) REQUIRE(order.ordered({std::int32_t(j)}, {std::int32_t(i)}) == expected[i][j]);
  }
}

TEST_CASE("minimal waits are enough, and none can go") {
  std::mt19937_64 random(3);
  std::size_t total = 0, wanted = 0;
  for (int round = 0; round < 100; ++round) {
    const ir::Program p = random_program(random, 24);
    const Lists needed = ir::dependencies(p);
    const Matrix need = edges(needed);
    Lists waits = ir::minimal_waits(p, needed);
    INFO(ir::print(p));
    REQUIRE(covers(ordered_by(p, waits), need));
    for (std::size_t i = 0; i < waits.size(); ++i) {
      wanted += needed[i].size();
      total += waits[i].size();
      for (InstructionId id : waits[i]) REQUIRE(p.instructions[id.index()].lane != p.instructions[i].lane);
      for (std::size_t k = 0; k < waits[i].size(); ++k) {
        Lists fewer = waits;
        fewer[i].erase(fewer[i].begin() + std::ptrdiff_t(k));
        REQUIRE_FALSE(covers(ordered_by(p, fewer), need));
      }
    }
  }
  REQUIRE(total > 0);
  REQUIRE(total < wanted);
}

TEST_CASE("a wait for a later instruction is an internal error") {
  const ir::Program p = parsed("f() # compute forward\ng() # expert forward\n");
  REQUIRE_THROWS_AS(ir::HappensBefore(p, {{{1}}, {}}), InternalError);
}

TEST_CASE("accesses follow memory through storage") {
  const ir::Program p = parsed(head +
                               "%0 : f32[4] = f(@x) # compute forward\n%1 : f32[4] in %0 = f(%0, @s) # compute "
                               "forward\ng(%1, %1, &@s) # compute forward\n");
  const auto touched = ir::accesses(p);
  REQUIRE(touched[p.instructions[0].results[0].index()] == std::vector<InstructionId>{{0}, {1}, {2}});
  REQUIRE(touched[p.instructions[1].results[0].index()].empty());  // its accesses are its storage's
  REQUIRE(touched[p.find("s").index()] == std::vector<InstructionId>{{1}, {2}});
  REQUIRE(touched[p.find("t").index()].empty());
}
