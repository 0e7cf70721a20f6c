// Collective matmul's all-to-alls: those whose rows are multiplied go in tiles of the columns that the product sums
// over (cuts/contracting), whatever else is in the schedule that the pass is given.
//
// All-to-alls that cost the same before products that cost the same are of one kind, as those of all layers in a pass;
// each kind has one number of tiles. First all kinds have the same number, then each tries the others. In the range of
// an all-to-all and its product, list scheduling orders the tiles, the copies and the weight gradients between them.
// The waits by which a policy kept instructions apart hold as before, but for those within such a range. A candidate
// that overlap.memory_factor does not allow is refused.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "lancet/cost/costs.h"
#include "lancet/ir/dependencies.h"
#include "lancet/ops/catalogue.h"
#include "lancet/schedule/overlap.h"
#include "orders.h"
#include "split_search.h"

namespace lancet::schedule {
namespace {

using ir::InstructionId;

// An all-to-all and the products that read its rows: instructions, in program order.
struct Pair {
  std::vector<std::size_t> members;
  std::size_t kind = 0;
};

// The pairs of a program, by the cut's rows. Pairs of one kind cost the same.
std::vector<Pair> pairs_of(const ir::Program& program, const AxisRows& rows) {
  std::vector<Pair> pairs;
  std::map<std::string, std::size_t> kinds;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (!rows[i] || ops::kind(program.instructions[i]) != ops::Kind::all_to_all) continue;
    const ir::TensorId received = program.instructions[i].results[0];
    Pair pair{{i}};
    for (std::size_t j = i + 1; j < rows.size(); ++j)
      if (rows[j] && program.instructions[j].operands[0] == received) pair.members.push_back(j);
    std::string kind;
    for (const std::size_t j : pair.members)
      kind +=
          fmt::format("{} {};", cost::op_key(program, program.instructions[j]), ir::name(program.instructions[j].role));
    pair.kind = kinds.emplace(std::move(kind), kinds.size()).first->second;
    pairs.push_back(std::move(pair));
  }
  return pairs;
}

// What a schedule's instructions wait for besides their dependencies.
Dependencies extra_waits(const Candidate& schedule) {
  const Dependencies dependencies = ir::dependencies(schedule.program);
  Dependencies extra(dependencies.size());
  for (std::size_t i = 0; i < extra.size(); ++i)
    for (const InstructionId id : schedule.needed[i])
      if (std::ranges::count(dependencies[i], id) == 0) extra[i].push_back(id);
  return extra;
}

class ContractSearch {
 public:
  ContractSearch(const Step& step, const config::Overlap& overlap, const Candidate& base)
      : step_(step),
        overlap_(overlap),
        base_(base),
        rows_(cut_.rows(base.program)),
        extra_(extra_waits(base)),
        pairs_(pairs_of(base.program, rows_)) {
    for (const Pair& pair : pairs_) chosen_.resize(std::max(chosen_.size(), pair.kind + 1), 1);
  }

  Candidate run(Candidate best) {
    const std::vector<int>& counts = step_.part_counts(cut_);
    std::vector<int> of_a_kind;
    if (overlap_.parts <= 1) {
      of_a_kind = counts;
      of_a_kind.insert(of_a_kind.begin(), 1);
    }
    search_choices(chosen_, counts, of_a_kind, [&](const std::vector<int>& tiles) { return takes(tiles, best); });
    return best;
  }

 private:
  bool takes(const std::vector<int>& tiles, Candidate& best) const {
    if (std::ranges::all_of(tiles, [](int count) { return count == 1; })) return false;
    return replace_if_better(best, step_, overlap_, {.lead = 0, .backward_lead = 0},
                             [&](const ListOptions& options) { return in_tiles(tiles, options); });
  }

  Candidate in_tiles(const std::vector<int>& tiles, const ListOptions& options) const {
    Split split{rows_, std::vector<int>(rows_.size(), 1), std::vector<const Cut*>(rows_.size(), &cut_)};
    for (const Pair& pair : pairs_)
      for (const std::size_t i : pair.members) split.parts[i] = tiles[pair.kind];
    const Rewritten rewritten = rewrite(base_.program, split);
    const std::vector<Span> spans = spans_of(rewritten, tiles);
    std::vector<cost::OpCost> op_costs = cost::op_costs(step_.costs(), rewritten.program).value();
    const Orders orders(rewritten.program, std::move(op_costs), spans);
    const Order order = orders.find(options).order;
    Dependencies needed = orders.needed(order);
    join(needed, waits(rewritten.origin, order, spans));
    return as_it_is(step_, describe(tiles), orders.program(order), orders.op_costs(order), std::move(needed));
  }

  // The ranges of the pairs that are in tiles, with the copies before and the steps after them.
  std::vector<Span> spans_of(const Rewritten& rewritten, const std::vector<int>& tiles) const {
    std::vector<Span> spans;
    for (const Pair& pair : pairs_) {
      if (tiles[pair.kind] == 1) continue;
      Span span = position_of(rewritten, pair.members.front(), pair.members.back() + 1);
      while (span.first > 0 && rewritten.origin[span.first - 1] < 0) --span.first;
      while (span.second < rewritten.origin.size() && rewritten.origin[span.second] < 0) ++span.second;
      if (!spans.empty() && span.first < spans.back().second)
        spans.back().second = std::max(spans.back().second, span.second);
      else
        spans.push_back(span);
    }
    return spans;
  }

  // The extra waits in the new order. An instruction that has become several counts as its last one.
  Dependencies waits(const std::vector<int>& origin, const Order& order, const std::vector<Span>& spans) const {
    std::vector<std::size_t> last(extra_.size());
    for (std::size_t at = 0; at < order.size(); ++at)
      if (const int source = origin[order[at].index()]; source >= 0) last[std::size_t(source)] = at;
    const auto span_of = [&](std::size_t at) {  // the order keeps instructions within their spans
      const auto after = std::ranges::upper_bound(spans, at, {}, &Span::second);
      return after != spans.end() && after->first <= at ? after - spans.begin() : -1;
    };
    Dependencies waits(order.size());
    for (std::size_t at = 0; at < order.size(); ++at) {
      const int source = origin[order[at].index()];
      if (source < 0) continue;
      for (const InstructionId id : extra_[std::size_t(source)]) {
        const std::size_t other = last[id.index()];
        if (other < at && (span_of(at) < 0 || span_of(at) != span_of(other))) waits[at].push_back(ir::id_of(other));
      }
    }
    return waits;
  }

  std::string describe(const std::vector<int>& tiles) const {
    return fmt::format("{}; all-to-alls before products {}", base_.how, schedule::describe(cut_, tiles));
  }

  const Cut& cut_ = cut_named("contracting");
  const Step& step_;
  const config::Overlap& overlap_;
  const Candidate& base_;
  const AxisRows rows_;
  const Dependencies extra_;
  const std::vector<Pair> pairs_;
  std::vector<int> chosen_;  // tiles, by kind; 1: whole
};

}  // namespace

Candidate contract_experts(const Step& step, const config::Overlap& overlap, Candidate candidate) {
  const Cut& cut = cut_named("contracting");
  if (step.part_counts(cut).empty()) return candidate;  // no product reads what an all-to-all brings
  const Candidate base = candidate;
  return or_forced_split(std::move(candidate), step, overlap, cut,
                         [&](Candidate best) { return ContractSearch(step, overlap, base).run(std::move(best)); });
}

}  // namespace lancet::schedule
