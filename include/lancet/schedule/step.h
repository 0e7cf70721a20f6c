// A training step before any policy changes it, with the facts that all policies need: which instructions can be split,
// the costs of instructions and of their parts, and where the forward pass ends.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lancet/config/config.h"
#include "lancet/cost/costs.h"
#include "lancet/schedule/cut.h"
#include "lancet/schedule/simulate.h"

namespace lancet::schedule {

class Step {
 public:
  // program: the result of autodiff, sync and optimize. part_counts: the counts that part_cost may be called with.
  // Error: the costs lack an op (of the whole step or of a part).
  static Result<Step> make(const ir::Program& program, const cost::Costs& costs, std::vector<int> part_counts);

  const ir::Program& program() const { return program_; }
  const Dependencies& dependencies() const { return dependencies_; }
  const std::vector<cost::OpCost>& op_costs() const { return op_costs_; }
  const cost::Costs& costs() const { return *costs_; }
  const std::vector<int>& wanted_counts() const { return wanted_counts_; }  // those of make()
  // The numbers of parts (at least 2, ascending) that the step can be split in by the cut. Empty if no tokens travel.
  const std::vector<int>& part_counts(const Cut& cut) const { return of(cut).counts; }
  // The cut of the batch's tokens: its sequences or, of a single one, its positions.
  const Cut& token_cut() const;
  std::size_t forward_end() const { return forward_end_; }  // the first instruction that is not of the forward pass
  bool has_all_to_all() const;                              // some of the expert stream takes time
  // Of the sequential step, without parts, and before its program was replaced: its arena, and the bytes alive at once.
  std::int64_t arena_bytes() const { return arena_bytes_; }
  std::int64_t peak_bytes() const { return peak_bytes_; }

  // The step with a program in the place of its own that computes the same, such as one with rings. Memory is still
  // compared with that of this step, which has to outlive it. Error: the costs lack an op.
  Result<Step> with_program(const ir::Program& program) const;
  // The step in these numbers of parts alone, from the least to the most.
  Step in_parts(int least, int most) const;
  // The step that memory is compared with: this one, or the one whose program was replaced.
  const Step& original() const { return original_ ? *original_ : *this; }

  const AxisRows& rows(const Cut& cut) const { return of(cut).rows; }
  // What searches of this step, in whatever numbers of parts, have found and others may use; theirs to fill.
  struct Notes {
    std::shared_ptr<void> orders;  // of search_orders()
    // Of [first, last) in some parts, by list scheduling; those of a pipeline with copies, by its cut.
    std::map<std::array<std::size_t, 3>, double> range_ms;
    std::map<const Cut*, std::map<std::array<std::size_t, 3>, double>> pipeline_ms;
    // Of candidates that can be made again, by what they are made from.
    struct OfCandidate {
      double ms = 0;
      std::optional<std::int64_t> arena_bytes = {};
    };
    std::map<std::string, OfCandidate> candidates;
  };
  Notes& notes() const { return *notes_; }

  // No instruction split.
  Split whole(const Cut& cut) const;
  // Every instruction split that can be.
  Split all(const Cut& cut, int parts) const;

  // The costs of the instructions of rewrite(program(), split).
  std::vector<cost::OpCost> op_costs(const Rewritten& rewritten, const Split& split) const;
  // The cost of part `part` of `parts` of an instruction.
  const cost::OpCost& part_cost(const Cut& cut, int parts, std::size_t instruction, int part = 0) const;

 private:
  struct OfCut {
    AxisRows rows;
    std::vector<int> counts = {};
    // By number of parts and instruction of program_: of each part, if it is split; a single one if parts are equal.
    std::map<int, std::vector<std::vector<cost::OpCost>>> costs = {};
  };

  Step() = default;
  Status find_costs();  // of program_, and of its parts
  const OfCut& of(const Cut& cut) const { return cuts_.at(&cut); }
  Status add_part_costs(const Cut& cut, int parts);
  cost::OpCost helper_cost(const ir::Program& program, std::size_t instruction) const;

  ir::Program program_;
  const cost::Costs* costs_ = nullptr;
  Dependencies dependencies_;
  std::vector<cost::OpCost> op_costs_;
  std::size_t forward_end_ = 0;
  std::int64_t arena_bytes_ = 0, peak_bytes_ = 0;
  const Step* original_ = nullptr;
  std::vector<int> wanted_counts_;  // of parts
  TokenRanks among_;
  std::map<const Cut*, OfCut> cuts_;             // looked up only
  std::map<std::string, cost::OpCost> helpers_;  // by op_key
  std::shared_ptr<Notes> notes_ = std::make_shared<Notes>();
};

// The part counts that planning and profiling consider: 2, 4, 8, ... up to max_parts, or the one that overlap.parts
// forces.
std::vector<int> part_counts(const config::Overlap& overlap);

// Programs whose instructions have every op key and every kind of message that a policy may need the cost of on these
// ranks: the step and its variants in parts.
std::vector<ir::Program> variants(const ir::Program& step, const config::Overlap& overlap, const cost::Layout& layout);

// A schedule that a policy can choose: a Program in the order of its streams, the dependencies of its instructions, and
// their simulated times.

struct Candidate {
  std::string how;  // the schedule in words, for reports
  ir::Program program;
  Dependencies needed;
  std::vector<cost::OpCost> op_costs;
  Timeline timeline;
  std::string why_not_across_steps = {};      // set by across_steps() where it leaves nothing to the next step
  std::shared_ptr<const Candidate> one = {};  // the micro batch that it repeats, if that is known
};

// The candidate of this program in its order, simulated.
Candidate as_it_is(const Step& step, std::string how, ir::Program program, std::vector<cost::OpCost> op_costs,
                   Dependencies dependencies);

// Whether the candidate's arena is at most overlap.memory_factor, if that is set, times that of the sequential step,
// without parts.
bool fits_memory(const Step& step, const config::Overlap& overlap, const Candidate& candidate);

// Whether `a` is shorter than `b` by more than sums of times are rounded.
bool is_shorter(const Candidate& a, const Candidate& b);

// The largest number of parts of an instruction.
int most_parts(const ir::Program& program);

}  // namespace lancet::schedule
