// How the search works. It tries these splits: none, the ranges of the dynamic programme, and the whole forward pass in
// each number of parts, with the backward pass split alike or whole. List scheduling orders each split under a grid of
// settings: the leads of the parts in both passes, whether all-reduces are fed early, and the memory at which fillers
// run. An order is simulated only if its peak memory is within the limit and its list schedule is shorter than the best
// simulated step. To the best of these splits, cuts of single MoE layers are added where they make the step shorter
// (layer_cuts.h): first the same for all layers, then others layer by layer. The best three splits are ordered again
// with all-reduces in chunks of several sizes; and in the orders found, chunks are also placed by chunk_all_reduces.
// The shortest candidate whose planned arena is within overlap.memory_factor is returned.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>

#include "lancet/schedule/overlap.h"
#include "lancet/schedule/plan_memory.h"
#include "lancet/schedule/simulate.h"
#include "layer_cuts.h"
#include "orders.h"
#include "split_search.h"

namespace lancet::schedule {
namespace {

// Of the allowed arena growth 2.5% is kept for packing loss. A step with all-reduces in chunks that is packed worse is
// ordered again with the tight margin. Weight gradients begin to run early, to free memory, at the margin of fillers.
constexpr double packing_margin = 0.025, tight_margin = 0.065, filler_margin = 0.05;

// The number of splits that are ordered again with all-reduces in chunks.
constexpr std::size_t second_round = 3;
constexpr std::size_t chunk_choices = 3, all_choices = 10;

// The number of splits to which cuts of single layers are added, for small steps and for others.
constexpr std::size_t mixed_splits = 3, mixed_of_large = 1;
// A gain below which such cuts are not kept.
constexpr double least_shorter = 1e-4;

// Steps of at most this many instructions are searched over all combinations of settings.
constexpr std::size_t small_step = 600;

Candidate nothing() {
  Candidate candidate;
  candidate.timeline.makespan = std::numeric_limits<double>::infinity();
  return candidate;
}

class OrderSearch {
 public:
  OrderSearch(const Step& step, const config::Overlap& overlap)
      : step_(step),
        overlap_(overlap),
        leads_(overlap.memory_factor > config::Overlap().memory_factor ? std::span<const double>(all_leads)
                                                                       : short_leads),
        memory_(step.peak_bytes()),
        fills_at_(std::int64_t((overlap.memory_factor - filler_margin) * double(memory_))),
        thorough_(step.program().instructions.size() <= small_step) {}

  void try_whole() {
    if (overlap_.parts <= 1) try_split("weight gradients in gaps of the network", step_.whole(cut_named("batch")));
  }
  void try_split(const std::string& how, const Split& split) {
    Tried tried = this->split(how, split);
    try_all_leads(tried, Orders(tried.chunked.program, tried.chunked.op_costs));
    tried_.push_back(std::move(tried));
  }

  // Adds cuts of single MoE layers to the best splits.
  // A split that is longer than the best by more than cuts of layers can hide is left out.
  void mix_cuts() {
    sort_tried();
    std::vector<std::pair<double, std::size_t>> least;  // that cuts can make of it
    for (std::size_t i = 0; i < tried_.size(); ++i) {
      const double ms =
          tried_[i].candidate.timeline.makespan - LayerMixes(step_, tried_[i].split, thorough_).most_hidden_ms();
      if (ms < tried_[0].candidate.timeline.makespan) least.emplace_back(ms, i);
    }
    std::ranges::sort(least);
    least.resize(std::min(least.size(), thorough_ ? mixed_splits : mixed_of_large));
    for (const auto& [_, i] : least) {
      const double ms = tried_[i].candidate.timeline.makespan;
      Tried found = mixed(tried_[i]);
      if (found.candidate.timeline.makespan >= ms * (1 - least_shorter)) continue;
      tried_.push_back(found);  // it fits the memory
      const double before_ms = found.candidate.timeline.makespan;
      try_all_leads(found, Orders(found.chunked.program, found.chunked.op_costs));
      if (found.candidate.timeline.makespan < before_ms) tried_.push_back(std::move(found));
    }
    sort_tried();
  }

