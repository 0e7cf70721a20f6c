// EmulatedDevice: a device on which no op computes. Ops of the compute stream take the time that a hardware file
// declares; messages are real, in the order and proportion of those of the device, with fewer bytes. So the plans of a
// cluster that is not here run with the real planner, executor and transport.
//
// Bytes are divided by `scale`, times multiplied by `dilation`; the links are to be slower by both (emulate-cluster.sh
// up --hardware), so that computation and communication keep their proportion. Spans and records are in the device's
// own time. Routers draw their scores (drawn_routing.h), and what depends on nothing else is computed: experts, slots,
// counts, drops. All other tensors have addresses, but no memory that is ever used.
#pragma once
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lancet/comm/communicator.h"
#include "lancet/cost/hardware.h"
#include "lancet/ir/plan.h"

namespace lancet::runtime {

class DrawnRouting;

inline constexpr double ns_per_ms = 1e6;

class EmulatedDevice {
 public:
  struct Options {
    // Of each host of the emulated cluster (Hardware::part_of_node), or of all hosts if there is one entry.
    std::vector<cost::Hardware> hosts;
    cost::Layout layout;
    int rank = 0;
    double scale = 1, dilation = 1;
    std::shared_ptr<const cost::Loads> loads = std::make_shared<const cost::Loads>(cost::Loads::even({}));
    // The ranks among which the experts of a layer are split.
    int among() const { return layout.mesh[ir::Axis::expert]; }
  };
  explicit EmulatedDevice(Options options);
  ~EmulatedDevice();

  const Options& options() const { return options_; }
  const cost::Hardware& hardware() const { return costs_.hardware(); }  // of this rank's host
  const DrawnRouting& routing() const { return *routing_; }
  // Declared costs of this rank under the loads.
  const cost::HardwareCosts& costs() const { return costs_; }
  // Those of the slowest host, for the planner: the ranks have one plan.
  const cost::SlowestCosts& slowest_costs() const { return slowest_costs_; }
  std::string hardware_names() const;        // "p3dn-v100", or of unlike hosts "p3dn-v100;p4de-a100"
  std::int64_t free_bytes(int stage) const;  // of a device of the stage's host that has the least

  // Collective, before plans of the programs run: the same programs on all ranks, those of all pipeline stages.
  // Measures how long messages of no bytes take here, which counts towards their declared latency: among all ranks, and
  // in each group that the programs' instructions name, to all of its ranks and to as many as an instruction sends to.
  // What was measured for another program is not measured again.
  Status calibrate(comm::Communicator& world, const std::vector<const ir::Program*>& programs);
  // Collective. Warns if the links take another time for the plan's largest all-to-all than is declared.
  Status try_links(comm::Communicator& world, const ir::Plan& plan) const;
  // Whether this machine can run the plan on time. Config errors: messages of hardly a byte, more ranks than its cores
  // keep up with. A dilation that would do better is proposed.
  Status check(const ir::Plan& plan) const;
  static constexpr double most_late_pct = 2;

  // The part of the declared latency that is left to sleep, in the device's nanoseconds: of an instruction of the
  // stream `expert` or between stages, and of an all-reduce over the ranks of an instruction. Each is negative by what
  // this machine takes longer. InternalError: calibrate() has not measured it.
  double message_latency_ns(const ir::Instruction& instruction) const;
  double all_reduce_latency_ns(const ir::Instruction& instruction) const;

  // The executors of a rank take turns. Each calls this at the start of a run of `micro_batches` micro batches. The
  // result is the number of micro batches in the runs before.
  std::int64_t begin_run(std::int64_t micro_batches) {
    return std::exchange(micro_batches_, micro_batches_ + micro_batches);
  }

 private:
  // What messages without bytes take, in nanoseconds of the host.
  struct Overhead {
    double all_reduce_ns = 0;
    std::map<int, double> sent_ns;  // by the number of other ranks that each rank sends to
  };
  Status measure(comm::Communicator& world, comm::Communicator& ranks, const std::string& group,
                 const std::set<int>& numbers);
  // group: a key of ir/groups.h.
  const Overhead& overhead(const std::string& group) const;
  double overhead_ns(const std::string& group, int others) const;
  int others_in(const std::string& group) const;          // the ranks of a group but one
  int sent_to(const ir::Instruction& instruction) const;  // the number of other ranks that each rank sends to
  Status check_transfers(const ir::Program& program) const;
  Status check_dilation(const std::string& what, double declared, double overhead, double mean) const;

  Options options_;
  std::unique_ptr<DrawnRouting> routing_;
  cost::HardwareCosts costs_;
  cost::SlowestCosts slowest_costs_;
  std::map<std::string, Overhead> overheads_;  // by group
  std::int64_t micro_batches_ = 0;             // in all runs so far
};

}  // namespace lancet::runtime
