// The planner's interface to the costs of instructions and communication (Lancet, sections 3 and 5.1). The numbers come
// from a measured profile (profile.h) or from a declared machine (hardware.h); the code contains no guesses.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/cost/loads.h"
#include "lancet/ir/mesh.h"
#include "lancet/ir/program.h"

namespace lancet::cost {

// The key under which the cost of a local instruction is stored: its op with the types and attributes that decide its
// time, as in a Program's text: "linear(f32[8,256,256], f32[768,256], f32[768])", "expert_linear(...) {tokens=2048}".
// Equal instructions of different layers have one key, as have parts of one size.
std::string op_key(const ir::Program& program, const ir::Instruction& instruction);

// True if the time of an instruction is stored under its op_key: instructions of the compute stream except views, and
// all-to-alls of one rank, which are copies.
bool is_local(const ir::Program& program, const ir::Instruction& instruction);

// The number of ranks in an instruction of the expert stream, this rank included, as its types say.
std::int64_t all_to_all_ranks(const ir::Program& program, const ir::Instruction& instruction);

// Bytes of a communication instruction; 0 for computation. Expert stream: the bytes that one rank sends to all others
// together, with tokens spread evenly over the experts and none dropped (rule 2: filled slots only). Reduce stream: the
// bytes of the vector, in the type in which it travels.
double bytes_sent(const ir::Program& program, const ir::Instruction& instruction);

// The build of everything that decides op times: a hash of the kernels' sources and compiler options, 16 digits.
std::string_view kernel_build();

// Speed of work while other streams are busy, relative to its speed alone.
struct Interference {
  double network_beside_compute = 1;    // communication while the compute stream is busy
  double network_beside_network = 0.5;  // each of two communication streams that are busy at once
  // If given, messages do not share the network, but pass it in the order in which they are handed over: an all-to-all
  // first waits this long for what an all-reduce has under way, and then has the network; the all-reduce pauses.
  std::optional<double> queue_ms = {};
};

// Compute-stream time that a message takes, by its bytes_sent.
struct CoreCost {
  double per_message_ms = 0, per_mb_ms = 0;  // a MB is 10^6 bytes
  double ms(double bytes) const { return bytes > 0 ? per_message_ms + per_mb_ms * bytes * 1e-6 : 0; }
  friend bool operator==(const CoreCost&, const CoreCost&) = default;
};

// The cost of an instruction that has the device and the network to itself.
struct OpCost {
  double ms = 0;       // on its stream: of the device for computation, of the network for communication
  double core_ms = 0;  // communication only: compute-stream time that moving the bytes takes, spread over `ms`
  // All-to-alls of uneven loads: the time for which messages of ranks that are done early pass their links before the
  // slowest rank's. All-reduces, which need the links of all ranks, make no progress meanwhile.
  double early_ms = 0;
};

// The ranks of its group that an instruction of the expert stream sends to.
struct Reach {
  bool on_host = false;    // those that share its host
  std::int64_t shift = 0;  // steps along a ring to the rank that receives, below 0 backwards; 0: no step of a ring
  bool all() const { return *this == Reach(); }
  friend auto operator<=>(const Reach&, const Reach&) = default;
};
// Between two ranks, every message is one to all.
Reach reach_of(const ir::Instruction& instruction);
std::string to_string(const Reach& reach);  // "all_to_all", "on_host", "neighbour 1"

// The cost interface. Bytes are bytes_sent; times are milliseconds.
class Costs {
 public:
  virtual ~Costs() = default;
  virtual std::optional<double> compute_ms(std::string_view op_key) const = 0;  // nullopt: unknown
  // Milliseconds of an instruction: by default those of its op_key; hardware.h computes them from its work.
  virtual std::optional<double> op_ms(const ir::Program& program, const ir::Instruction& instruction) const {
    return compute_ms(op_key(program, instruction));
  }
  // group: the axes of the mesh along which the ranks of the collective differ (ir/groups.h); empty: all ranks. All
  // groups of these axes communicate at the same time.
  virtual double all_to_all_ms(double bytes, ir::Axes group = {}) const = 0;
  virtual double all_reduce_ms(double bytes, ir::Axes group = {}) const = 0;
  // The ranks of a group that share a host (Layout::ranks_sharing_host()); 1 if nothing is known of hosts.
  virtual std::int64_t ranks_on_host(ir::Axes) const { return 1; }
  virtual bool knows(ir::Axes) const { return true; }  // whether the two functions have times of the group
  // What is unknown of the instruction's messages, if something is: "collectives over the mesh's axes expert". By
  // default all is known of a group that knows() has times of.
  virtual std::optional<std::string> unknown_messages(const ir::Instruction& instruction) const;
  // Milliseconds of an instruction of the expert stream between several ranks that sends `bytes`, whichever ranks it
  // reaches; by default those of an all-to-all.
  virtual double message_ms(double bytes, const ir::Instruction& instruction) const;
  // The cost of an instruction of the expert stream between several ranks: by default message_ms() of its bytes_sent.
  // A part that reaches certain ranks only says so itself (reached()).
  virtual OpCost all_to_all(const ir::Program& program, const ir::Instruction& instruction) const;
  // The cost of either end of a message between neighbouring pipeline stages: by default that of an all-to-all of its
  // bytes over the axis `stage`, or, where that is not known, over all ranks.
  virtual OpCost transfer(const ir::Program& program, const ir::Instruction& instruction) const;
  // Milliseconds of an all-reduce of `bytes` over the ranks of the instruction: by default over all that its axes name.
  virtual double reduce_ms(double bytes, const ir::Instruction& instruction) const;
  virtual CoreCost all_to_all_core() const = 0;
  virtual CoreCost all_reduce_core() const = 0;
  virtual double launch_ms() const = 0;  // from the end of an instruction to the start of a waiting one
  virtual Interference interference() const = 0;
  // Memory of a rank's device that its tensors may take, in bytes; nothing if it is not known.
  virtual std::optional<std::int64_t> free_bytes() const { return {}; }
  // The rounds that the body of a repeat is expected to run; its instructions have their times with `repeated` set.
  virtual double rounds(const ir::Instruction&) const { return 0; }
  // Of an instruction of experts or an all-to-all: the rows of the rank that has least, over those of the fullest.
  virtual double least_share(const ir::Instruction&) const { return 1; }
  // The costs of the same machine under other loads; these costs outlive them. By default all ranks wait for the
  // fullest one of a layer, whose experts' ops and all-to-alls take as much longer as it has more tokens than the mean.
  virtual std::unique_ptr<const Costs> under(std::shared_ptr<const Loads> loads) const;
  // The costs of a pipeline stage's ranks; these costs outlive them. By default those of all ranks.
  virtual std::shared_ptr<const Costs> of_stage(int stage) const;
  // The name of these costs in a plan's header: a hash of all numbers. Empty: they have no name.
  virtual std::string identity() const { return {}; }
};

// Of an all-to-all: the other ranks that it sends to, by its attribute peers; -1 if it has none, and sends to all.
std::int64_t reached(const ir::Instruction& instruction);
// The cost of an all-to-all of which no row leaves the rank: moving the bytes takes its cores as long as if they did.
OpCost own_rows_cost(const Costs& costs, const ir::Program& program, const ir::Instruction& instruction);

// The cost of an instruction of the reduce stream. An all-reduce is a reduce-scatter and an all-gather of as many
// bytes, in its messages (src/comm/mpi/communicator.cpp) and in a ring: each of the two costs half of the all-reduce.
OpCost reduce_cost(const Costs& costs, const ir::Program& program, const ir::Instruction& instruction);
// The share of an all-reduce that the instruction of the reduce stream is: 1/2 or 1.
double share_of_all_reduce(const ir::Instruction& instruction);

// The cost of an instruction. Views (ops without work: slices, joins) are free. Computation that sends bytes
// (ops::Work::sent) occupies the network as an all-to-all of these bytes does. The all-to-all of one rank is a
// copy, so it costs compute_ms of its key, or all_to_all_ms(0) if that is unknown. A repeat runs its body one after the
// other, as often as rounds() says; what computes there takes its time from the compute stream. Under even routing it
// does not run, and nothing is asked about it. The error is what the costs lack: an op's key.
Result<OpCost> op_cost(const Costs& costs, const ir::Program& program, const ir::Instruction& instruction);
// The cost of every instruction. Error (ExitCode::config): the costs lack an op; the message names the first such key
// and how many there are.
Result<std::vector<OpCost>> op_costs(const Costs& costs, const ir::Program& program);

// Which ranks share a host.

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
