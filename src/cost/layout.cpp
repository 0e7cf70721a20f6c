#include "lancet/cost/layout.h"

#include <algorithm>
#include <map>

#include "lancet/base/check.h"

namespace lancet::cost {

int hosts_of(int ranks, int local_ranks) { return (ranks + local_ranks - 1) / local_ranks; }

int Layout::ranks_sharing_host(ir::Axes axes) const {
  if (!even || hosts == 1) return 1;
  if (axes.empty()) return on_host() < ranks && on_host() * hosts == ranks ? on_host() : 1;
  LANCET_CHECK(mesh.ranks() == ranks, "a layout of {} ranks has a mesh of {}", ranks, mesh.ranks());
  int of_all = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    if (mesh.place(rank, axes) != 0) continue;  // each group once
    const Layout one = group(mesh.group(rank, axes));
    if (!one.even || one.hosts == 1 || (of_all > 0 && one.on_host() != of_all)) return 1;
    of_all = one.on_host();
  }
  return of_all;
}

std::pair<int, int> Layout::hosts_of_stage(int stage) const {
  const int of_stage = ranks / mesh[ir::Axis::stage], first = stage * of_stage;
  return {first / on_host(), (first + of_stage - 1) / on_host()};
}

Layout Layout::group(ir::Axes axes) const {
  if (axes.empty()) return *this;
  LANCET_CHECK(mesh.ranks() == ranks, "a layout of {} ranks has a mesh of {}", ranks, mesh.ranks());
  return group(mesh.group(0, axes));
}

Layout Layout::group(std::span<const int> members) const {
  std::map<int, int> by_host;  // the members on each host
  for (const int rank : members) ++by_host[rank / on_host()];
  Layout group{int(members.size()), int(by_host.size())};
  group.even =
      even && std::ranges::all_of(by_host, [&](const auto& on) { return on.second == by_host.begin()->second; });
  group.beside = std::max(1, on_host() / group.on_host());
  return group;
}

}  // namespace lancet::cost
