// A model as a placement problem: the instructions of its Program are the ops, what they make for each other are the
// flows.
//
// Time of an op: cost::op_ms under the device's hardware file. A flow carries the bytes of all tensors that one op
// makes for another; a tensor with readers on several devices travels to each. Memory of an op: the results that it
// makes in memory of their own, and the parameters and states that it touches, summed over the graph as in Moirai (5),
// whether they exist at the same time or not.
//
// Forward: evaluation of one micro batch. Each op is in no group; an op that reads a parameter of another one (the head
// reads the embedding's) holds a copy.
// Training: one micro batch with its backward pass and the optimizer's updates. All instructions of a module of the
// model (their label), and all that touch the same parameter or state, are one group. The norm of all gradients is left
// out: its parts are sums of a device, and what travels for it is some bytes.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lancet/config/config.h"
#include "lancet/placement/problem.h"

namespace lancet::placement {

enum class Task { forward, training };

struct ModelGraph {
  Problem problem;
  std::vector<std::string> types;  // by op: the name of its op in the catalogue
};

// config: one that check() accepts for one rank; its micro batch is what passes the devices. Config errors: those of
// the passes that make its Program.
Result<ModelGraph> model_graph(const config::Config& config, const Cluster& cluster, Task task);
// The same of a Program of one rank: its instructions and, for training, their groups.
ModelGraph program_graph(const ir::Program& program, const Cluster& cluster, Task task);

// Coarsening: chains of ops that a backend would fuse become one op (Moirai, section III-B and Algorithm 1), so that
// solvers have fewer to place.

// A chain of op types. Rules are tried in their order, so longer ones come before those that they begin with.
struct FusionRule {
  std::string_view what;
  std::vector<std::string_view> types;
};
std::span<const FusionRule> fusion_rules();

struct Coarse {
  Problem problem;                        // its times and memory are sums over the members
  std::vector<std::vector<int>> members;  // by op of `problem`: ops of the fine graph, in their order
};

// Fuses every chain that a rule matches. An edge joins two ops of a chain if it is a direct connection or one of
// several inputs of its reader, never if its maker has several outputs. Of an op in a group, readers in its own group
// do not count, and those of one other group count as one, of which the first is joined: with the backward pass in the
// graph, every activation has readers there. An op is in one chain at most. Groups of members become one group.
Coarse coarsen(const ModelGraph& graph, std::span<const FusionRule> rules = fusion_rules());

// The same placement of the fine graph: each op is where its chain is, and runs in the chain's turn.
Placement refine(const Problem& fine, const Coarse& coarse, const Placement& placement);

}  // namespace lancet::placement
