// Searches over splits of a step and orders of its instructions for the shortest step that fits the memory.
#pragma once
#include <string>
#include <vector>

#include "lancet/schedule/candidate.h"
#include "orders.h"
#include "reduce_chunks.h"

namespace lancet::schedule {

// Every split is ordered by list scheduling under each setting of a small grid, and simulated. The best splits are
// ordered again with their all-reduces in chunks. Orders that need a few percent more memory than the step without
// parts are discarded.
class OrderSearch {
 public:
  explicit OrderSearch(const Step& step);
  void try_split(const std::string& how, const Split& split);
  // Returns the shortest candidate that was tried and fits the memory, or `first` if none is shorter. If `first` has
  // infinite length (a number of parts is forced), returns the shortest candidate even if its arena is too large.
  Candidate best(Candidate first);

 private:
  struct Tried {
    std::string how;
    Chunked chunked;  // the split step
    ListOptions options;
    Candidate candidate;  // empty and of infinite length if nothing fits the memory
    double limit = 1;     // upper bound of the bytes alive at once, relative to the step without parts
  };
  void try_options(Tried& tried, const Orders& orders, const ListOptions& options) const;
  template <class F>
  void try_changed(Tried& tried, const Orders& orders, F change) const;
  void try_all_leads(Tried& tried, const Orders& orders) const;
  // The shorter of `best` and the same with one message on the network at a time.
  Candidate with_or_without_turns(Candidate best) const;
  Tried in_chunks(const Tried& tried, std::int64_t chunk_bytes, double limit) const;

  const Step& step_;
  std::int64_t memory_ = 0;  // bytes alive at once without parts
  bool thorough_ = false;
  std::vector<Tried> tried_;
};

}  // namespace lancet::schedule
