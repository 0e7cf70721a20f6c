// An instruction with a dependency that holds tile by tile becomes a chain of equal tiles, another one a single tile,
// so the last tile stands for the end. A tile waits for the tile before it and, of each instruction that it depends on,
// for the last tile; if the dependency holds tile by tile under one of the cuts, for the tile that has made as large a
// share. Instructions that take no time have no job: what waits for one waits for what it waits for.
//
// A dependency can hold tile by tile if it is a value that the reader takes from its maker. Which cuts it belongs to
// follows from the kinds of both ops and, for the cuts along the batch and through the experts, from the axes that
// infer_axes finds: both ends split the value along the same one.
#include "ideal_jobs.h"

#include <algorithm>
#include <cmath>

#include "lancet/ir/dependencies.h"
#include "lancet/ops/catalogue.h"
#include "lancet/schedule/cut.h"

namespace lancet::schedule {
namespace {

using ir::InstructionId;
using ir::Role;
using ir::TensorId;

// The cuts under which a rank's own share of the data needs no message.
constexpr IdealCuts local_cuts = ideal::source_rows | ideal::ring_shards;

// A value that the reader takes from the maker: the result of one, and the operand of the other.
struct Taken {
  std::size_t result = 0, operand = 0;
};

std::vector<Taken> values_taken(const ir::Instruction& maker, const ir::Instruction& reader) {
  std::vector<Taken> taken;
  for (std::size_t r = 0; r < maker.results.size(); ++r)
    for (std::size_t o = 0; o < reader.operands.size(); ++o)
      if (maker.results[r] == reader.operands[o]) taken.push_back({r, o});
  return taken;
}

// True if the reader reads bytes of the maker in another tensor than those that it takes: the whole of a value that is
// made in slices, or a slice of a whole.
bool reads_otherwise(const ir::Program& program, const ir::Instruction& maker, const ir::Instruction& reader) {
  std::vector<TensorId> written = maker.results;
  written.insert(written.end(), maker.writes.begin(), maker.writes.end());
  return std::ranges::any_of(reader.operands, [&](TensorId read) {
    return std::ranges::count(maker.results, read) == 0 && std::ranges::any_of(written, [&](TensorId made) {
             return ir::overlap(program.region(made), program.region(read));
           });
  });
}

// True if both ends split every value that is taken along one axis.
bool along_one_axis(const ops::PartitionRow* maker, const ops::PartitionRow* reader, const std::vector<Taken>& values) {
  if (!maker || !reader) return false;
  return std::ranges::all_of(values, [&](const Taken& value) {
    const ops::Axis made = maker->results[value.result];
    const ops::Axis read = reader->operands[std::min(value.operand, reader->operands.size() - 1)];
    return made == read && (ops::is_split(made) || made == ops::irregular || made == ops::cumulative);
  });
}

std::int64_t bytes_of_first(const ir::Program& program, const std::vector<TensorId>& tensors) {
  return tensors.empty() ? 0 : ir::bytes(program.type(tensors.front()));
}

// Of a collective, the bytes that a rank has more after it: an all-gather leaves more, a reduce-scatter fewer.
std::int64_t bytes_gained(const ir::Program& program, const ir::Instruction& at) {
  if (ops::kind(at) != ops::Kind::collective) return 0;
  return bytes_of_first(program, at.results) - bytes_of_first(program, at.operands);
}

bool is_product(const ir::Instruction& at) { return ops::kind(at) == ops::Kind::product; }

// The cuts that are between one communication and one product.
IdealCuts cuts_beside_product(const ir::Program& program, const ir::Instruction& maker, const ir::Instruction& reader) {
  IdealCuts cuts = 0;
  if (ops::kind(maker) == ops::Kind::all_to_all && is_product(reader)) {
    cuts |= ideal::contracting;
    if (ops::op(maker.op).to_experts) cuts |= ideal::source_rows;
  }
  if (is_product(maker) && ops::is_over_expert_rows(maker) && ops::kind(reader) == ops::Kind::all_to_all)
    cuts |= ideal::columns;
  if (bytes_gained(program, maker) > 0 && is_product(reader)) cuts |= ideal::ring_shards;
  if (is_product(maker) && bytes_gained(program, reader) < 0) cuts |= ideal::ring_shards;
  return cuts;
}

void append_new(std::vector<std::int32_t>& list, const std::vector<std::int32_t>& more) {
  for (const std::int32_t item : more)
    if (std::ranges::find(list, item) == list.end()) list.push_back(item);
}

}  // namespace

IdealStepJobs::IdealStepJobs(const ir::Program& program, std::span<const cost::OpCost> op_costs)
    : program_(program), op_costs_(op_costs), blocks_(program), users_(blocks_.bytes.size()) {
  for (std::size_t i = 0; i < program.instructions.size(); ++i)
    for (const std::int32_t block : blocks_.of[i]) users_[std::size_t(block)].push_back(i);
  find_edges();
  find_batch();
  find_crossings();
}

void IdealStepJobs::find_edges() {
  const AxisRows batch = cut_named("batch").rows(program_), experts = cut_named("capacity").rows(program_);
  const Dependencies dependencies = ir::dependencies(program_);
  for (std::size_t i = 0; i < dependencies.size(); ++i) {
    const ir::Instruction& reader = program_.instructions[i];
    edges_.emplace_back();
    for (const InstructionId id : dependencies[i]) {
      const ir::Instruction& maker = program_.instructions[id.index()];
      Edge edge{id.index()};
      const std::vector<Taken> values = values_taken(maker, reader);
      if (!values.empty() && !reads_otherwise(program_, maker, reader)) {
        edge.cuts = cuts_beside_product(program_, maker, reader);
        if (along_one_axis(experts[id.index()].get(), experts[i].get(), values)) edge.cuts |= ideal::experts;
        if (along_one_axis(batch[id.index()].get(), batch[i].get(), values))
          edge.cuts |= reader.role == Role::forward ? ideal::batch_forward : ideal::batch_backward;
      }
      if (edge.cuts & local_cuts) {
        edge.local_last = is_product(maker);
        edge.local = 1 / double(cost::all_to_all_ranks(program_, edge.local_last ? reader : maker));
      }
      edges_.back().push_back(edge);
    }
  }
}

void IdealStepJobs::find_batch() {
  for (std::size_t i = 0; i < edges_.size(); ++i) {
    const ir::Instruction& at = program_.instructions[i];
    const bool reads =
        std::ranges::any_of(at.operands,
                            [&](TensorId id) { return program_[program_.root(id)].kind == ir::TensorKind::input; }) ||
        std::ranges::any_of(edges_[i], [&](const Edge& edge) { return of_batch_[edge.maker]; });
    of_batch_.push_back(reads && at.role != Role::sync && at.role != Role::update);
  }
  for (const std::vector<std::size_t>& users : users_)
    is_halved_.push_back(of_batch_[users.front()] && program_.instructions[users.front()].role != Role::dw);
}

void IdealStepJobs::find_crossings() {
  const auto named = [&](TensorId id) {
    const ir::TensorKind kind = program_[program_.root(id)].kind;
    return kind == ir::TensorKind::parameter || kind == ir::TensorKind::state;
  };
  const std::size_t count = program_.instructions.size();
  std::vector<std::vector<std::size_t>> writers(program_.tensors.size());
  for (std::size_t i = 0; i < count; ++i)
    for (const auto* tensors : {&program_.instructions[i].results, &program_.instructions[i].writes})
      for (const TensorId id : *tensors)
        if (named(id)) writers[program_.root(id).index()].push_back(i);
  crossings_.resize(count);
  feeds_network_.resize(count);
  is_last_.assign(count, true);
  for (std::size_t i = 0; i < count; ++i) {
    const ir::Instruction& at = program_.instructions[i];
    is_gather_.push_back(ops::kind(at) == ops::Kind::flat_all_gather);
    for (const Edge& edge : edges_[i]) {
      if (!is_gather_[i]) is_last_[edge.maker] = false;
      if (at.stream == ir::Stream::reduce) feeds_network_[edge.maker] = true;
    }
    for (const auto* tensors : {&at.operands, &at.results})
      for (const TensorId id : *tensors)
        for (const std::size_t writer : writers[program_.root(id).index()])
          if (std::ranges::count(crossings_[i], writer) == 0) crossings_[i].push_back(writer);
  }
}

// Makes the jobs of all copies of the program: of each step, and in it of each half of the batch.
class IdealStepJobs::Builder {
 public:
  Builder(const IdealStepJobs& step, const IdealOptions& options)
      : step_(step),
        options_(options),
        count_(step.edges_.size()),
        is_tiled_(count_),
        nodes_(count_ * 2 * std::size_t(options.steps)) {
    for (std::size_t i = 0; i < count_; ++i) {
      if (step.program_.instructions[i].stream == ir::Stream::reduce) is_tiled_[i] = true;
      for (const Edge& edge : step.edges_[i])
        if (edge.cuts & options.cuts) is_tiled_[i] = is_tiled_[edge.maker] = true;
    }
    for (std::size_t b = 0; b < step.users_.size(); ++b) {
      is_in_tiles_.push_back(is_used_in_tiles(b));
      first_block_.push_back(std::int32_t(made_.block_bytes.size()));
      const bool halved = options.halves && step.is_halved_[b];
      const int pieces = (halved ? 2 : 1) * (is_in_tiles_[b] ? tiles : 1);
      made_.block_bytes.insert(made_.block_bytes.end(), std::size_t(pieces * options.steps),
                               step.blocks_.bytes[b] / pieces);
    }
  }

