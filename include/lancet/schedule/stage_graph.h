// The instructions of all pipeline stages as one graph.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "lancet/ir/mesh.h"
#include "lancet/schedule/simulate.h"

namespace lancet::schedule {

// One stage: its program in the order of its streams, what each instruction needs, and what it costs.
struct StageWork {
  const ir::Program& program;
  const Dependencies& needed;
  std::span<const cost::OpCost> op_costs;
};

// What starts and ends together: an instruction, the two ends of a message, or a collective along the axis `stage`. One
// rank of each stage stands for all.
struct StageNode {
  struct Member {
    int stage;
    std::size_t instruction;
  };
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

// Instructions meet by their turn: the k-th of one key on a stage meets the k-th of that key on the others, as in the
// programs' order. InternalError: one has nobody to meet, or the chains have a cycle.
StageGraph stage_graph(std::span<const StageWork> stages, const ir::Mesh& mesh, double launch_ms);

// What no order of the same instructions on the same streams goes below, in milliseconds: the longest chain, and for
// each stream of a stage the least time that its own instructions need, each between the longest chains before and
// after it.
double least_makespan(const StageGraph& graph, std::span<const StageWork> stages);

// The stages that an instruction of `stage` meets, with its own; its own alone if it meets none. mesh: of all ranks.
std::vector<int> stages_met(const ir::Instruction& instruction, const ir::Mesh& mesh, int stage);

}  // namespace lancet::schedule
