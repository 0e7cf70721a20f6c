// List scheduling: which instruction a stream takes next when it is free.
#pragma once
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "lancet/cost/costs.h"
#include "lancet/schedule/simulate.h"
#include "reorder.h"

namespace lancet::schedule {

struct Job {
  ir::Stream stream = ir::Stream::compute;
  double ms = 0;
  int part = -1;  // of a split instruction; -1: whole
  bool backward = false;
  bool feeds_network = false;           // an all-reduce needs it
  bool filler = false;               // may wait: nothing but the end of the step needs it (weight gradients, updates)
  std::vector<std::int32_t> needs;   // earlier jobs
  std::vector<std::int32_t> blocks;  // of memory that it touches
};

struct ListOptions {
  // Communication streams take turns on the wire: an all-to-all goes before an all-reduce that is ready as well.
  bool shared_network = true;
  // Fillers only where the compute stream would wait for the wire, the one that fits best (Lancet, section 4.2); else
  // they compete like all others, by how much of the step hangs on them.
  bool fill_gaps = true;
  // How far each part goes ahead of the next one, as a share of the longest path. 0: parts go abreast, all want the
  // wire at once and leave it idle at once. Much: they spread over the layers, and the wire has work all the time, but
  // the memory of many layers is alive at once.
  double lead = 1.0 / 64, backward_lead = 1.0 / 64;
  // Where nothing is on the wire and nothing waits for it, a filler that an all-reduce needs goes first.
  bool feed_network = false;
  // A filler runs as soon as more memory than this is alive: the one that frees most.
  std::int64_t memory_bytes = std::numeric_limits<std::int64_t>::max();
};

struct ListSchedule {
  Order order;              // all jobs, by start; needs come first
  std::vector<double> end;  // per job
  double makespan = 0;
  std::int64_t peak_bytes = 0;  // of the blocks, each alive from its first job's start to its last one's end
};

// Event by event; a free stream takes the most urgent job that is ready (ListOptions), the earlier one of equals.
// block_bytes: by the jobs' blocks.
ListSchedule list_schedule(std::span<const Job> jobs, const ListOptions& options,
                           std::span<const std::int64_t> block_bytes = {});

}  // namespace lancet::schedule