  IdealJobs run() {
    for (int step = 0; step < options_.steps; ++step)
      for (std::size_t i = 0; i < count_; ++i)
        for (int half = 0; half < copies(i); ++half) add(step, half, i);
    return std::move(made_);
  }

 private:
  using Needs = std::vector<std::int32_t>;
  // An instruction of one step and half.
  struct Node {
    std::int32_t first_job = -1;  // of its tiles; -1: it takes no time
    int jobs = 0;
    Needs begin;                 // what its first tile waits for
    Needs beside_end;            // jobs that must also have ended before it has
    std::vector<Needs> through;  // if it takes no time: what stands for each of its tiles
  };

  int copies(std::size_t i) const { return options_.halves && step_.of_batch_[i] ? 2 : 1; }
  Node& node(int step, int half, std::size_t i) {
    return nodes_[(std::size_t(step) * 2 + std::size_t(half)) * count_ + i];
  }

  // The jobs that end when a tile of the node does; tile -1: those after which it can start.
  Needs ends_of(const Node& node, int tile) const {
    if (tile < 0) return node.begin;
    if (node.first_job < 0) return node.through[std::size_t(tile)];
    Needs ends{node.first_job + std::min(tile, node.jobs - 1)};
    if (tile == tiles - 1) append_new(ends, node.beside_end);
    return ends;
  }

