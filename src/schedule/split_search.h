// Shared by the passes that split instructions: the choices to try, the comparison, and the rule for a forced number of
// parts. Each pass rewrites the step for each choice, orders the parts and keeps the shortest candidate.
#pragma once
#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "lancet/config/config.h"
#include "lancet/schedule/candidate.h"
#include "lancet/schedule/partition/rewrite.h"
#include "ranges.h"

namespace lancet::schedule {

// The candidate with the shorter makespan; `a` on ties.
Candidate better(Candidate a, Candidate b);

// The same, but `b` only if its arena is within overlap.memory_factor or overlap.parts forces a split.
Candidate better_that_fits(Candidate a, Candidate b, const Step& step, const config::Overlap& overlap);

// The result of search(whole). If overlap.parts forces a split, `whole` counts as infinitely long, so that any split
// replaces it; if no split fits the memory, `whole` is returned with its own length.
Candidate or_forced_split(Candidate whole, const Step& step, const config::Overlap& overlap, const Cut& cut,
                          const std::function<Candidate(Candidate)>& search);

// The range [first, last) of the rewritten program that holds the instructions [begin, end) of the source.
std::pair<std::size_t, std::size_t> position_of(const Rewritten& rewritten, std::size_t begin, std::size_t end);

// The choices of ranges to try: those of the dynamic programme, and the whole forward pass as one range for each number
// of parts; with overlap.reach, instead, ranges of that reach around the MoE layers.
std::vector<std::vector<Range>> range_choices(const Step& step, const config::Overlap& overlap);

// The ranges in words, for reports.
std::string describe(const Step& step, const std::vector<Range>& ranges);

}  // namespace lancet::schedule
