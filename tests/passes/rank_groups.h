// The groups of a mesh's ranks that a Program's instructions go over, for ranks that are threads.
#pragma once
#include <array>
#include <memory>
#include <vector>

#include "lancet/comm/device_communicator.h"
#include "lancet/ir/groups.h"

namespace lancet::test {

struct RankGroups {
  std::vector<std::unique_ptr<comm::Communicator>> communicators;
  std::array<comm::Groups, ir::stream_count> of_stream;
};

// On all ranks of the mesh; `world` has no others.
inline Result<RankGroups> open_groups(const ir::Program& program, const ir::Mesh& mesh, comm::Communicator& world) {
  RankGroups groups;
  const auto used = ir::used_keys(program);
  for (const ir::Stream stream : {ir::Stream::expert, ir::Stream::reduce}) {
    LANCET_ASSIGN(groups.communicators.emplace_back(), world.duplicate());
    groups.of_stream[std::size_t(stream)] = comm::all_ranks(groups.communicators.back().get());
  }
  for (std::size_t stream = 0; stream < used.size(); ++stream)
    for (const std::string& key : used[stream]) {
      LANCET_ASSIGN(groups.communicators.emplace_back(), world.split(ir::ranks_of(key, mesh, world.rank())));
      groups.of_stream[stream][key] = comm::group_of(*groups.communicators.back());
    }
  return groups;
}

}  // namespace lancet::test
