// The search for the order of a step's instructions, over its splits, that makes the step shortest within its memory.
#pragma once
#include <string>
#include <vector>

#include "lancet/schedule/candidate.h"
#include "orders.h"
#include "reduce_chunks.h"

namespace lancet::schedule {

// Every split is ordered by list scheduling under each setting of a small grid, and simulated. The splits that came out
// best are ordered once more with their all-reduces in chunks. What needs more memory than the step without parts, but
// for a few percent, is left out.
class OrderSearch {
 public:
  explicit OrderSearch(const Step& step);
  void try_split(const std::string& how, const Split& split);
  // The best of what was tried and fits the memory, or `first`, where nothing is faster. Where `first` has infinite
  // length (a number of parts is asked for), the best there is.
  Candidate best(Candidate first);

 private:
  struct Tried {
    std::string how;
    Chunked chunked;  // the split step
    ListOptions options;
    Candidate candidate;  // empty, of infinite length, where nothing fits the memory
    double room = 1;      // bytes alive at once, at most, over those without parts
  };
  void try_options(Tried& tried, const Orders& orders, const ListOptions& options) const;
  template <class F>
  void try_changed(Tried& tried, const Orders& orders, F change) const;
  void try_all_leads(Tried& tried, const Orders& orders) const;
  // With one message on the wire at a time, or as it is.
  Candidate with_or_without_turns(Candidate best) const;
  Tried in_chunks(const Tried& tried, std::int64_t chunk_bytes, double room) const;

  const Step& step_;
  std::int64_t memory_ = 0;  // bytes alive at once without parts
  bool thorough_ = false;
  std::vector<Tried> tried_;
};

}  // namespace lancet::schedule
