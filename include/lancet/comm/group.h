// Group: the ranks that an instruction goes over, as one of them sees them.
#pragma once
#include <functional>
#include <map>
#include <string>

#include "lancet/comm/communicator.h"
#include "lancet/comm/device_communicator.h"

namespace lancet::comm {

struct Group {
  int place = 0, size = 1;                    // of this rank among the group's ranks, and their number
  Communicator* comm = nullptr;               // null on the compute stream, and where a rank is alone
  DeviceCommunicator* device_comm = nullptr;  // likewise; for tensors on a device
};

// The group of all ranks of a communicator. The argument outlives it.
inline Group group_of(Communicator& comm) { return {comm.rank(), comm.size(), &comm, nullptr}; }
inline Group group_of(DeviceCommunicator& comm) { return {comm.rank(), comm.size(), nullptr, &comm}; }

// The groups of a stream, by the attribute `axes` of the instructions that go over them (ir/groups.h). The first, "",
// is all ranks, which instructions without the attribute go over.
using Groups = std::map<std::string, Group, std::less<>>;

// The one group of all ranks of a communicator; no group of a null communicator.
inline Groups all_ranks(Communicator* comm) { return comm ? Groups{{"", group_of(*comm)}} : Groups(); }
inline Groups all_ranks(DeviceCommunicator* comm) { return comm ? Groups{{"", group_of(*comm)}} : Groups(); }

}  // namespace lancet::comm
