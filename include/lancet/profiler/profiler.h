// The profiler: measures the times that a cost::Profile lacks to predict given plans, with the real kernels and the
// real communicators.
//
// Ops are timed within a step, not alone in a loop: the plan's compute stream is replayed, in order, in an arena with
// the plan's layout, so that each op finds the caches as in a step (the previous op's results are warm, weights and
// saved activations are as cold as the size of the step makes them). In a hot loop, products take as long as in the
// step, to within 3%, but updates take 59% of that, norms 80%, embedding and dispatch's backward less than half (4
// layers, n_embd 256, bf16, one core of an AMD EPYC); flushed caches err in the other direction.
//
// Tensors hold normally distributed numbers. Tokens are uniform in the vocabulary. The gate's own kernel
// decides, on logits that distribute the tokens evenly, in random order, over the experts. All-to-alls copy locally as
// many rows as they would receive; all-reduces are left out.
//
// A kernel of one thread never sleeps, so the time that its thread waited for a core, which other processes used, is
// not counted. Kernels of several threads are timed by the wall clock.
//
// Statistic: noise only adds time, so an instruction's time is its median over the sweeps. Instructions of one key at
// different positions of the step truly differ, and the planner adds them up, so a key's time is the mean over its
// instructions. Ranks measure at the same time, since they share the memory's bandwidth, and take the mean over ranks.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "lancet/base/dtype.h"
#include "lancet/cost/profile.h"
#include "lancet/ir/plan.h"
#include "lancet/profiler/interference.h"

namespace lancet::profiler {

// This machine, as seen by a rank of `threads` threads that shares it with local_ranks - 1 others.
cost::Device this_device(int threads, int local_ranks);
// A rank's own accelerator, under its name, architecture and build.
cost::Device device_of(runtime::Accelerator& accelerator);

struct ProfilerReport {
  int ops = 0;                                                         // number of keys that were timed
  bool network = false;                                                // true if communication was measured
  double seconds = 0, seconds_of_choices = 0, seconds_of_network = 0;  // of all, of products' algorithms, of messages
};

// The op keys of the plans that the profile lacks, sorted. The plans of this module have no repeats
// (ir::inline_bodies).
std::vector<std::string> missing_ops(std::span<const ir::Plan> plans, const cost::Profile& profile);

// True if the profile lacks times that fill_profile() would measure on this number of ranks.
bool lacks_times(std::span<const ir::Plan> plans, const cost::Profile& profile, int ranks);

// Times the missing ops and adds them to the profile; existing entries do not change. Communication is measured if
// there are several ranks and the profile has no times of messages, or none up to the plans' largest messages. If the
// accelerator offers several algorithms for a product, rank 0 first measures the best one for each product of the
// missing ops; all ranks use its choices, and the profile keeps them. Collective: all ranks pass the same plans and
// profile, and end with the same profile. Error of check_interrupted(): the profile then has the ops of the plans that
// were measured whole.
Result<ProfilerReport> fill_profile(cost::Profile& profile, std::span<const ir::Plan> plans,
                                    const ProfilerOptions& options);

// Measures peak FLOP/s and memory bandwidth, the denominators of MFU and of `lancet bench ops`.

// FLOP/s of a large product of cache-friendly shape on `threads` threads: the best of the repeats within about 0.2 s,
// since noise only slows a product down.
double measure_product_peak(DType dtype, int threads);

// FLOP/s of an accelerator on products of size^3. Errors: no kernel or no memory for it.
Result<double> measure_product_peak(runtime::Accelerator& accelerator, DType dtype, std::int64_t size = 8192);

// Bytes per second, read and written, of a sum over arrays far larger than the caches.
double measure_memory_bandwidth(int threads);

// The same of a device: a copy of this many bytes, fewer if less than four times as many are free, from its memory to
// its memory. Errors: the device's.
Result<double> measure_memory_bandwidth(backend::Device& device, std::int64_t bytes);

}  // namespace lancet::profiler
