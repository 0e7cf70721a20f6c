#include "lancet/cost/layout.h"

#include <algorithm>
#include <set>

#include "lancet/base/check.h"

namespace lancet::cost {

std::pair<int, int> Layout::hosts_of_stage(int stage) const {
  const int of_stage = ranks / mesh[mesh::Axis::stage], first = stage * of_stage;
  return {first / on_host(), (first + of_stage - 1) / on_host()};
}

Layout Layout::group(mesh::Axes axes) const {
  if (axes.empty()) return *this;
  LANCET_CHECK(mesh.ranks() == ranks, "a layout of {} ranks has a mesh of {}", ranks, mesh.ranks());
  return group(mesh.group(0, axes));
}

Layout Layout::group(std::span<const int> members) const {
  std::set<int> occupied;
  for (const int rank : members) occupied.insert(rank / on_host());
  Layout group{int(members.size()), int(occupied.size())};
  group.beside = std::max(1, on_host() / group.on_host());
  return group;
}

}  // namespace lancet::cost
