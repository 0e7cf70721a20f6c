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

TEST_CASE("readers do not depend on one another or on writers of other memory") {
  REQUIRE(last_needs(head + "g(@s) # expert forward\ng(@s) # compute forward\n") == Needs{});
  REQUIRE(last_needs(head + "f(&@s) # expert forward\nf(&@t) # compute forward\n") == Needs{});
  REQUIRE(last_needs(head + "f(&@s, @s, @s) # expert forward\n") == Needs{});  // not on itself
}

TEST_CASE("parts depend on one another only if they overlap") {
  const std::string whole = head + "view %0 : f32[4]\n";
  const std::string parts = whole +
                            "%1 : f32[2] in %0 + 0 = f(@x) # compute forward\n"
                            "%2 : f32[2] in %0 + 8 = f(@x) # expert forward\n";
  REQUIRE(last_needs(parts) == Needs{});
  REQUIRE(last_needs(parts + "g(%0) # compute forward\n") == Needs{0, 1});
  REQUIRE(last_needs(parts + "g(%2) # compute forward\n") == Needs{1});
  const std::string views = parts + "view %3 : f32[2] in %0 + 4\nview %4 : f32[1] in %0 + 12\n";
  REQUIRE(last_needs(views + "g(%3) # compute forward\n") == Needs{0, 1});
  REQUIRE(last_needs(views + "g(%4) # compute forward\n") == Needs{1});
  // An overwrite replaces the memory that it covers as a dependency, and no more.
  REQUIRE(last_needs(parts + "g(%1) # expert forward\ng(%2) # compute forward\n"
                             "%5 : f32[4] in %0 = f(%0) # compute forward\n") == Needs{0, 1, 2, 3});
  REQUIRE(last_needs(views + "f(&%3) # compute forward\ng(%0) # expert forward\n") == Needs{0, 1, 2});
  REQUIRE(last_needs(views + "%5 : f32[4] in %0 = f(%0) # compute forward\ng(%4) # expert forward\n") == Needs{2});
  // A view of a view of a parameter.
  REQUIRE(last_needs(head + "view %0 : f32[2] in @s + 8\nview %1 : f32[1] in %0 + 4\nview %2 : f32[1] in @s + 8\n"
                            "f(&%1) # compute forward\nf(&%2) # compute forward\ng(%0) # expert forward\n") ==
          Needs{0, 1});
  REQUIRE(last_needs(head + "view %0 : f32[1] in @s + 12\nview %1 : f32[1] in @s + 8\n"
                            "f(&%0) # compute forward\ng(%1) # expert forward\n") == Needs{});
}

TEST_CASE("slots of parts: those of equal part counts do not overlap") {
  const std::string parts = head +
                            "view %0 : f32[4]\n%1 : f32[4] in %0 part 0 of 2 = f(@x) # compute forward\n"
                            "%2 : f32[4] in %0 part 1 of 2 = f(@x) # expert forward\n";
  REQUIRE(last_needs(parts) == Needs{});
  REQUIRE(last_needs(parts + "g(%2) # compute forward\n") == Needs{1});
  REQUIRE(last_needs(parts + "g(%0) # compute forward\n") == Needs{0, 1});
  REQUIRE(last_needs(parts + "g(%1) # expert forward\ng(%2) # compute forward\n"
                             "%3 : f32[4] in %0 = f(@x) # compute forward\n") == Needs{0, 1, 2, 3});
  REQUIRE(last_needs(parts + "%3 : f32[4] in %0 = f(@x) # compute forward\ng(%1) # expert forward\n") == Needs{2});
  // In place: part by part.
  REQUIRE(last_needs(parts + "view %3 : f32[4] in %0\n%4 : f32[4] in %3 part 0 of 2 = f(%1) # compute forward\n"
                             "%5 : f32[4] in %3 part 1 of 2 = f(%2) # compute forward\n") == Needs{1});
  // Parts of another part count, and slices of bytes, may overlap any slots.
  REQUIRE(last_needs(parts + "view %3 : f32[4] in %0 part 2 of 3\ng(%3) # compute forward\n") == Needs{0, 1});
  REQUIRE(last_needs(parts + "view %3 : f32[1] in %0 + 12\ng(%3) # compute forward\n") == Needs{0, 1});
}

TEST_CASE("all-reduces of gradients are those of what the backward pass made, whole, summed or in slices") {
  const ir::Program p = parsed(
      "parameter @w : f32[4]\nstate @w.grad : f32[4]\n"
      "%0 : f32[1] = loss(@w) # compute forward\n%1 : f32[4] = d(%0) # compute dw\n"
      "%2 : f32[4] in @w.grad = d(%1, @w.grad) # compute dx\n"
      "%3 : f32[1] = norm(%1) # compute update\n"
      "%4 : f32[1] in %0 = all_reduce(%0) # reduce sync metrics\n"
      "%5 : f32[1] in %3 = all_reduce(%3) # reduce sync norm\n"
      "%6 : f32[4] in %1 = all_reduce(%1) # reduce sync a\n"
      "view %7 : f32[2] in %2 + 8\n%8 : f32[2] in %7 + 0 = all_reduce(%7) # reduce sync b\n"
      "view %9 : f32[4]\n%10 : f32[2] in %9 + 0 = d(%0) # compute dw\n"
      "%11 : f32[4] in %9 = all_reduce(%9) # reduce sync c\n");
  CHECK(ir::gradient_all_reduces(p) ==
        std::vector<bool>{false, false, false, false, false, false, true, true, false, true});
}

