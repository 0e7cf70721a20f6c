// How the search works. It tries these splits: none, the ranges of the dynamic programme, and the whole forward pass in
// each number of parts, with the backward pass split alike or whole. List scheduling orders each split under a grid of
// settings: the leads of the parts in both passes, and whether all-reduces are fed early. An order is simulated only if
// its list schedule is shorter than the best simulated step. One that needs more than the limit of memory is made
// again: with fillers that run early to free memory, and with jobs that wait. To the best of these splits, cuts of
// single MoE layers are added where they make the step shorter (layer_cuts.h): first the same for all layers, then
// others for the last and the first. The best three splits are ordered again with all-reduces in chunks of several
// sizes; and in the orders found, chunks are also placed by chunk_all_reduces. The shortest candidate whose planned
// arena is within overlap.memory_factor is returned.
//
// A planner searches under several limits of memory and of parts. What one of these searches has made, the others find
// in the step's notes: most orders need less memory than most limits.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
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
constexpr std::size_t chunk_choices = 6;  // sizes of chunks

// A gain below which such cuts are not kept.
constexpr double least_shorter = 1e-4;

constexpr double endless = std::numeric_limits<double>::infinity();

class OrderSearch {
 public:
  OrderSearch(const Step& step, const config::Overlap& overlap)
      : step_(step), overlap_(overlap), memory_(step.peak_bytes()) {}

  void try_split(const std::string& how, const Split& split) {
    Tried tried = this->split(how, split);
    try_all_leads(tried);
    tried_.push_back(std::move(tried));
  }

  // Adds cuts of single MoE layers to the split of which they can make most.
  // A split that is longer than the best by more than cuts of layers can hide is left out.
  void mix_cuts() {
    if (tried_.empty()) return;  // parts are forced that the batch cannot be in
    sort_tried();
    const Tried* least = nullptr;
    double least_ms = tried_[0].ms;
    for (const Tried& tried : tried_) {
      const double ms = tried.ms - LayerMixes(step_, tried.of->split()).most_hidden_ms();
      if (ms >= least_ms) continue;
      least_ms = ms;
      least = &tried;
    }
    if (!least) return;
    const double ms = least->ms;
    Tried found = mixed(*least);
    if (found.ms >= ms * (1 - least_shorter)) return;
    tried_.push_back(found);  // it fits the memory
    const double before_ms = found.ms;
    try_all_leads(found);
    if (found.ms < before_ms) tried_.push_back(std::move(found));
    sort_tried();
  }

  // Returns the shortest candidate that was tried and fits the memory, or `first` if none is shorter.
  Candidate best(Candidate first) {
    sort_tried();
    const std::size_t again = std::min(second_round, tried_.size());
    for (std::size_t i = 0; i < again; ++i) {
      if (!tried_[i].made) continue;
      tried_.push_back(placed(tried_[i]));
      for (std::int64_t chunk : chunk_sizes(tried_[i].of->program(), step_.costs(), chunk_choices))
        tried_.push_back(in_chunks(tried_[i], chunk));
    }
    sort_tried();
    for (Tried& tried : tried_) {
      if (!tried.made || tried.ms >= first.timeline.makespan * (1 - 1e-9)) break;
      if (fits(tried)) return with_or_without_turns(candidate(tried));
    }
    return first;
  }

 private:
  struct Tried {
    std::string how;
    std::shared_ptr<SplitStep> of;
    double limit = endless;                        // of the bytes alive at once, relative to the step without parts
    ListOptions options = {};                      // of the best order, without limits of memory
    Made* made = nullptr;                          // null if nothing fits the memory
    std::shared_ptr<const Candidate> placed = {};  // in the place of `made`
    double ms = endless;
  };

  Tried split(const std::string& how, Split split) const {
    return {how, split_step(step_, std::move(split)), limit(packing_margin)};
  }

  // Adds the cuts that are best for all layers alike, then those that are best for the last and the first layer. The
  // last one's backward pass comes first, before weight gradients that could run beside it.
  Tried mixed(const Tried& base) const {
    const LayerMixes mixes(step_, base.of->split());
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
    if (layers.size() > 2) layers = {layers.back(), layers.front()};
    for (const std::size_t layer : layers)
      if (mixes.layers() > 1)
        for (const LayerCuts& cuts : mixes.choices(layer)) try_cuts({layer}, cuts);
    best.how = base.how + mixes.describe(chosen);
    return best;
  }

  void sort_tried() { std::ranges::stable_sort(tried_, {}, &Tried::ms); }

  bool is_mixed_better(const LayerMixes& mixes, const std::vector<LayerCuts>& cuts, Tried& best) const {
    Tried tried = split(best.how, mixes.with(cuts));
    tried.limit = limit(0);
    try_options(tried, best.options);
    ListOptions abreast = best.options;
    abreast.backward_lead = 0;
    try_options(tried, abreast);
    if (tried.ms >= best.ms * (1 - 1e-9) || !fits(tried)) return false;
    best = std::move(tried);
    return true;
  }

  // The limit of memory, relative to the step without parts, less a margin.
  double limit(double margin) const { return overlap_.memory_factor == 0 ? endless : overlap_.memory_factor - margin; }

  bool fits(const Tried& tried) const {
    if (tried.placed) return fits_memory(step_, overlap_, *tried.placed);
    return double(tried.of->arena_bytes(*tried.made)) <= limit(0) * double(step_.arena_bytes());
  }

