// Collective matmul: which all-gathers and reduce-scatters become rings, and how.
//
// A product that reads an all-gathered tensor can begin with the shards that are there, and one whose result is
// reduce-scattered can send what is finished (Wang et al., Overlap Communication with Dependent Computation via
// Decomposition in Large Deep Learning Models, ASPLOS 2023; XLA's windowed einsum). ring_rewrite.cpp says what a ring
// of n windows is. One ring serves all products that read one gathered tensor.
//
// First the cost rule, as in XLA, with the costs of the step: a ring pays only if the longer of its computation, with
// what messages take of it, and of its messages, with the computation of one window before or after them, takes less
// than product and collective without windows. (XLA adds 2 / n of the messages to the longer of both, by which two
// windows would never pay; in its public code all times are 0.) Windows cost more than the whole: n products of fewer
// rows, copies that join what is read whole, sums one by one, n - 1 latencies. Then the simulator: from all rings that
// the rule leaves, going one way (or from none, if these need too much memory), it tries for one kind of ring after the
// other whether another way or none makes the step shorter. Rings whose products cost the same, as those of all layers,
// choose alike.
//
// In a ring's range, list scheduling orders what is on windows and the weight gradients beside it; everything else
// takes turns with the network. A step that overlap.memory_factor does not allow is refused.
//
// The results of rings of all-gathers have the bits of the whole, since each row of a product is computed alone. Sums
// of a reduce-scatter's ring are added in the order of the ring, in bf16 rounded at each rank; weight gradients over
// windows are added window by window, unless the ranks hold copies of the weights, which must stay equal to the bit.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>

#include "lancet/schedule/overlap.h"
#include "lancet/schedule/simulate.h"
#include "orders.h"
#include "rings.h"
#include "split_search.h"

namespace lancet::schedule {
namespace {

// The ranges of neighbouring instructions on windows, with the weight gradients and all-reduces between them.
std::vector<Span> spans_of(const Ringed& ringed) {
  std::vector<Span> spans;
  bool joins = false;  // the last span, if nothing else follows it so far
  for (std::size_t i = 0; i < ringed.ring.size(); ++i) {
    const ir::Instruction& at = ringed.program.instructions[i];
    if (ringed.ring[i] == Ringed::outside) {
      const bool is_weight_gradient = at.role == ir::Role::dw && at.stream == ir::Stream::compute;
      joins = joins && (is_weight_gradient || at.stream == ir::Stream::reduce);
    } else {
      if (!joins) spans.push_back({i, i});
      spans.back().second = i + 1;
      joins = true;
    }
  }
  return spans;
}

// What is not on windows takes turns with the network, or is in the list schedule as well.
enum class AroundRings : std::uint8_t { in_turns, listed };

class RingSearch {
 public:
  RingSearch(const Step& step, const config::Overlap& overlap, AroundRings around)
      : step_(step),
        overlap_(overlap),
        around_(around),
        memory_(step.peak_bytes()),
        rings_(find_rings(step.program())),
        choices_(rings_.size()) {
    start();
  }

  bool any_pays() const { return !paying_.empty(); }

  // Chooses from rings that all go one way on, or from `whole` if these do not fit the memory.
  Candidate best(Candidate whole) {
    Candidate best;
    best.timeline.makespan = std::numeric_limits<double>::infinity();
    if (!replace(best)) {
      choices_.assign(rings_.size(), {});
      best = whole;
    }
    for (const std::vector<std::size_t>& kind : paying_)
      for (const RingChoice& choice : choices_of(rings_[kind.front()])) {
        if (choices_[kind.front()] == choice) continue;
        const std::vector<RingChoice> before = choices_;
        for (const std::size_t i : kind) choices_[i] = choice;
        if (!replace(best)) choices_ = before;
      }
    return better(std::move(whole), std::move(best));
  }

  // The chosen rings, and nothing else changed.
  ir::Program program() const { return with_rings(step_.program(), rings_, choices_).program; }
  bool any_chosen() const {
    return std::ranges::any_of(choices_, [](const RingChoice& choice) { return choice.way != RingWay::whole; });
  }

  std::string in_words() const {
    constexpr std::array<std::string_view, 4> names{"", "one way", "in two sums", "both ways"};
    std::array<int, 4> counts{};
    for (const RingChoice& choice : choices_) ++counts[std::size_t(choice.way)];
    std::string text;
    for (std::size_t way = 1; way < names.size(); ++way)
      if (counts[way] > 0) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", counts[way], names[way]);
    return text.empty() ? "no ring pays" : fmt::format("rings beside products: {} of {}", text, rings_.size());
  }

