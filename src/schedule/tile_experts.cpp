// Comet: the search for the tiles of each MoE layer. A layer has one number of tiles of source ranks, by which its
// received rows are cut, and one of tiles of columns, by which what its experts send back is cut; both passes of a
// layer are cut alike, and so are layers of one kind. First all kinds have the same tiles, each pair of numbers is
// simulated; then each of several kinds in turn tries the numbers next to these. A candidate that
// overlap.memory_factor does not allow is refused.
//
// Within a layer's pass the order is Comet's: what is of one cut runs tile by tile, the own rank's first, and the tiles
// of the next cut follow. Copies of columns follow the last product, so that none of them delays a tile that travels.
// Weight gradients end the pass, as in a framework that does not move them.
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "lancet/ir/dependencies.h"
#include "lancet/schedule/overlap.h"
#include "lancet/schedule/turns.h"
#include "layer_cuts.h"
#include "split_search.h"

namespace lancet::schedule {
namespace {

// The parts of a layer by the two cuts; 1: whole.
struct Tiles {
  int sources = 1, columns = 1;
  friend bool operator==(const Tiles&, const Tiles&) = default;
};

std::string describe(const std::vector<Tiles>& layers) {
  std::vector<int> sources, columns;
  for (const Tiles& tiles : layers) {
    sources.push_back(tiles.sources);
    columns.push_back(tiles.columns);
  }
  return fmt::format("received rows {}, experts' results {}", describe(cut_named("source_rows"), sources),
                     describe(cut_named("columns"), columns));
}

// The order of the instructions of one layer's pass. phase: how often the tiles change on the way to an instruction, or
// begin or end.
Order by_tiles(const Rewritten& rewritten, const Split& split, const Dependencies& dependencies, const Span& span) {
  constexpr int last = std::numeric_limits<int>::max();
  const auto cut_of = [&](std::size_t i) -> const Cut* {
    const int origin = rewritten.origin[i];
    return origin < 0 || split.parts[std::size_t(origin)] == 1 ? nullptr : split.cuts[std::size_t(origin)];
  };
  const auto part_of = [&](std::size_t i) {
    return cut_of(i) ? rewritten.program.instructions[i].attributes.integer("part") : -1;
  };
  std::vector<int> phase(span.second);
  std::vector<bool> feeds(span.second);  // an all-to-all waits for it, or a copy of columns
  for (std::size_t i = span.first; i < span.second; ++i)
    for (ir::InstructionId before : dependencies[i])
      if (before.index() >= span.first)
        phase[i] = std::max(phase[i], phase[before.index()] + (cut_of(before.index()) != cut_of(i)));
  Order order;
  for (std::size_t i = span.second; i-- > span.first;) {
    order.push_back(ir::id_of(i));
    if (rewritten.program.instructions[i].stream == ir::Stream::expert || rewritten.origin[i] < 0) feeds[i] = true;
    if (!feeds[i]) phase[i] = last;
    for (ir::InstructionId before : dependencies[i])
      if (before.index() >= span.first) feeds[before.index()] = feeds[before.index()] || feeds[i];
  }
  std::ranges::reverse(order);
  std::ranges::stable_sort(order, {},
                           [&](ir::InstructionId id) { return std::pair(phase[id.index()], part_of(id.index())); });
  return order;
}

// The layers' passes in the split step, each with the copies that follow its last all-to-all.
std::vector<Span> passes_of(const Rewritten& rewritten, const std::vector<ExpertRange>& ranges) {
  std::vector<Span> spans = positions_of(rewritten, ranges);
  for (Span& span : spans)
    while (span.second < rewritten.origin.size() && rewritten.origin[span.second] < 0) ++span.second;
  return spans;
}

class TileSearch {
 public:
  TileSearch(const Step& step, const config::Overlap& overlap, Candidate best)
      : step_(step),
        overlap_(overlap),
        best_(std::move(best)),
        ranges_(expert_ranges(step)),
        kinds_(step, ranges_),
        chosen_(kinds_.count()) {}