  // The last tile of the maker that a tile of the reader waits for; -1: none.
  int tile_needed(const Edge& edge, int tile) const {
    const IdealCuts cuts = edge.cuts & options_.cuts;
    if (cuts == 0) return tiles - 1;
    // Under other cuts each tile has rows of all ranks.
    const bool by_rank = (cuts & local_cuts) && (cuts & ~(local_cuts | ideal::contracting)) == 0;
    const double share = double(tile + 1) / tiles, local = by_rank ? edge.local : 0;
    const double needed = edge.local_last ? share * (1 - local) : (share - local) / (1 - local);
    return std::clamp(int(std::ceil(needed * tiles - 1e-9)) - 1, -1, tiles - 1);
  }

  // What a tile waits for in its own step, besides what the tile before it waited for.
  Needs needs_of_tile(int step, int half, std::size_t i, int tile) {
    Needs needs;
    for (const Edge& edge : step_.edges_[i]) {
      const bool alike = copies(edge.maker) == copies(i);
      const int maker_tile = alike ? tile_needed(edge, tile) : tiles - 1;
      if (tile > 0 && maker_tile == (alike ? tile_needed(edge, tile - 1) : tiles - 1)) continue;
      for (int copy = 0; copy < copies(edge.maker); ++copy)
        if (copies(i) == 1 || copies(edge.maker) == 1 || copy == half)
          append_new(needs, ends_of(node(step, copy, edge.maker), maker_tile));
    }
    return needs;
  }

  // What an instruction waits for in the step before its own.
  Needs needs_across(int step, std::size_t i) {
    Needs needs;
    if (step == 0) return needs;
    const auto wait_for = [&](std::size_t maker) {
      for (int copy = 0; copy < copies(maker); ++copy)
        append_new(needs, ends_of(node(step - 1, copy, maker), tiles - 1));
    };
    for (const std::size_t writer : step_.crossings_[i]) wait_for(writer);
    if (options_.border == Border::gathers && step_.edges_[i].empty())
      for (std::size_t last = 0; last < count_; ++last)
        if (step_.is_last_[last] && !step_.is_gather_[last]) wait_for(last);
    return needs;
  }

