// List scheduling: orders the instructions of the streams greedily by urgency.
#pragma once
#include <array>
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
  double rest_ms = 0;  // of a tile: the tiles of its instruction after it
  int part = -1;       // of a split instruction; -1: whole
  bool backward = false;
  bool feeds_network = false;        // an all-reduce needs it
  bool feeds_filler = false;         // a message for which only fillers wait
  bool filler = false;               // may wait: only the end of the step needs it (weight gradients, updates)
  std::vector<std::int32_t> needs;   // earlier jobs
  std::vector<std::int32_t> blocks;  // blocks of memory that it touches
};

struct ListOptions {
  // The communication streams take turns on the network: of an all-to-all and an all-reduce that are both ready, the
  // all-to-all starts first.
  bool shared_network = true;
  // Fillers run only where the compute stream would wait for the network; the one that fits the gap best is chosen
  // (Lancet, section 4.2). If false, they compete with all other jobs by urgency.
  bool fill_gaps = true;
  // By stream: its jobs start in the order in which they are given, whatever is urgent.
  std::array<bool, ir::stream_count> in_order = {};
  // The lead of each part over the next one, as a share of the longest path. With 0 the parts run abreast: all need the
  // network at the same time and leave it idle at the same time. With a large lead they spread over the layers and the
  // network always has work, but the memory of many layers is alive at once.
  double lead = 1.0 / 64, backward_lead = 1.0 / 64;
  // If the network is idle and no message is ready, a filler that an all-reduce needs goes first.
  bool feed_network = false;
  // As soon as more memory than this is alive, the filler that frees most runs, and a message for fillers goes first.
  std::int64_t memory_bytes = std::numeric_limits<std::int64_t>::max();
  // A job after which more memory than this would be alive waits, as long as another runs or may run in its place.
  std::int64_t hold_bytes = std::numeric_limits<std::int64_t>::max();
};

// The leads that searches try, since the best one depends on the model and the network. The long ones, at the end, need
// the memory of many layers.
inline constexpr double all_leads[] = {0, 1.0 / 256, 1.0 / 128, 1.0 / 64, 1.0 / 32, 1.0 / 16, 1.0 / 8, 1.0 / 4};
inline constexpr std::span<const double> short_leads = std::span(all_leads).first(6);

struct ListSchedule {
  Order order;              // all jobs, by start; needs come first
  std::vector<double> end;  // per job
  double makespan = 0;
  std::int64_t peak_bytes = 0;  // of the blocks; each is alive from the start of its first job to the end of its last
};

// The blocks that the jobs touch.
struct ListMemory {
  std::span<const std::int64_t> bytes = {};               // by the numbers in Job::blocks
  std::span<const std::int32_t> before = {}, after = {};  // blocks that are alive before the first job, after the last
};

// Simulates the streams event by event; a free stream starts the most urgent job that is ready (ListOptions), the
// earlier one on ties.
ListSchedule list_schedule(std::span<const Job> jobs, const ListOptions& options, const ListMemory& memory = {});

}  // namespace lancet::schedule