  Candidate run() {
    const bool forced = overlap_.parts > 1;
    const std::vector<int> sources = choices(rows_, forced), columns = choices(columns_, forced);
    for (int s : sources)
      for (int c : columns) try_tiles(std::vector<Tiles>(chosen_.size(), {s, c}));
    for (std::size_t kind = 0; kind < chosen_.size() && chosen_.size() > 1 && !forced; ++kind) {
      for (int s : beside(sources, chosen_[kind].sources)) try_kind(kind, {s, chosen_[kind].columns});
      for (int c : beside(columns, chosen_[kind].columns)) try_kind(kind, {chosen_[kind].sources, c});
    }
    return std::move(best_);
  }

 private:
  std::vector<int> choices(const Cut& cut, bool forced) const {
    std::vector<int> counts = step_.part_counts(cut);
    if (!forced || counts.empty()) counts.insert(counts.begin(), 1);
    return counts;
  }

  // The choices next to the one that is chosen: kinds differ little.
  static std::vector<int> beside(const std::vector<int>& choices, int chosen) {
    std::vector<int> result;
    const auto at = std::ranges::find(choices, chosen);
    if (at != choices.begin()) result.push_back(*(at - 1));
    if (at + 1 != choices.end()) result.push_back(*(at + 1));
    return result;
  }

  void try_kind(std::size_t kind, const Tiles& tiles) {
    std::vector<Tiles> tried = chosen_;
    tried[kind] = tiles;
    if (tried != chosen_) try_tiles(tried);
  }

  void try_tiles(const std::vector<Tiles>& tiles) {
    if (replace_if_better(best_, in_tiles(kinds_.by_layer(tiles)), step_, overlap_)) chosen_ = tiles;
  }

  // tiles: of each layer.
  Candidate in_tiles(const std::vector<Tiles>& tiles) const {
    const Split split = joined(split_by(rows_, tiles, &Tiles::sources), split_by(columns_, tiles, &Tiles::columns));
    Rewritten rewritten = rewrite(step_.program(), split);
    const Dependencies dependencies = ir::dependencies(rewritten.program);
    Order order;
    const auto keep_until = [&](std::size_t end) {
      while (order.size() < end) order.push_back(ir::id_of(order.size()));
    };
    for (const Span& span : passes_of(rewritten, ranges_)) {
      keep_until(span.first);
      for (ir::InstructionId id : by_tiles(rewritten, split, dependencies, span)) order.push_back(id);
    }
    keep_until(rewritten.program.instructions.size());
    std::vector<cost::OpCost> op_costs = permuted(step_.op_costs(rewritten, split), order);
    ir::Program program = permuted(std::move(rewritten.program), order);
    Dependencies needed = turns(program, renumbered(dependencies, order));
    return as_it_is(step_, describe(tiles), std::move(program), std::move(op_costs), std::move(needed));
  }

  Split split_by(const Cut& cut, const std::vector<Tiles>& tiles, int Tiles::*count) const {
    Split split = step_.whole(cut);
    for (const ExpertRange& range : ranges_)
      for (std::size_t i = range.span.first; i < range.span.second; ++i)
        if (split.rows[i]) split.parts[i] = tiles[range.layer].*count;
    return split;
  }

  const Step& step_;
  const config::Overlap& overlap_;
  const Cut &rows_ = cut_named("source_rows"), &columns_ = cut_named("columns");
  Candidate best_;
  const std::vector<ExpertRange> ranges_;
  const LayerKinds kinds_;
  std::vector<Tiles> chosen_;  // of best_, by kind
};

}  // namespace

Candidate tile_experts(const Step& step, const config::Overlap& overlap, Candidate candidate) {
  candidate.how = "received rows and experts' results whole";
  if (expert_ranges(step).empty()) return candidate;  // no tokens travel
  const Cut& rows = cut_named("source_rows");
  const Cut& either = step.part_counts(rows).empty() ? cut_named("columns") : rows;
  return or_forced_split(std::move(candidate), step, overlap, either,
                         [&](Candidate best) { return TileSearch(step, overlap, std::move(best)).run(); });
}

}  // namespace lancet::schedule
