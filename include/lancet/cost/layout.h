// Which ranks share a host.
#pragma once
#include <span>
#include <utility>

#include "lancet/mesh/mesh.h"

namespace lancet::cost {

// Ranks on hosts, each with the same number of ranks (the last may have fewer).
struct Layout {
  int ranks = 1, hosts = 1;
  mesh::Mesh mesh = {};  // of these ranks, if Programs on them name its groups
  int beside = 1;        // of a group of ranks: the groups that share a host's NICs, all of which send at once
  int on_host() const { return (ranks + hosts - 1) / hosts; }
  // The ranks that share a host, as the parts of all-to-alls tell hosts apart: 1 if all ranks share one, or if hosts
  // have unlike numbers of them.
  int neighbours() const { return on_host() < ranks && ranks % on_host() == 0 ? on_host() : 1; }
  // The first and the last host on which the mesh's pipeline stage has ranks.
  std::pair<int, int> hosts_of_stage(int stage) const;
  // The group of these axes that rank 0 is in; all ranks if there are no axes.
  Layout group(mesh::Axes axes) const;
  // A group of these ranks, beside which groups like it have the other ranks.
  Layout group(std::span<const int> members) const;
};

}  // namespace lancet::cost
