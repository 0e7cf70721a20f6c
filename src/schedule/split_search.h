// Shared by the passes that split instructions: the choices to try, the comparison, and the rule for a forced number of
// parts. Each pass rewrites the step for each choice, orders the parts and keeps the shortest candidate.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lancet/config/config.h"
#include "lancet/schedule/cut.h"
#include "lancet/schedule/plan_memory.h"
#include "lancet/schedule/step.h"
#include "orders.h"
#include "ranges.h"

namespace lancet::schedule {

// Leads of a part over the next one (ListOptions) of the ways that are published. With 0 the parts run abreast, stage
// by stage; the others are tried since no text fixes how far a part may run ahead.
inline constexpr double part_leads[] = {0, 1.0 / 128, 1.0 / 32};

// The candidate with the shorter makespan; `a` on ties.
Candidate better(Candidate a, Candidate b);

// The same with one message on the network at a time.
Candidate one_message_at_a_time(const Step& step, const Candidate& candidate);

// Replaces `best` by the candidate of make() if that is shorter and its arena is within overlap.memory_factor. The
// step's notes keep both by `key`, which says what it is made from, so that searches within other limits make it only
// to take it.
enum class Replaced : std::uint8_t { no, yes, too_large };  // too_large: it is shorter
Replaced replace_if_better(Candidate& best, const Step& step, const config::Overlap& overlap, const std::string& key,
                           const std::function<Candidate()>& make);

// The same with make(options); true if replaced. A candidate that is shorter and does not fit is made again with jobs
// that wait until less memory is alive (ListOptions::hold_bytes), so that no way to overlap is left out because of the
// memory of the one order that was tried first.
bool replace_if_better(Candidate& best, const Step& step, const config::Overlap& overlap, ListOptions options,
                       const std::string& key, const std::function<Candidate(const ListOptions&)>& make);

// The result of search(whole). If overlap.parts forces a split and `whole` has none, it counts as infinitely long, so
// that any split replaces it; if no split fits the memory, `whole` is returned with its own length.
Candidate or_forced_split(Candidate whole, const Step& step, const config::Overlap& overlap, const Cut& cut,
                          const std::function<Candidate(Candidate)>& search);

// One order of a split step.
struct Made {
  ListOptions options;
  Orders::Found found;
  std::optional<double> ms = {};  // simulated
  std::optional<std::int64_t> arena_bytes = {};
  std::shared_ptr<const Candidate> placed = nullptr;  // with chunks of all-reduces by chunk_all_reduces
};

// A split of the step, maybe with all-reduces in chunks, and the orders that searches have made of it.
class SplitStep {
 public:
  SplitStep(const Step& step, Split split, ir::Program program, std::vector<cost::OpCost> op_costs)
      : split_(std::move(split)),
        program_(std::move(program)),
        op_costs_(std::move(op_costs)),
        costs_(step.costs()),
        orders_(program_, op_costs_) {}
  SplitStep(const SplitStep&) = delete;
  SplitStep& operator=(const SplitStep&) = delete;

  const Split& split() const { return split_; }
  const ir::Program& program() const { return program_; }
  const std::vector<cost::OpCost>& op_costs() const { return op_costs_; }

  Made& find(const ListOptions& options) {
    for (const std::unique_ptr<Made>& made : made_)
      if (made->options == options) return *made;
    return *made_.emplace_back(std::make_unique<Made>(Made{options, orders_.find(options)}));
  }
  double ms(Made& made) const {
    if (!made.ms) made.ms = orders_.makespan(made.found.order, costs_);
    return *made.ms;
  }
  Candidate candidate(const Step& step, std::string how, const Made& made) const {
    return as_it_is(step, std::move(how), orders_.program(made.found.order), orders_.op_costs(made.found.order),
                    orders_.needed(made.found.order));
  }
  std::int64_t arena_bytes(Made& made) const {
    if (!made.arena_bytes)
      made.arena_bytes = schedule::arena_bytes(orders_.program(made.found.order), orders_.needed(made.found.order));
    return *made.arena_bytes;
  }

  // The same with all-reduces in chunks of that size; null until a search has made it.
  std::shared_ptr<SplitStep>& in_chunks(std::int64_t chunk_bytes) { return in_chunks_[chunk_bytes]; }

 private:
  const Split split_;
  const ir::Program program_;
  const std::vector<cost::OpCost> op_costs_;
  const cost::Costs& costs_;
  const Orders orders_;
  std::vector<std::unique_ptr<Made>> made_;
  std::map<std::int64_t, std::shared_ptr<SplitStep>> in_chunks_;
};

// The split of the step, made once for all passes and searches that try it.
std::shared_ptr<SplitStep> split_step(const Step& step, Split split);

// As above, with the order of these options.
bool replace_if_better(Candidate& best, const Step& step, const config::Overlap& overlap, ListOptions options,
                       SplitStep& of, const std::string& how);

// The range [first, last) of the rewritten program that holds the instructions [begin, end) of the source.
std::pair<std::size_t, std::size_t> position_of(const Rewritten& rewritten, std::size_t begin, std::size_t end);

// The choices of ranges to try: those of the dynamic programme, and the whole forward pass as one range for each number
// of parts; with overlap.reach, instead, ranges of that reach around the MoE layers.
std::vector<std::vector<Range>> range_choices(const Step& step, const config::Overlap& overlap);

// Numbers of parts by the cut in words, for reports: "in 4 parts" if all are alike, "whole" if all are 1, "in 4, 2
// parts" otherwise.
std::string describe(const Cut& cut, std::span<const int> counts);

// The ranges in words, for reports.
std::string describe(const Step& step, const std::vector<Range>& ranges);

}  // namespace lancet::schedule