 private:
  // All rings that the cost rule leaves, one way. Without a ring, those beside it have other copies, so the rule is
  // asked again until it leaves all.
  void start() {
    for (std::size_t i = 0; i < rings_.size(); ++i) choices_[i] = {RingWay::one_way, rings_[i].products.empty()};
    for (bool dropped = true; dropped;) {
      dropped = false;
      const std::vector<RingTimes> times = times_of(choices_);
      for (std::size_t i = 0; i < rings_.size(); ++i) {
        if (choices_[i].way == RingWay::whole || times[i].pays(rings_[i].shards)) continue;
        choices_[i] = {};
        dropped = true;
      }
    }
    std::map<std::string_view, std::vector<std::size_t>> kinds;
    for (std::size_t i = 0; i < rings_.size(); ++i)
      if (choices_[i].way != RingWay::whole) kinds[rings_[i].kind].push_back(i);
    for (auto& [_, kind] : kinds) paying_.push_back(std::move(kind));
  }

  // Replaces `best` by the candidate of the choices if that is shorter and fits the memory.
  bool replace(Candidate& best) const {
    std::string key = around_ == AroundRings::listed ? "listed rings" : "rings";
    for (const RingChoice& choice : choices_)
      key += fmt::format(" {}{}", int(choice.way), choice.weight_gradients ? "w" : "");
    return replace_if_better(best, step_, overlap_, {.lead = 0, .backward_lead = 0}, key,
                             [&](const ListOptions& options) { return candidate(options); });
  }

  std::vector<RingTimes> times_of(const std::vector<RingChoice>& choices) const {
    std::vector<RingTimes> times(rings_.size());
    const Ringed ringed = with_rings(step_.program(), rings_, choices);
    const std::vector<cost::OpCost> op_costs = cost::op_costs(step_.costs(), ringed.program).value();
    for (std::size_t i = 0; i < op_costs.size(); ++i) {
      if (ringed.ring[i] < 0) continue;
      RingTimes& of = times[std::size_t(ringed.ring[i])];
      const bool is_message = ringed.program.instructions[i].stream != ir::Stream::compute;
      (is_message ? of.messages : of.compute) += op_costs[i].ms;
      of.compute += op_costs[i].core_ms;
    }
    for (std::size_t r = 0; r < rings_.size(); ++r) {
      times[r].whole_message = step_.op_costs()[rings_[r].collective].ms;
      for (const std::size_t i : rings_[r].products) times[r].whole_compute += step_.op_costs()[i].ms;
      for (const std::size_t i : rings_[r].weight_gradients)
        if (choices[r].weight_gradients) times[r].whole_compute += step_.op_costs()[i].ms;
    }
    return times;
  }

  Candidate candidate(const ListOptions& options) const {
    const Ringed ringed = with_rings(step_.program(), rings_, choices_);
    std::vector<cost::OpCost> op_costs = cost::op_costs(step_.costs(), ringed.program).value();
    if (around_ == AroundRings::listed) return listed(Orders(ringed.program, std::move(op_costs)), options);
    const std::vector<Span> spans = spans_of(ringed);
    std::vector<bool> overlaps(ringed.ring.size());
    for (const auto& [begin, end] : spans)
      std::fill(overlaps.begin() + std::ptrdiff_t(begin), overlaps.begin() + std::ptrdiff_t(end), true);
    const Orders orders(ringed.program, std::move(op_costs), spans);
    const Order order = orders.find(options).order;
    ir::Program program = orders.program(order);
    Dependencies needed = turns(program, orders.needed(order), permuted(overlaps, order));
    return as_it_is(step_, in_words(), std::move(program), orders.op_costs(order), std::move(needed));
  }

  Candidate listed(const Orders& orders, ListOptions options) const {
    options.memory_bytes = std::min(options.memory_bytes, memory_);
    const Order order = orders.find(options).order;
    return as_it_is(step_, in_words(), orders.program(order), orders.op_costs(order), orders.needed(order));
  }

  const Step& step_;
  const config::Overlap& overlap_;
  const AroundRings around_;
  const std::int64_t memory_;  // alive at once in the step without rings
  const std::vector<Ring> rings_;
  std::vector<RingChoice> choices_;               // per ring
  std::vector<std::vector<std::size_t>> paying_;  // the rings of each kind that the rule leaves
};

}  // namespace

Candidate collective_matmul(const Step& step, const config::Overlap& overlap, Candidate candidate) {
  if (find_rings(step.program()).empty()) {
    candidate.how = "no product beside an all-gather or a reduce-scatter";
    return candidate;
  }
  return RingSearch(step, overlap, AroundRings::in_turns).best(std::move(candidate));
}

Candidate search_orders_with_rings(const Step& step, const config::Overlap& overlap, Candidate candidate) {
  RingSearch search(step, overlap, AroundRings::listed);
  if (!search.any_pays()) return candidate;
  search.best(candidate);
  if (!search.any_chosen()) return candidate;
  const Result<Step> ringed = step.with_program(search.program());
  if (!ringed.ok()) {  // measured costs may lack parts of a step with rings
    candidate.how += fmt::format("{}without rings, whose costs the profile lacks", candidate.how.empty() ? "" : "; ");
    return candidate;
  }
  Candidate found = search_orders(*ringed, overlap, candidate);
  if (!is_shorter(found, candidate)) return candidate;
  found.how = search.in_words() + "; " + found.how;
  return found;
}

}  // namespace lancet::schedule