namespace {

// A random program: values, values in others' memory, slices of it, updates in place; verify() would not accept all of
// them.
ir::Program random_program(std::mt19937_64& random, int instructions) {
  auto below = [&](std::size_t bound) { return std::size_t(random() % bound); };
  ir::Program p;
  std::vector<ir::TensorId> tensors;
  for (int i = 0; i < 3; ++i)
    tensors.push_back(p.add_named(ir::TensorKind::state, std::string(1, char('a' + i)), {DType::f32, {8}}));
  // In no other tensor's memory, in all of it, or in a slice of it.
  auto add = [&](bool view) {
    ir::TensorType type{DType::f32, {8}};
    ir::TensorId storage{};
    std::optional<ir::Slice> slice;
    if (below(3) == 0) {
      storage = tensors[below(tensors.size())];
      type = p.type(storage);
      const std::int64_t extent = type.shape[0];
      const bool in_part = p.region(storage).parts > 0;  // the slots of a part are not sliced again
      if (below(2) == 0 && !in_part) {
        slice = ir::Slice{0, std::int32_t(below(2)), std::int32_t(2 + below(2))};
      } else if (below(2) == 0 && extent > 1 && !in_part) {
        type = {DType::f32, {extent / 2}};
        slice = ir::Slice{std::int64_t(4 * below(std::size_t(extent / 2) + 1)), 0, 0};
      }
    }
    return view ? p.add_view(type, storage, slice) : p.add_value(type, storage, slice);
  };
  for (int i = 0; i < instructions; ++i) {
    ir::Instruction instruction{"f", {}, {}, {}, {}, static_cast<ir::Stream>(below(3)), ir::Role::forward, ""};
    for (std::size_t n = below(3); n > 0; --n) {
      const ir::TensorId id = tensors[tensors.size() - 1 - below(std::min<std::size_t>(tensors.size(), 8))];
      instruction.operands.push_back(id);
      if (below(4) == 0) instruction.writes.push_back(id);
    }
    for (std::size_t n = below(3); n > 0; --n) instruction.results.push_back(add(false));
    tensors.insert(tensors.end(), instruction.results.begin(), instruction.results.end());
    if (below(3) == 0) tensors.push_back(add(true));
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

// Stream order and these waits.
Matrix ordered_by(const ir::Program& p, const Lists& waits) {
  Matrix before = edges(waits);
  for (std::size_t i = 0; i < before.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      if (p.instructions[i].stream == p.instructions[j].stream) before[i][j] = true;
  return closure(before);
}

// A tensor's first float in its root, the number of floats, and its part (at most one along the way).
struct Place {
  ir::TensorId root;
  std::int64_t first, count;
  ir::Slice part{};
};
Place place(const ir::Program& p, ir::TensorId id) {
  const ir::Tensor& tensor = p[id];
  if (!tensor.storage.valid()) return {id, 0, tensor.type.shape[0]};
  Place inner = place(p, tensor.storage);
  inner.count = tensor.type.shape[0];
  if (tensor.slice && tensor.slice->parts > 0) inner.part = *tensor.slice;
  if (tensor.slice) inner.first += tensor.slice->offset / 4;
  return inner;
}

bool meet(const ir::Program& p, ir::TensorId a, ir::TensorId b) {
  const Place x = place(p, a), y = place(p, b);
  if (x.root != y.root) return false;
  if (x.part.parts > 0 && x.part.parts == y.part.parts && x.part.part != y.part.part) return false;
  for (std::int64_t at = x.first; at < x.first + x.count; ++at)
    if (at >= y.first && at < y.first + y.count) return true;
  return false;
}

// True if both touch the same bytes and at least one writes there.
bool conflict(const ir::Program& p, const ir::Instruction& a, const ir::Instruction& b) {
  auto written = [](const ir::Instruction& i) {
    std::vector<ir::TensorId> list = i.results;
    list.insert(list.end(), i.writes.begin(), i.writes.end());
    return list;
  };
  auto any = [&](const std::vector<ir::TensorId>& x, const std::vector<ir::TensorId>& y) {
    for (ir::TensorId s : x)
      for (ir::TensorId t : y)
        if (meet(p, s, t)) return true;
    return false;
  };
  const auto of_a = written(a), of_b = written(b);
  return any(of_a, of_b) || any(of_a, b.operands) || any(a.operands, of_b);
}

bool covers(const Matrix& order, const Matrix& needed) {
  for (std::size_t i = 0; i < order.size(); ++i)
    for (std::size_t j = 0; j < order.size(); ++j)
      if (needed[i][j] && !order[i][j]) return false;
  return true;
}

}  // namespace

TEST_CASE("dependencies of random programs cover exactly the conflicts") {
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

TEST_CASE("happens-before of random waits is the closure with stream order") {
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

TEST_CASE("minimal waits are sufficient, and none can be removed") {
  std::mt19937_64 random(3);
  std::size_t total = 0, wanted = 0;
  for (int round = 0; round < 100; ++round) {
    const ir::Program p = random_program(random, 24);
    const Lists needed = ir::dependencies(p);
    const Matrix need = edges(needed);
    Lists waits = ir::HappensBefore(p, needed).waits();
    INFO(ir::print(p));
    REQUIRE(covers(ordered_by(p, waits), need));
    for (std::size_t i = 0; i < waits.size(); ++i) {
      wanted += needed[i].size();
      total += waits[i].size();
      for (InstructionId id : waits[i]) REQUIRE(p.instructions[id.index()].stream != p.instructions[i].stream);
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
  REQUIRE(touched[p.instructions[1].results[0].index()].empty());  // its accesses are those of its storage
  REQUIRE(touched[p.find("s").index()] == std::vector<InstructionId>{{1}, {2}});
  REQUIRE(touched[p.find("t").index()].empty());
}
