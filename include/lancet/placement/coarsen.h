// Coarsening: chains of ops that a backend would fuse become one op (Moirai, section III-B and Algorithm 1), so that
// solvers have fewer to place.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lancet/placement/graph.h"

namespace lancet::placement {

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
