// Streams: owns the communicators of each communication stream, so that all-to-alls and all-reduces run independently:
// one of all ranks, and one of each group of ranks that plans name.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lancet/comm/communicator.h"
#include "lancet/config/config.h"
#include "lancet/ir/mesh.h"
#include "lancet/run/rank_device.h"
#include "lancet/runtime/executor.h"

namespace lancet::run {

class Streams {
 public:
  // Collective: duplicates `world` for each stream and sets the config's timeout on all of them, `world` included. With
  // an accelerator (null: the CPU) it also makes the device communicators. purpose: prefix of the names in errors.
  static Result<Streams> make(const config::Config& config, comm::Communicator& world,
                              runtime::Accelerator* accelerator, const std::string& purpose = "");

  // Collective, before a plan of the program runs, while no stream carries traffic: opens the groups that the program's
  // instructions name and that are not open yet, and on a mesh of several stages the links between them. All ranks have
  // the same mesh and program, or the same programs of all stages. Config errors: the mesh is not one of all ranks; an
  // instruction's `shards` are not the ranks of its group on this mesh.
  Status open_groups(const ir::Mesh& mesh, const ir::Program& program);
  Status open_groups(const ir::Mesh& mesh, const std::vector<const ir::Program*>& programs);

  // Options for an executor of this rank, which has its own arena. This object outlives the executor.
  runtime::ExecutorOptions executor_options(int threads) const;
  // Of the open group of ranks along these axes; null on the CPU, for a single rank, and if no plan names the group.
  comm::DeviceCommunicator* on_device(ir::Stream stream, const ir::Mesh& mesh, ir::Axes axes) const;

 private:
  // A group of ranks with communicators of its own, or those of all ranks.
  struct OpenGroup {
    std::unique_ptr<comm::Communicator> host;
    std::unique_ptr<comm::DeviceCommunicator> device;  // ends before host
    comm::Group group;
  };
  using OpenGroups = std::map<std::string, OpenGroup, std::less<>>;  // by axes, as in comm::Groups

  Result<OpenGroup> open(std::unique_ptr<comm::Communicator> host, const std::string& name, int max_ctas) const;
  Result<OpenGroup> open(const ir::Mesh& mesh, const std::string& key, ir::Stream stream) const;
  Status open_links(const ir::Mesh& mesh);

  config::Config config_;
  std::string purpose_;
  runtime::Accelerator* accelerator_ = nullptr;
  std::chrono::milliseconds timeout_{};
  std::array<OpenGroups, ir::stream_count> groups_;
  // Those between stages, in the order in which they were opened, whose groups are in groups_. A communicator's end may
  // wait for the other rank, so all ranks end them in this order, too.
  std::vector<OpenGroup> links_;
};

// Makes the world of a single process that trains as one rank of many (comm.transport = "mirrored").

// Total declared time of the network's calls, in milliseconds. Each stream adds from its own thread.
struct DeclaredTimes {
  std::atomic<double> all_to_alls{0}, all_reduces{0};
};

// Returns the mirrored world with the links of comm.network, or null if the config requests another transport. Config
// errors: several processes, undeclared hardware. times: every call adds to it; it outlives the world.
Result<std::unique_ptr<comm::Communicator>> mirrored_world(const config::Config& config,
                                                           const comm::Communicator& world,
                                                           DeclaredTimes* times = nullptr);

// Runs slow work on rank 0 (disk, planning, user input) while the ranks keep sending short messages, one per turn,
// so that no rank runs into comm.timeout_s and a rank that has ended is noticed.

// The length of a turn: a quarter of comm.timeout_s, within 1 to 200 ms.
std::chrono::milliseconds turn_of(const config::Config& config);

// Collective: runs `work` on rank 0 while the other ranks wait; with several ranks, it runs on a thread of its own. If
// the ranks lose contact, rank 0 returns the communication error after the work has ended.
Status run_on_rank0(comm::Communicator& world, std::chrono::milliseconds turn, const std::function<void()>& work);

}  // namespace lancet::run
