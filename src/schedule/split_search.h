// Shared by the passes that split instructions: the choices to try, the comparison, and the rule for a forced number of
// parts. Each pass rewrites the step for each choice, orders the parts and keeps the shortest candidate.
#pragma once
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lancet/config/config.h"
#include "lancet/schedule/candidate.h"
#include "lancet/schedule/partition/cut.h"
#include "list_schedule.h"
#include "ranges.h"

namespace lancet::schedule {

// Leads of a part over the next one (ListOptions) of the ways that are published. With 0 the parts run abreast, stage
// by stage; the others are tried since no text fixes how far a part may run ahead.
inline constexpr double part_leads[] = {0, 1.0 / 128, 1.0 / 32};

// The candidate with the shorter makespan; `a` on ties.
Candidate better(Candidate a, Candidate b);

// Replaces `best` by the candidate if that is shorter and its arena is within overlap.memory_factor, or overlap.parts
// forces a split. True if replaced.
bool replace_if_better(Candidate& best, Candidate candidate, const Step& step, const config::Overlap& overlap);

// The same with make(options). A candidate that is shorter and does not fit is made again with jobs that wait until
// less memory is alive (ListOptions::hold_bytes), so that no way to overlap is left out because of the memory of the
// one order that was tried first.
bool replace_if_better(Candidate& best, const Step& step, const config::Overlap& overlap, ListOptions options,
                       const std::function<Candidate(const ListOptions&)>& make);

// The result of search(whole). If overlap.parts forces a split, `whole` counts as infinitely long, so that any split
// replaces it; if no split fits the memory, `whole` is returned with its own length.
Candidate or_forced_split(Candidate whole, const Step& step, const config::Overlap& overlap, const Cut& cut,
                          const std::function<Candidate(Candidate)>& search);

// Finds a choice for each kind: first the same one for all, of `for_all`, then, of several kinds, one of `for_one` for
// each in turn, beside what is chosen for the others. takes(choices): tries them, and returns whether they are the best
// so far.
template <class Choice, class Takes>
void search_choices(std::vector<Choice>& chosen, const std::vector<Choice>& for_all, const std::vector<Choice>& for_one,
                    const Takes& takes) {
  const auto attempt = [&](std::vector<Choice> choices) {
    if (choices != chosen && takes(choices)) chosen = std::move(choices);
  };
  for (const Choice& choice : for_all) attempt(std::vector<Choice>(chosen.size(), choice));
  for (std::size_t i = 0; i < chosen.size() && chosen.size() > 1; ++i)
    for (const Choice& choice : for_one) {
      std::vector<Choice> choices = chosen;
      choices[i] = choice;
      attempt(std::move(choices));
    }
}

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
