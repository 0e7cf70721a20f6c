// Which ranks share a host.
#pragma once
#include <span>
#include <utility>

#include "lancet/ir/mesh.h"

namespace lancet::cost {

// The hosts of `ranks` ranks that fill one host after the other, `local_ranks` each.
int hosts_of(int ranks, int local_ranks);

// Ranks on hosts, each with the same number of ranks (the last may have fewer).
struct Layout {
  int ranks = 1, hosts = 1;
  ir::Mesh mesh = {};  // of these ranks, if Programs on them name its groups
  int beside = 1;      // of a group of ranks: the groups that share a host's NICs, all of which send at once
  bool even = true;    // false: hosts have unlike numbers of ranks, and on_host() is their mean, rounded up
  int on_host() const { return (ranks + hosts - 1) / hosts; }
  // The number of ranks of a group of these axes (of all ranks if there are none) on each host that it has ranks on, by
  // which the parts of all-to-alls tell hosts apart. It is 1, and hosts are not told apart, if a group has all its
  // ranks on one host, or if the hosts have unlike numbers of a group's ranks.
  int ranks_sharing_host(ir::Axes axes = {}) const;
  // The first and the last host on which the mesh's pipeline stage has ranks.
  std::pair<int, int> hosts_of_stage(int stage) const;
  // The group of these axes that rank 0 is in; all ranks if there are no axes.
  Layout group(ir::Axes axes) const;
  // A group of these ranks, beside which groups like it have the other ranks.
  Layout group(std::span<const int> members) const;
};

}  // namespace lancet::cost