  // The list schedule ignores launch times and the core time of messages, so it is nearly always shorter than the
  // simulated step: an order whose list schedule is longer is not worth simulating. One whose jobs need not wait for
  // memory is nearly always shorter than one whose jobs do.
  void try_options(Tried& tried, const ListOptions& options) const {
    Made& any = tried.of->find(options);
    if (any.found.makespan >= tried.ms) return;
    const double most = tried.limit * double(memory_);
    if (double(any.found.peak_bytes) <= most) return take_if_shorter(tried, any, options);
    const auto fills_at = std::int64_t(limit(filler_margin) * double(memory_));
    for (const std::int64_t tenths : {10, 9}) {
      ListOptions held = options;
      held.memory_bytes = fills_at / 10 * tenths;
      if (Made& fills = tried.of->find(held); double(fills.found.peak_bytes) <= most) {
        take_if_shorter(tried, fills, options);
        continue;
      }
      held.hold_bytes = std::int64_t(most);
      if (Made& waits = tried.of->find(held); waits.found.peak_bytes <= held.hold_bytes)
        take_if_shorter(tried, waits, options);
    }
  }

  void take_if_shorter(Tried& tried, Made& made, const ListOptions& options) const {
    if (made.found.makespan >= tried.ms || tried.of->ms(made) >= tried.ms) return;
    tried.made = &made;
    tried.ms = tried.of->ms(made);
    tried.options = options;
  }

  template <class F>
  void try_changed(Tried& tried, F change) const {
    ListOptions options = tried.options;
    change(options);
    try_options(tried, options);
  }

  // Varies one setting after the other, each time from the best settings found before: the search is linear in
  // settings.
  void try_all_leads(Tried& tried) const {
    const auto leads = std::span(all_leads).first(most_parts(tried.of->program()) > 1 ? std::size(all_leads) : 1);
    for (bool feed_network : {false, true})
      for (double lead : leads) try_options(tried, {.lead = lead, .backward_lead = lead, .feed_network = feed_network});
    for (double lead : leads) try_changed(tried, [&](ListOptions& options) { options.backward_lead = lead; });
    for (double lead : leads) try_changed(tried, [&](ListOptions& options) { options.lead = lead; });
  }

  Candidate candidate(const Tried& tried) const {
    return tried.placed ? *tried.placed : tried.of->candidate(step_, tried.how, *tried.made);
  }

  // The shorter of `best` and the same with one message on the network at a time.
  Candidate with_or_without_turns(Candidate best) const {
    Candidate alone = one_message_at_a_time(step_, best);
    if (alone.timeline.makespan >= best.timeline.makespan) return best;
    const bool fits = fits_memory(step_, overlap_, alone) ||
                      arena_bytes(alone.program, alone.needed) <= arena_bytes(best.program, best.needed);
    return fits ? alone : best;
  }

  Tried placed(Tried tried) const {
    if (!tried.made->placed)
      tried.made->placed = std::make_shared<const Candidate>(chunk_all_reduces(step_, {}, candidate(tried)));
    tried.placed = tried.made->placed;
    tried.ms = tried.placed->timeline.makespan;
    return tried;
  }

  Tried in_chunks(const Tried& tried, std::int64_t chunk_bytes) const {
    std::shared_ptr<SplitStep>& of = tried.of->in_chunks(chunk_bytes);
    if (!of) {
      Chunked cut = cut_all_reduces(tried.of->program(), tried.of->op_costs(), step_.costs(), chunk_bytes);
      of = std::make_shared<SplitStep>(step_, tried.of->split(), std::move(cut.program), std::move(cut.op_costs));
    }
    Tried chunked{fmt::format("{}; all-reduces of {} KB", tried.how, chunk_bytes >> 10), of};
    for (const double margin : {packing_margin, tight_margin}) {
      chunked.limit = limit(margin);
      chunked.made = nullptr;
      chunked.ms = endless;
      try_options(chunked, tried.options);
      try_changed(chunked, [](ListOptions& options) { options.feed_network = !options.feed_network; });
      for (double lead : all_leads) try_changed(chunked, [&](ListOptions& options) { options.backward_lead = lead; });
      if (chunked.made && fits(chunked)) break;
    }
    return chunked;
  }

  const Step& step_;
  const config::Overlap& overlap_;
  std::int64_t memory_ = 0;  // bytes alive at once without parts
  std::vector<Tried> tried_;
};

}  // namespace

Candidate search_orders(const Step& step, const config::Overlap& overlap, Candidate candidate) {
  if (!step.has_all_to_all()) return candidate;
  OrderSearch search(step, overlap);
  if (overlap.parts <= 1) search.try_split("weight gradients in gaps of the network", step.whole(step.token_cut()));
  for (const std::vector<Range>& ranges : range_choices(step, overlap))
    for (bool backward : {true, false}) {
      if (backward && !overlap.split_backward) continue;
      search.try_split(describe(step, ranges) + (backward ? ", backward alike" : ", backward whole"),
                       split_of(step, ranges, backward));
    }
  if (overlap.split_backward && overlap.reach < 0) search.mix_cuts();
  return or_forced_split(std::move(candidate), step, overlap, step.token_cut(),
                         [&](Candidate whole) { return search.best(std::move(whole)); });
}

}  // namespace lancet::schedule
