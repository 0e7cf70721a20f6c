// The policies that split only the experts. Every MoE layer, from its first expert instruction to its last
// all-to-all, is split and its parts are put in order; everything else takes turns. Forward and backward ranges of a
// layer have the same number of parts.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <algorithm>

#include "lancet/ir/dependencies.h"
#include "lancet/schedule/overlap.h"
#include "lancet/schedule/simulate.h"
#include "layer_cuts.h"
#include "orders.h"
#include "ranges.h"
#include "split_search.h"

namespace lancet::schedule {
namespace {

enum class PartOrder { list_schedule, stages };

// The instructions of the spans in one of the orders, all else in program order; and its dependencies.
std::pair<Order, Dependencies> order_of(const Rewritten& rewritten, const std::vector<cost::OpCost>& op_costs,
                                        const std::vector<Span>& spans, PartOrder how, const ListOptions& options) {
  if (how == PartOrder::list_schedule) {
    const Orders orders(rewritten.program, op_costs, spans);
    Order order = orders.find(options).order;
    Dependencies needed = orders.needed(order);
    return {std::move(order), std::move(needed)};
  }
  const Dependencies dependencies = ir::dependencies(rewritten.program);
  Order order = staged(rewritten.program, dependencies, spans);
  Dependencies needed = renumbered(dependencies, order);
  return {std::move(order), std::move(needed)};
}

// degrees: the number of parts of each MoE layer.
Candidate experts_in_parts(const Step& step, const Cut& cut, const std::vector<int>& degrees, PartOrder how,
                           const ListOptions& options) {
  const std::vector<ExpertRange> ranges = expert_ranges(step);
  Split split = step.whole(cut);
  for (const ExpertRange& range : ranges) cut_span(split, step, range.span, cut, degrees[range.layer]);
  Rewritten rewritten = rewrite(step.program(), split);
  const std::vector<Span> spans = positions_of(rewritten, ranges);
  const std::vector<cost::OpCost> op_costs = step.op_costs(rewritten, split);
  auto [order, needed] = order_of(rewritten, op_costs, spans, how, options);
  ir::Program program = permuted(std::move(rewritten.program), order);
  needed = turns(program, std::move(needed));
  return as_it_is(step, "experts and their all-to-alls " + describe(cut, degrees), std::move(program),
                  permuted(op_costs, order), std::move(needed));
}

// Where the order by stages does not fit the memory, the list schedule takes its place.
bool replace_if_better(Candidate& best, const Step& step, const config::Overlap& overlap, const Cut& cut,
                       const std::vector<int>& degrees, PartOrder how) {
  const auto made = [&](const ListOptions& options) { return experts_in_parts(step, cut, degrees, how, options); };
  const std::string key = fmt::format("experts by {} in {}", cut.name, fmt::join(degrees, ","));
  if (how == PartOrder::stages) {
    const Replaced replaced =
        schedule::replace_if_better(best, step, overlap, key + " by stages", [&] { return made({}); });
    if (replaced != Replaced::too_large) return replaced == Replaced::yes;
    how = PartOrder::list_schedule;
  }
  return schedule::replace_if_better(best, step, overlap, {}, key, made);
}

Candidate split_experts(const Step& step, const config::Overlap& overlap, const Cut& cut, PartOrder how,
                        Candidate candidate) {
  candidate.how = "experts and their all-to-alls whole";
  const std::size_t layers = layers_of(expert_ranges(step));
  if (layers == 0) return candidate;  // no tokens travel
  return or_forced_split(std::move(candidate), step, overlap, cut, [&](Candidate best) {
    for (int parts : step.part_counts(cut))
      replace_if_better(best, step, overlap, cut, std::vector<int>(layers, parts), how);
    return best;
  });
}

// The best degree for all layers alike, then for each kind of layers the degree that makes the step shortest.
Candidate search_degrees(const Step& step, const config::Overlap& overlap, PartOrder how, Candidate best) {
  const std::vector<int>& counts = step.part_counts(cut_named("capacity"));
  const LayerKinds kinds(step, expert_ranges(step));
  std::vector<int> degrees(kinds.count(), 1), of_a_kind = counts;
  of_a_kind.insert(of_a_kind.begin(), 1);
  const auto attempt = [&](std::vector<int> tried) {
    if (tried == degrees) return;
    if (replace_if_better(best, step, overlap, cut_named("capacity"), kinds.by_layer(tried), how))
      degrees = std::move(tried);
  };
  for (const int degree : counts) attempt(std::vector<int>(degrees.size(), degree));
  for (std::size_t kind = 0; kind < degrees.size() && degrees.size() > 1; ++kind)
    for (const int degree : of_a_kind) {
      std::vector<int> tried = degrees;
      tried[kind] = degree;
      attempt(std::move(tried));
    }
  return best;
}

// Comet: the search for the tiles of each MoE layer. A layer has one number of tiles of source ranks, by which its
// received rows are cut, and one of tiles of columns, by which what its experts send back is cut; both passes of a
// layer are cut alike, and so are layers of one kind. First all kinds have the same tiles, each pair of numbers is
// simulated; then each of several kinds in turn tries the numbers next to these. A candidate that
// overlap.memory_factor does not allow is refused.
//
// Within a layer's pass the order is Comet's: what is of one cut runs tile by tile, the own rank's first, and the tiles
// of the next cut follow. Copies of columns follow the last product, so that none of them delays a tile that travels.
// Weight gradients end the pass, as in a framework that does not move them.

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

// The order of the instructions of one layer's pass: a phase is what is of one cut. An all-to-all, and a copy of
// columns, is awaited.
Order by_tiles(const Rewritten& rewritten, const Split& split, const Dependencies& dependencies, const Span& span) {
  const auto& instructions = rewritten.program.instructions;
  const auto cut_of = [&](std::size_t i) -> const Cut* {
    const int origin = rewritten.origin[i];
    return origin < 0 || split.parts[std::size_t(origin)] == 1 ? nullptr : split.cuts[std::size_t(origin)];
  };
  return by_phases(
      dependencies, span,
      {.ends_between = [&](std::size_t before, std::size_t i) { return cut_of(before) != cut_of(i); },
       .is_awaited =
           [&](std::size_t i) { return instructions[i].stream == ir::Stream::expert || rewritten.origin[i] < 0; },
       .part = [&](std::size_t i,
                   bool) { return cut_of(i) ? instructions[i].attributes.integer("part") : std::int64_t{-1}; }});
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
    const std::vector<Tiles> layers = kinds_.by_layer(tiles);
    const auto made = [&] { return in_tiles(layers); };
    if (schedule::replace_if_better(best_, step_, overlap_, describe(layers), made) == Replaced::yes) chosen_ = tiles;
  }