  // Returns the shortest candidate that was tried and fits the memory, or `first` if none is shorter. If `first` has
  // infinite length (a number of parts is forced), returns the shortest candidate even if its arena is too large.
  Candidate best(Candidate first) {
    sort_tried();
    const std::size_t again = std::min(second_round, tried_.size());
    for (std::size_t i = 0; i < again; ++i) {
      if (!std::isinf(tried_[i].candidate.timeline.makespan)) {
        Tried placed = tried_[i];
        placed.candidate = chunk_all_reduces(step_, {}, std::move(placed.candidate));
        tried_.push_back(std::move(placed));
      }
      for (std::int64_t chunk :
           chunk_sizes(tried_[i].chunked.program, step_.costs(), thorough_ ? all_choices : chunk_choices))
        tried_.push_back(in_chunks(tried_[i], chunk));
    }
    sort_tried();
    for (Tried& tried : tried_) {
      Candidate& best = tried.candidate;
      if (!is_shorter(best, first)) break;
      if (fits_memory(step_, overlap_, best)) return with_or_without_turns(std::move(best));
    }
    if (std::isinf(first.timeline.makespan) && !tried_.empty() && !std::isinf(tried_[0].candidate.timeline.makespan))
      return with_or_without_turns(std::move(tried_[0].candidate));
    return first;
  }

 private:
  struct Tried {
    std::string how;
    Split split;
    Chunked chunked;  // the split step
    ListOptions options;
    Candidate candidate;  // empty and of infinite length if nothing fits the memory
    double limit = 1;     // upper bound of the bytes alive at once, relative to the step without parts
  };

  Tried split(const std::string& how, Split split) const {
    Rewritten rewritten = rewrite(step_.program(), split);
    std::vector<cost::OpCost> op_costs = step_.op_costs(rewritten, split);
    return {how,
            std::move(split),
            {std::move(rewritten.program), std::move(op_costs)},
            {.memory_bytes = fills_at_},
            nothing(),
            overlap_.memory_factor - packing_margin};
  }

  // Adds the cuts that are best for all layers alike, then those that are best for single layers: for all of a small
  // step, else for the last and the first. The last one's backward pass comes first, before weight gradients that could
  // run beside it.
  Tried mixed(const Tried& base) const {
    const LayerMixes mixes(step_, base.split, thorough_);
    Tried best = base;
    std::vector<LayerCuts> chosen(mixes.layers());
    const auto try_cuts = [&](const std::vector<std::size_t>& layers, const LayerCuts& cuts) {
      std::vector<LayerCuts> tried = chosen;
      for (const std::size_t layer : layers)
        if (std::ranges::count(mixes.choices(layer), cuts) > 0) tried[layer] = cuts;
      if (tried != chosen && is_mixed_better(mixes, tried, best)) chosen = std::move(tried);
    };
    std::vector<std::size_t> layers(mixes.layers());
    std::iota(layers.begin(), layers.end(), 0);
    std::vector<LayerCuts> choices;
    for (const std::size_t layer : layers)
      for (const LayerCuts& cuts : mixes.choices(layer))
        if (std::ranges::count(choices, cuts) == 0) choices.push_back(cuts);
    for (const LayerCuts& cuts : choices) try_cuts(layers, cuts);
    if (layers.size() > 2 && !thorough_) layers = {layers.back(), layers.front()};
    for (const std::size_t layer : layers)
      if (mixes.layers() > 1)
        for (const LayerCuts& cuts : mixes.choices(layer)) try_cuts({layer}, cuts);
    best.how = best.candidate.how = base.how + mixes.describe(chosen);
    return best;
  }

  void sort_tried() {
    std::ranges::stable_sort(tried_, {}, [](const Tried& tried) { return tried.candidate.timeline.makespan; });
  }

  bool is_mixed_better(const LayerMixes& mixes, const std::vector<LayerCuts>& cuts, Tried& best) const {
    Tried tried = split(best.how, mixes.with(cuts));
    tried.limit = overlap_.memory_factor;
    const Orders orders(tried.chunked.program, tried.chunked.op_costs);
    try_options(tried, orders, best.options);
    ListOptions abreast = best.options;
    abreast.backward_lead = 0;
    try_options(tried, orders, abreast);
    if (!is_better(step_, overlap_, tried.candidate, best.candidate)) return false;
    best = std::move(tried);
    return true;
  }

  void try_options(Tried& tried, const Orders& orders, const ListOptions& options) const {
    Orders::Found found = orders.find(options);
    const double most = tried.limit * double(memory_);
    if (double(found.peak_bytes) > most) {
      ListOptions held = options;
      held.hold_bytes = std::int64_t(most);
      found = orders.find(held);
      if (double(found.peak_bytes) > most) return;
    }
    // The list schedule ignores launch times and the core time of messages, so it is nearly always shorter than the
    // simulated step: an order whose list schedule is longer is not worth simulating.
    if (found.makespan >= tried.candidate.timeline.makespan) return;
    if (orders.makespan(found.order, step_.costs()) >= tried.candidate.timeline.makespan) return;
    tried.candidate = as_it_is(step_, tried.how, orders.program(found.order), orders.op_costs(found.order),
                               orders.needed(found.order));
    tried.options = options;
  }