  // Of a message that follows its maker but for this rank's own share at the end, the end of the maker.
  Needs own_share_of(int step, int half, std::size_t i) {
    Needs needs;
    for (const Edge& edge : step_.edges_[i])
      if (edge.local_last && (edge.cuts & options_.cuts & local_cuts) && copies(edge.maker) == copies(i))
        append_new(needs, ends_of(node(step, half, edge.maker), tiles - 1));
    return needs;
  }

  // True if nothing needs more of the block than a tile of it: each tile then has memory of its own.
  bool is_used_in_tiles(std::size_t block) const {
    const std::vector<std::size_t>& users = step_.users_[block];
    return std::ranges::all_of(users, [&](std::size_t i) {
      return is_tiled_[i] && std::ranges::all_of(step_.edges_[i], [&](const Edge& edge) {
               return (edge.cuts & options_.cuts) != 0 || std::ranges::find(users, edge.maker) == users.end();
             });
    });
  }

  // The blocks that a tile touches. What is not in tiles is alive from the first tile to the last one.
  std::vector<std::int32_t> blocks_of(int step, int half, std::size_t i, int tile) const {
    std::vector<std::int32_t> blocks;
    const bool at_end = tile == 0 || tile == tiles - 1 || !is_tiled_[i];
    for (const std::int32_t id : step_.blocks_.of[i]) {
      const auto block = std::size_t(id);
      if (!is_in_tiles_[block] && !at_end) continue;
      const int halves = options_.halves && step_.is_halved_[block] ? 2 : 1;
      for (int copy = 0; copy < halves; ++copy) {
        if (halves == 2 && copies(i) == 2 && copy != half) continue;
        const int copy_of_step = step * halves + copy;
        blocks.push_back(first_block_[block] + (is_in_tiles_[block] ? copy_of_step * tiles + tile : copy_of_step));
      }
    }
    return blocks;
  }

  void add(int step, int half, std::size_t i) {
    Node& added = node(step, half, i);
    added.beside_end = own_share_of(step, half, i);
    if (step_.op_costs_[i].ms > 0) return add_jobs(added, step, half, i);
    for (int tile = 0; tile < tiles; ++tile) {
      Needs through = tile > 0 ? added.through.back() : needs_across(step, i);
      append_new(through, needs_of_tile(step, half, i, tile));
      if (tile == 0) added.begin = through;
      if (tile == tiles - 1) append_new(through, added.beside_end);
      added.through.push_back(std::move(through));
    }
  }

  // The part in whose lead a tile of an instruction without parts is: tiles along the batch lead as parts do.
  int tile_part(int half, std::size_t i, int tile) const {
    const bool along_batch = std::ranges::any_of(step_.edges_[i], [&](const Edge& edge) {
      return (edge.cuts & options_.cuts & (ideal::batch_forward | ideal::batch_backward)) != 0;
    });
    return options_.halves ? half : along_batch ? tile : -1;
  }

  void add_jobs(Node& added, int step, int half, std::size_t i) {
    const ir::Instruction& at = step_.program_.instructions[i];
    added.first_job = std::int32_t(made_.jobs.size());
    added.jobs = is_tiled_[i] ? tiles : 1;
    const double ms = step_.op_costs_[i].ms / copies(i) / added.jobs;
    for (int tile = 0; tile < added.jobs; ++tile) {
      Needs needs = needs_of_tile(step, half, i, tile);
      if (tile > 0) needs.push_back(added.first_job + tile - 1);
      if (tile == 0) append_new(needs, needs_across(step, i));
      if (tile == 0) added.begin = needs;
      made_.jobs.push_back({.stream = at.stream,
                            .ms = ms,
                            .rest_ms = ms * (added.jobs - 1 - tile),
                            .part = int(at.attributes.integer("part", tile_part(half, i, tile))),
                            .backward = at.role != Role::forward,
                            .feeds_network = step_.feeds_network_[i],
                            .filler = at.role == Role::dw || at.role == Role::update,
                            .needs = std::move(needs),
                            .blocks = blocks_of(step, half, i, tile)});
    }
  }

  const IdealStepJobs& step_;
  const IdealOptions& options_;
  const std::size_t count_;                // instructions of a step
  std::vector<bool> is_tiled_;             // by instruction
  std::vector<bool> is_in_tiles_;          // by block
  std::vector<std::int32_t> first_block_;  // by block: the first of its copies and tiles
  std::vector<Node> nodes_;
  IdealJobs made_;
};

IdealJobs IdealStepJobs::make(const IdealOptions& options) const { return Builder(*this, options).run(); }

}  // namespace lancet::schedule