  // tiles: of each layer.
  Candidate in_tiles(const std::vector<Tiles>& tiles) const {
    const Split split = joined(split_by(rows_, tiles, &Tiles::sources), split_by(columns_, tiles, &Tiles::columns));
    Rewritten rewritten = rewrite(step_.program(), split);
    const Dependencies dependencies = ir::dependencies(rewritten.program);
    const Order order = in_ranges(dependencies.size(), passes_of(rewritten, ranges_),
                                  [&](const Span& span) { return by_tiles(rewritten, split, dependencies, span); });
    std::vector<cost::OpCost> op_costs = permuted(step_.op_costs(rewritten, split), order);
    ir::Program program = permuted(std::move(rewritten.program), order);
    Dependencies needed = turns(program, renumbered(dependencies, order));
    return as_it_is(step_, describe(tiles), std::move(program), std::move(op_costs), std::move(needed));
  }

  Split split_by(const Cut& cut, const std::vector<Tiles>& tiles, int Tiles::*count) const {
    Split split = step_.whole(cut);
    for (const ExpertRange& range : ranges_) cut_span(split, step_, range.span, cut, tiles[range.layer].*count);
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

Candidate smart_schedule(const Step& step, const config::Overlap& overlap, Candidate candidate) {
  return split_experts(step, overlap, cut_named("peers"), PartOrder::stages, std::move(candidate));
}

Candidate degree_per_layer(const Step& step, const config::Overlap& overlap, Candidate candidate) {
  if (overlap.parts > 0)
    return split_experts(step, overlap, cut_named("capacity"), PartOrder::list_schedule, std::move(candidate));
  candidate.how = "experts and their all-to-alls whole";
  for (PartOrder how : {PartOrder::stages, PartOrder::list_schedule})
    candidate = search_degrees(step, overlap, how, std::move(candidate));
  return candidate;
}

Candidate tile_experts(const Step& step, const config::Overlap& overlap, Candidate candidate) {
  candidate.how = "received rows and experts' results whole";
  if (expert_ranges(step).empty()) return candidate;  // no tokens travel
  const Cut& rows = cut_named("source_rows");
  const Cut& either = step.part_counts(rows).empty() ? cut_named("columns") : rows;
  return or_forced_split(std::move(candidate), step, overlap, either,
                         [&](Candidate best) { return TileSearch(step, overlap, std::move(best)).run(); });
}

}  // namespace lancet::schedule
