// The cut of the model into chunks, held against all cuts there are.
#include "lancet/passes/passes.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <limits>
#include <random>

#include "lancet/ir/plan.h"
#include "lancet/ops/catalogue.h"

using namespace lancet;

namespace {

using Cut = std::vector<int>;  // the blocks of each chunk

// What a cut is judged by: the largest work of a stage, that of a chunk, and the sum of squares.
struct Judged {
  double stage = 0, chunk = 0, squares = 0;
};

Judged judged(std::span<const double> work, passes::Chunks chunks, const Cut& cut) {
  std::vector<double> stages(std::size_t(chunks.stages));
  Judged result;
  for (std::size_t chunk = 0, block = 0; chunk < cut.size(); ++chunk) {
    double of_chunk = chunk + 1 == cut.size() ? work.back() : 0;
    for (int i = 0; i < cut[chunk]; ++i) of_chunk += work[block++];
    stages[chunk % stages.size()] += of_chunk;
    result.chunk = std::max(result.chunk, of_chunk);
    result.squares += of_chunk * of_chunk;
  }
  for (const double of_stage : stages) {
    result.stage = std::max(result.stage, of_stage);
    result.squares += of_stage * of_stage;
  }
  return result;
}

void for_each_cut(int blocks, int chunks, Cut& cut, const std::function<void(const Cut&)>& visit) {
  const bool last = int(cut.size()) + 1 == chunks;
  for (int here = last ? blocks : 1; here <= blocks; ++here) {
    cut.push_back(here);
    if (last)
      visit(cut);
    else
      for_each_cut(blocks - here, chunks, cut, visit);
    cut.pop_back();
  }
}

Cut cut_of(std::span<const double> work, passes::Chunks chunks) {
  Cut first = passes::balanced_chunks(work, chunks), cut;
  first.push_back(int(work.size()) - 1);
  for (std::size_t chunk = 0; chunk + 1 < first.size(); ++chunk) cut.push_back(first[chunk + 1] - first[chunk]);
  return cut;
}

// Blocks of equal work, and a head whose work is given in blocks.
Cut cut_of(int blocks, double head, passes::Chunks chunks) {
  std::vector<double> work(std::size_t(blocks), 1);
  work.push_back(head);
  return cut_of(work, chunks);
}

}  // namespace

TEST_CASE("balanced chunks: no cut of a small model is better") {
  std::mt19937 random(1);
  const auto number = [&](int from, int to) { return std::uniform_int_distribution(from, to)(random); };
  for (int round = 0; round < 400; ++round) {
    const passes::Chunks chunks{number(1, 4), number(1, 2)};
    const int count = chunks.stages * chunks.laps, blocks = number(count, count + 5), largest = number(1, 9);
    std::vector<double> work;
    for (int block = 0; block < blocks; ++block) work.push_back(number(1, largest));
    work.push_back(number(0, 3) * number(0, largest));
    Judged best;
    best.stage = std::numeric_limits<double>::infinity();
    Cut begun;
    for_each_cut(blocks, count, begun, [&](const Cut& cut) {
      if (cut.back() == 0 && work.back() == 0) return;
      const Judged of = judged(work, chunks, cut);
      if (std::tie(of.stage, of.chunk, of.squares) < std::tie(best.stage, best.chunk, best.squares)) best = of;
    });
    const Cut cut = cut_of(work, chunks);
    CAPTURE(round, work, chunks.stages, chunks.laps, cut);
    const Judged found = judged(work, chunks, cut);
    CHECK(found.stage == best.stage);
    CHECK(found.chunk == best.chunk);
    CHECK(found.squares == best.squares);
    CHECK(std::count(cut.begin(), cut.end() - 1, 0) == 0);
  }
}

TEST_CASE("balanced chunks: a heavy head leaves its stage fewer blocks, or none") {
  CHECK(cut_of(24, 0, {4, 1}) == Cut{6, 6, 6, 6});
  CHECK(cut_of(24, 4.7, {4, 1}) == Cut{7, 7, 7, 3});
  CHECK(cut_of(24, 5.2, {4, 1}) == Cut{7, 7, 8, 2});
  CHECK(cut_of(24, 4.7, {8, 1}) == Cut{3, 3, 3, 3, 4, 4, 4, 0});
  // The two chunks of the last stage have 3 blocks and the head.
  CHECK(cut_of(24, 4.7, {4, 2}) == Cut{3, 3, 3, 3, 4, 4, 4, 0});
  CHECK(cut_of(24, 0, {4, 2}) == Cut{3, 3, 3, 3, 3, 3, 3, 3});
  CHECK(cut_of(7, 3, {1, 1}) == Cut{7});
}

TEST_CASE("balanced chunks: the work of a program is its flops and bytes, and too few blocks are refused") {
  const auto program = ir::parse(R"(program p
input @tokens : i32[2,3]
parameter @e : f32[5,4]
parameter @p : f32[3,4]
parameter @w : f32[4,4]
parameter @u : f32[8,4]
parameter @d : f32[4,8]
%0 : f32[2,3,4] = embedding(@tokens, @e, @p) {vocabulary=5}  # compute forward wte
%1 : f32[2,3,4] = linear(%0, @w)  # compute forward h.0.mlp
%2 : f32[2,3,8] = linear(%1, @u)  # compute forward h.1.mlp
%3 : f32[2,3,4] = linear(%2, @d)  # compute forward h.2.mlp
%4 : f32[2,3,5] = linear(%3, @e)  # compute forward lm_head
output loss = %4
)");
  REQUIRE(program.ok());
  const auto first = [&](int stages, int laps) {
    const auto found = passes::balanced_chunks(*program, passes::Chunks{stages, laps});
    return found.ok() ? *found : Cut{-1};
  };
  std::vector<double> work(4);
  for (std::size_t i = 0; i < program->instructions.size(); ++i) {
    const ops::Work of = ops::work(*program, program->instructions[i]);
    work[i < 2 ? 0 : i - 1] += of.flops + 100 * of.bytes;
  }
  CHECK(first(1, 1) == Cut{0});
  CHECK(first(2, 1) == passes::balanced_chunks(work, {2, 1}));
  CHECK(first(2, 1) == Cut{0, 2});
  CHECK(first(1, 2) == Cut{0, 2});
  CHECK(first(3, 1) == Cut{0, 1, 2});
  for (const auto& [stages, laps] : {std::pair(4, 1), {2, 2}}) {
    const auto refused = passes::balanced_chunks(*program, passes::Chunks{stages, laps});
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.error().message ==
          "config: mesh.stage: expected at most 3, the number of blocks of the model, found 4");
  }
}
