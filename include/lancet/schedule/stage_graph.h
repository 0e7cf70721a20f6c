// The instructions of all pipeline stages as one graph.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "lancet/config/config.h"
#include "lancet/ir/mesh.h"
#include "lancet/schedule/simulate.h"

namespace lancet::schedule {

// What starts and ends together: an instruction, the two ends of a message, or a collective along the axis `stage`. One
// rank of each stage stands for all.
struct StageNode {
  using Member = Meetings::Member;
  struct Edge {
    std::int32_t node;
    double lag_ms;  // from the end of the one to the start of the other
  };
  std::vector<Member> members;
  double ms = 0;  // the longest of its members'
  std::vector<Edge> before, after;
  double head_ms = 0;  // the longest chain of what is before it
  double tail_ms = 0;  // the longest chain from its start on
};

struct StageGraph {
  std::vector<StageNode> nodes;                     // what a node depends on may be after it
  std::vector<std::vector<std::int32_t>> of_stage;  // by stage and instruction, its node
};

// InternalError: the chains have a cycle; those of meetings_of().
StageGraph stage_graph(std::span<const RankClass> stages, const ir::Mesh& mesh);

// What no order of the same instructions on the same streams goes below, in milliseconds: the longest chain, and for
// each stream of a stage the least time that its own instructions need, each between the longest chains before and
// after it.
double least_makespan(const StageGraph& graph, std::span<const RankClass> stages);

// The order in which a pipeline stage runs the passes of its micro batches.
struct PipelineOrder {
  ir::Program program;
  Dependencies needed;  // ir::dependencies, the policy's, and what keeps receives from running far ahead
};

// How long W waits under zero bubble, and whether it runs beside all-to-alls.
struct WaitingWeights {
  int delay = 0;  // backward passes, from 0 to the number of the stage
  bool dealt = false;
};

// What an instruction of a stage's program belongs to. forward: F, what depends on nothing of the backward pass.
// weight: W, weight gradients that no other instruction reads but all-reduces and what closes the step, and what is
// recomputed for them alone. late: all-reduces, and what closes the step. backward: B, the rest.
enum class PassKind : std::uint8_t { forward, backward, weight, late };
// By instruction. dependencies: those of the program (ir::dependencies).
std::vector<PassKind> pass_kinds(const ir::Program& program, const Dependencies& dependencies);

// program: the micro batches of a stage one after the other (micro_batches.h), each in the order of a policy, of which
// the last has what closes the step; needed: its dependencies with those that the policy adds. A stage of v chunks
// (passes/passes.h) receives between them; each has an F, a B and a W of its own (pass_kinds), and passes are ordered
// as those of chunks are: `stages` micro batches through one chunk, then through the next.
//
// one_forward_one_backward: (v - 1) stages + stages - 1 - stage times F, then one F and one B after another, then the
// rest of B, each B with its W (PipeDream-Flush, and for v > 1 the interleaved schedule; Narayanan et al., SC 2021,
// section 2.2). The activations are at most those of `stages` micro batches. Megatron-LM runs stages - 1 - stage times
// F more before the first B if v > 1, which keeps more of them; with B apart from W the bubble of equal passes is the
// same.
//
// zero_bubble: the same, but W of a pass follows the B of the pass `delay` after it. The paper's delay is
// `stage`, which keeps the activations of at most `stages` micro batches, as the first stage does without (ZB-H1; Qi et
// al., Zero Bubble Pipeline Parallelism, ICLR 2024, section 2.2). Where there is a delay and W is `dealt`, it is listed
// in equal numbers behind the all-to-alls of that B, and runs beside them; otherwise, behind B.
//
// Each F, B and W keeps the order of the policy and the dependencies that it adds within the pass; a W that it has put
// beside an all-to-all of B stays in B. All-reduces and updates keep their order and run once they can. A value is
// received no earlier than the pass before the last one has ended. waiting: of zero_bubble alone. schedule: one of
// these two; others order all stages together (search_stages.cpp).
PipelineOrder in_pipeline_order(const ir::Program& program, const Dependencies& needed,
                                config::PipelineSchedule schedule, int stage, int stages, WaitingWeights waiting);

// Orders the instructions of all pipeline stages together, by predicted times.
struct StagesOrder {
  std::vector<PipelineOrder> stages;
  double makespan = 0;  // of simulate()
  std::vector<std::int64_t> arenas = {};
};

// What a list schedule of stages follows, of one of them.
struct StageSettings {
  bool backward_first = false;
  bool weights_first = false;  // W goes before all others where there is no room for a forward pass, either
  bool best_filler = false;    // of several W, the one that fits a gap best runs there
  int ahead = 0;               // micro batches whose backward pass has not ended
  std::int64_t memory = 0;     // bytes that it counts on
  // Apart from memory.
  friend bool operator==(const StageSettings& a, const StageSettings& b) {
    return a.backward_first == b.backward_first && a.weights_first == b.weights_first &&
           a.best_filler == b.best_filler && a.ahead == b.ahead;
  }
};

// stages: as in_pipeline_order() takes them, with the dependencies that the programs have (ir::dependencies) and costs.
// few: the same stages with some of the micro batches, on which orders are searched, or `stages` itself. Both outlive
// this. Weight gradients run where a stage has nothing else to do; computation and all messages overlap as they may.
class StagesSearch {
 public:
  StagesSearch(std::span<const RankClass> stages, std::span<const RankClass> few, const ir::Mesh& mesh);
  ~StagesSearch();
  // The shortest of the list schedules in which no arena is larger than `most_bytes`, by stage, which is no less than
  // in the calls before. Nothing if each needs more, or if none is shorter than what these calls found. known:
  // settings by stage that are tried in place of a search, if there are some; their memory is not read.
  std::optional<StagesOrder> within(std::span<const std::int64_t> most_bytes,
                                    std::span<const std::vector<StageSettings>> known = {});
  // Those of the last order.
  const std::vector<StageSettings>& settings() const;

 private:
  class Search;
  std::unique_ptr<Search> few_, all_;  // all_: null if the few are all
};

}  // namespace lancet::schedule