  template <class F>
  void try_changed(Tried& tried, const Orders& orders, F change) const {
    ListOptions options = tried.options;
    change(options);
    if (!thorough_) return try_options(tried, orders, options);
    for (options.feed_network = false;; options.feed_network = true) {
      for (std::int64_t tenths : {10, 9}) {
        options.memory_bytes = fills_at_ / 10 * tenths;
        try_options(tried, orders, options);
      }
      if (options.feed_network) break;
    }
  }

  // Varies one setting after the other, each time from the best settings found before: the search is linear in
  // settings.
  void try_all_leads(Tried& tried, const Orders& orders) const {
    const auto leads = leads_.first(most_parts(tried.chunked.program) > 1 ? leads_.size() : 1);  // of parts
    for (bool feed_network : {false, true})
      for (std::int64_t tenths : {10, 9})  // if memory is short, weight gradients that run earlier free some
        for (double lead : leads)
          try_options(tried, orders,
                      {.lead = lead,
                       .backward_lead = lead,
                       .feed_network = feed_network,
                       .memory_bytes = fills_at_ / 10 * tenths});
    for (double lead : leads) try_changed(tried, orders, [&](ListOptions& options) { options.backward_lead = lead; });
    for (double lead : leads) try_changed(tried, orders, [&](ListOptions& options) { options.lead = lead; });
  }

  // The shorter of `best` and the same with one message on the network at a time.
  Candidate with_or_without_turns(Candidate best) const {
    Candidate alone = one_message_at_a_time(step_, best);
    if (alone.timeline.makespan >= best.timeline.makespan) return best;
    const bool fits = fits_memory(step_, overlap_, alone) ||
                      arena_bytes(alone.program, alone.needed) <= arena_bytes(best.program, best.needed);
    return fits ? alone : best;
  }

  Tried in_chunks(const Tried& tried, std::int64_t chunk_bytes) const {
    Tried chunked{fmt::format("{}; all-reduces of {} KB", tried.how, chunk_bytes >> 10), tried.split,
                  cut_all_reduces(tried.chunked.program, tried.chunked.op_costs, step_.costs(), chunk_bytes),
                  tried.options, nothing()};
    const Orders orders(chunked.chunked.program, chunked.chunked.op_costs);
    for (const double margin : {packing_margin, tight_margin}) {
      chunked.limit = overlap_.memory_factor - margin;
      chunked.candidate = nothing();
      try_options(chunked, orders, tried.options);
      try_changed(chunked, orders, [](ListOptions& options) { options.feed_network = !options.feed_network; });
      for (double lead : leads_)
        try_changed(chunked, orders, [&](ListOptions& options) { options.backward_lead = lead; });
      if (!chunked.candidate.program.instructions.empty() && fits_memory(step_, overlap_, chunked.candidate)) break;
    }
    return chunked;
  }

  const Step& step_;
  const config::Overlap& overlap_;
  const std::span<const double> leads_;  // the long ones if more than the default memory is allowed
  std::int64_t memory_ = 0;              // bytes alive at once without parts
  std::int64_t fills_at_ = 0;            // bytes alive at once from which on fillers run
  bool thorough_ = false;
  std::vector<Tried> tried_;
};

}  // namespace

Candidate fill_gaps(const Step& step, const config::Overlap& overlap, Candidate candidate) {
  if (!step.has_all_to_all()) return candidate;
  OrderSearch search(step, overlap);
  search.try_whole();
  return search.best(std::move(candidate));
}

Candidate search_orders(const Step& step, const config::Overlap& overlap, Candidate candidate) {
  if (!step.has_all_to_all()) return candidate;
  OrderSearch search(step, overlap);
  search.try_whole();
  for (const std::vector<Range>& ranges : range_choices(step, overlap))
    for (bool backward : {true, false}) {
      if (backward && !overlap.split_backward) continue;
      search.try_split(describe(step, ranges) + (backward ? ", backward alike" : ", backward whole"),
                       split_of(step, ranges, backward));
    }
  if (overlap.split_backward && overlap.reach < 0) search.mix_cuts();
  return or_forced_split(std::move(candidate), step, overlap, cut_named("batch"),
                         [&](Candidate whole) { return search.best(std::move(whole)); });
}

}  // namespace lancet::schedule
