// The profiler: measures what a cost::Profile lacks to predict given plans, with the real kernels and the real
// communicators.
//
// Ops are timed where they stand in a step, not alone in a loop: the plan's compute stream is replayed, in order, in an
// arena laid out as the plan says, so that each op finds in the caches what a step leaves there (what the op before
// made is warm, weights and saved activations are as cold as the step's size makes them). In a hot loop, products take
// as long as in the step, to 3%, but updates 59% of that, norms 80%, embedding and dispatch's backward less than half
// (4 layers, n_embd 256, bf16, one core of an AMD EPYC); flushed caches err to the other side.
//
// Data is normal numbers, tokens uniform in the vocabulary, and routes that the gate's own kernel makes of logits which
// spread tokens evenly, in random order, over the experts. All-to-alls copy locally, as many rows as they would
// receive; all-reduces are left out.
//
// A kernel of one thread never sleeps, so where its thread waited for the core (the machine does other things, too),
// that time is not counted. Kernels of several threads are taken by the wall's clock.
//
// Statistic: noise only adds time, so an instruction's time is its median over the sweeps; instructions of one key that
// stand in different places differ truly, and the planner adds them up, so a key's time is the mean of theirs. Ranks
// measure at the same time, since they share the memory's bandwidth, and take the mean over ranks.
#pragma once
#include <array>
#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/comm/communicator.h"
#include "lancet/cost/profile.h"
#include "lancet/ir/plan.h"
#include "lancet/runtime/accelerator.h"

namespace lancet::profiler {

// This machine, for a rank of `threads` threads that shares it with local_ranks - 1 others.
cost::Device this_device(int threads, int local_ranks);
// A rank's own accelerator, under its name, architecture and build.
cost::Device device_of(runtime::Accelerator& accelerator);

struct ProfilerOptions {
  int threads = 1;                     // of a rank's compute stream
  runtime::Accelerator* accelerator = nullptr;  // where ops run; null: the CPU
  // The streams' communicators (expert, reduce); null with one rank. `world` ties the measurements of the ranks together.
  comm::Communicator* world = nullptr;
  std::array<comm::Communicator*, ir::stream_count> streams{};
  std::array<comm::DeviceCommunicator*, ir::stream_count> device_streams{};  // the same on the accelerator
  std::chrono::milliseconds timeout = std::chrono::seconds(300);         // of a call between accelerators
  double seconds =
      2;  // of sweeps over one plan; the fewest sweeps, 5, or 3 of more than 4 s, take as long as they take
};

struct ProfilerReport {
  int ops = 0;        // keys that were timed
  bool wire = false;  // communication was
  double seconds = 0;
};

// The op keys of the plans that the profile lacks, sorted.
std::vector<std::string> missing_ops(std::span<const ir::Plan> plans, const cost::Profile& profile);

// On an accelerator whose products have a choice of algorithms, rank 0 measures first which of them the missing ops'
// products take; all ranks take these, and the profile keeps them.
//
// Times what is missing and adds it to the profile; what is there is left as it is. Communication is measured if there
// are several ranks and the profile has none, or none up to the plans' largest messages. Collective: all ranks bring
// the same plans and profile, and leave with the same.
Result<ProfilerReport> fill_profile(cost::Profile& profile, std::span<const ir::Plan> plans,
                                    const ProfilerOptions& options);

}  // namespace lancet::profiler
