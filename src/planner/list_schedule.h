// List scheduling: which instruction a lane takes next when it is free.
#pragma once
#include <span>
#include <vector>

#include "lancet/cost/costs.h"
#include "lancet/planner/simulate.h"
#include "reorder.h"

namespace lancet::planner {

struct Job {
  ir::Lane lane = ir::Lane::compute;
  double ms = 0;
  int part = -1;                    // of a split instruction; -1: whole
  bool filler = false;              // may wait: nothing but the end of the step needs it (weight gradients, updates)
  std::vector<std::int32_t> needs;  // earlier jobs
};

struct ListOptions {
  // Communication lanes take turns on the wire: an all-to-all goes before an all-reduce that is ready as well.
  bool shared_wire = true;
  // Fillers only where the compute lane would wait for the wire, the one that fits best (Lancet, section 4.2); else
  // they compete like all others, by how much of the step hangs on them.
  bool fill_gaps = true;
  // The first part goes ahead as far as it can, the next one fills what time it leaves, and so on: parts spread over
  // the layers, and the wire has work all the time. Else by the longest path to the end: parts go abreast.
  bool first_part_first = true;
};

struct ListSchedule {
  Order order;              // all jobs, by start; needs come first
  std::vector<double> end;  // per job
  double makespan = 0;
};

// Event by event; a free lane takes the most urgent job that is ready (ListOptions), the earlier one of equals.
ListSchedule list_schedule(std::span<const Job> jobs, const ListOptions& options);

}  // namespace lancet::planner
