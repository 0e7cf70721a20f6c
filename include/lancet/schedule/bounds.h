// What a way to overlap would bring to a step with ideal dependencies, before the way is built.
//
// Today an instruction waits for the end of what it reads. Under a way to overlap, some instructions are cut in equal
// tiles at no cost, and a tile waits for the corresponding tiles only. A list schedule of all is the time that the way
// could reach: messages take turns on the network, all-reduces can be cut anywhere, the network and computation do not
// slow each other down, launches and moving bytes take no time.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "lancet/schedule/overlap.h"
#include "lancet/schedule/step.h"

namespace lancet::schedule {

struct OverlapWay {
  std::string_view name, what, from;  // from: who published it
};
// The last one is all others together. Sources: Comet (MLSys 2025), section 3; Tutel (MLSys 2023); FasterMoE (PPoPP
// 2022); Lancet (MLSys 2024), section 5; FlowMoE (NeurIPS 2025); Wang et al., Overlap Communication with Dependent
// Computation via Decomposition (ASPLOS 2023); Megatron-LM and DeepSeek-V3's DualPipe.
std::span<const OverlapWay> overlap_ways();

// An ideal schedule of one step. Milliseconds.
struct IdealStep {
  double ms = 0;
  double exposed = 0;  // time in which the network is busy and the compute stream is not
};

// The best schedule found, and the best one whose values alive at once are within the limit of memory.
struct IdealSteps {
  IdealStep any, within;
};

struct Bounds {
  double compute = 0, network = 0;  // milliseconds of work
  IdealSteps today;                 // with the dependencies of the program
  std::vector<IdealSteps> ways;     // in the order of overlap_ways(): today's dependencies but for those of the way
  double least() const { return compute > network ? compute : network; }
};

// The bounds of a step, whole or already split in parts. variants: the step with its all-reduces cut in one or several
// ways, of which each bound takes the best one; their own order counts as within the limit. No way is longer than
// `today`, nor than a way that it contains. Weight gradients and updates run where the compute stream would wait.
Bounds find_bounds(std::span<const Chunked> variants, std::int64_t memory_bytes);
// Of a step, its all-reduces as they are and in chunks of some sizes.
std::vector<Chunked> chunked_variants(const Step& step);

}  // namespace lancet::schedule
