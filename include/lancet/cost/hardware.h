// A declared machine: costs of ops and communication computed from a file of data-sheet and published numbers, for
// machines on which nothing was measured. Ops follow a roofline over their work; all-to-all and all-reduce follow the
// links within a node and the NICs between nodes. The file states the source of each number, this header the formulas.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lancet/cost/costs.h"
#include "lancet/cost/profile.h"

namespace lancet::cost {

// The share of the peak that a matrix product of size n x n x n reaches.
struct Efficiency {
  double n = 0, share = 0;
};

// The share of the nominal bandwidth that a collective reaches among `places` nodes, or devices of one node, when a
// device sends `mb` MB (10^6 bytes) to the others. Of an all-reduce, mb is the size of the vector.
struct LinkShare {
  double places = 0, mb = 0, share = 0;
};

// By places and, among equal places, by mb, ascending. Linear in the logarithm of either between two entries, constant
// beyond the first and the last.
using LinkShares = std::vector<LinkShare>;
double share_at(const LinkShares& shares, double places, double bytes);

struct Hardware {
  std::string name;  // the file's name without its extension, and what replaces its numbers
  std::string what;

  struct Device {
    double memory_gib = 0, reserved_gib = 0;  // reserved: contexts, libraries, communication buffers
    double memory_gb_per_s = 0, memory_efficiency = 0;
    double fp32_tflops = 0, bf16_tflops = 0;                   // peak of matrix products
    double vector_tflops = 0;                                  // peak of everything else
    double attention_efficiency = 0;                           // share of the products' peak
    double launch_us = 0;                                      // overhead of an op besides its work
    std::vector<Efficiency> fp32_efficiency, bf16_efficiency;  // n ascending
  } device;
  struct Node {
    double devices = 0;
    double link_gb_per_s = 0;                                 // from one device to the others, one way
    LinkShares all_to_all_efficiency, all_reduce_efficiency;  // by devices
    double latency_us = 0;                                    // of an all-to-all or all-reduce within the node
  } node;
  struct Network {
    double nics = 0, nic_gbit_per_s = 0;                      // NICs of a node, shared by its devices
    LinkShares all_to_all_efficiency, all_reduce_efficiency;  // by nodes
    double latency_us = 0;                                    // of an all-to-all between nodes
    double hop_us = 0;                                        // of one step of a reduction tree over nodes
    double message_us = 0;                                    // per message of a device to another node after the first
    bool over_mpi = false;  // by this program's transport: every rank exchanges messages with every other
  } network;
  struct Overlap {
    double core_share = 0, core_ms_per_mb = 0;  // compute-stream time that communication takes from its device
    double network_beside_compute = 0, network_beside_network = 0;  // Interference
    double signal_us = 0;  // from the end of an instruction to the start of one on another stream that waits for it
  } overlap;
  std::string identity;  // 16 digits: a hash of the file's content and of what replaces its numbers

  // The number of nodes that `ranks` ranks occupy when each node is filled before the next.
  int nodes(int ranks) const;
  // One of `hosts` hosts of an emulated cluster, which stands for `devices` devices of a node and their share of its
  // NICs. Its links have one rate, that of large all-to-alls. Each of its ranks exchanges messages with every other
  // rank, as the transport does (network.over_mpi).
  Hardware part_of_node(int devices, int hosts) const;
  std::int64_t free_bytes() const;  // a device's memory besides what is reserved
};

// How tokens spread over the experts, and how much of the buffers is sent and multiplied. An expert's load relative to
// the mean is x u^(x-1) at quantile u of the experts; for every x the mean of this is 1 and its maximum x. Tokens
// beyond the capacity are dropped. Each node of several ranks holds its share of the full experts.
struct Routing {
  double imbalance = 1;  // x, at least 1; 1: even
  double capacity = 1;   // slots of an expert relative to its mean load: the capacity factor
  bool padded = false;   // whole buffers are sent and multiplied, as in the baselines of Lancet's evaluation
  // In place of the curve, if given. host: of several unlike machines, the one whose ranks' experts are computed.
  std::shared_ptr<const Loads> loads = {};
  std::optional<std::size_t> host = {};
  double fullest() const;  // load of the fullest expert after drops, relative to even routing; the mean over layers
  double kept() const;     // tokens that are not dropped, relative to even routing; likewise
};

// Properties of an all-to-all that decide its time besides its bytes.
struct Spread {
  double fullest = 1;                    // bytes that the rank of the fullest experts receives, relative to the mean
  double fullest_host = 1;               // bytes of the mean rank of the host of the fullest experts, likewise
  double share = 1;                      // share of the other ranks that get a message: less than 1 in a group of peers
  std::optional<bool> within_host = {};  // if given, all bytes stay on the host, or all leave it
};

// Milliseconds of an op that has the device to itself: launch overhead of its kernels plus the slower of memory and
// arithmetic. A product of m x n x k is as efficient as a cube with as many multiply-adds; an expert op is one product
// per expert.
double op_ms(const Hardware& hardware, const ir::Program& program, const ir::Instruction& instruction);

// Milliseconds of an all-to-all. bytes: sent by one rank to all others together. Returns the faster of two algorithms.
// Direct: every rank sends to every other, its messages to other nodes one after the other, message_us each; links and
// NICs work at the same time. In two steps: first within the node, so that each device holds what its peers of the same
// index on other nodes want, then one message per node; links and NICs work one after the other. The ranks of a node
// share its NICs. All ranks wait for the rank that receives most, and for the host that does.
double all_to_all_ms(const Hardware& hardware, const Layout& layout, double bytes, const Spread& spread = {});
// Milliseconds of a permute: each rank sends `bytes` to the rank `shift` ranks on, or half of them there and half as
// many ranks back. The ranks of a node follow one another, so `shift` of them, or all if they are fewer, send to
// another node; links and NICs work at the same time.
double permute_ms(const Hardware& hardware, const Layout& layout, double bytes, std::int64_t shift);
// Milliseconds of an all-reduce. bytes: size of the vector. Every byte passes the slower of links and NICs
// twice, except the share that stays on its device; over MPI, the NICs carry the bytes of each of the node's ranks.
// Groups beside one another (Layout::beside) have their share of the NICs. The latency is that of a tree over the
// nodes, up and down.
double all_reduce_ms(const Hardware& hardware, const Layout& layout, double bytes);

// Reads NAME (configs/hardware/NAME.json) or a path, in the current folder or among the files that come with the
// program (files.h). Behind either, NAME:SECTION.FIELD=NUMBER,... replaces values, of a curve or a table every
// share: so the placement of stages gives each host its link and memory. Config errors name the file and the field: no
// such hardware (the message lists the known names and the folders searched), a number that is missing, has no source
// or is out of range, an unknown field.
Result<Hardware> read_hardware(const std::string& name_or_path);
Result<Hardware> parse_hardware(std::string_view text, std::string_view origin, std::string_view values = {});
// Splits NAME:VALUES at the colon; without one, the values are empty.
std::pair<std::string, std::string> split_values(const std::string& hardware);

// The costs of a declared machine. Values of `measured`, if given, take precedence: its op times and, if it holds them,
// its communication times, which must be of the same layout. The times of a group of ranks are all measured or all
// declared: what a measured group lacks is unknown. Nodes that ranks fill one after the other, the last with fewer
// ranks, are not told apart.
class HardwareCosts final : public Costs {
 public:
  HardwareCosts(Hardware hardware, Layout layout, std::optional<Profile> measured = {}, Routing routing = {});

  std::optional<double> compute_ms(std::string_view op_key) const override;  // measured times only
  std::optional<double> op_ms(const ir::Program& program, const ir::Instruction& instruction) const override;
  double all_to_all_ms(double bytes, ir::Axes group = {}) const override;
  double all_reduce_ms(double bytes, ir::Axes group = {}) const override;
  std::int64_t ranks_on_host(ir::Axes group) const override;
  std::optional<std::string> unknown_messages(const ir::Instruction& instruction) const override;
  double message_ms(double bytes, const ir::Instruction& instruction) const override;
  // Takes routing and groups of peers into account, unless communication was measured; then the loads alone.
  OpCost all_to_all(const ir::Program& program, const ir::Instruction& instruction) const override;
  // Over the link between the two ranks, beside the messages of the other ranks of the stage.
  OpCost transfer(const ir::Program& program, const ir::Instruction& instruction) const override;
  double reduce_ms(double bytes, const ir::Instruction& instruction) const override;
  // Milliseconds that the messages of an all-to-all, or the message between two stages, take, as declared, with one
  // byte in all.
  double latency_ms(const ir::Instruction& instruction) const;
  CoreCost all_to_all_core() const override;
  CoreCost all_reduce_core() const override;
  double launch_ms() const override;
  Interference interference() const override;
  std::optional<std::int64_t> free_bytes() const override { return hardware_.free_bytes(); }
  HardwareCosts of_loads(std::shared_ptr<const Loads> loads) const;
  HardwareCosts at_stage(int stage) const;  // as seen from the ranks of this pipeline stage
  std::shared_ptr<const Costs> of_stage(int stage) const override;
  double rounds(const ir::Instruction& repeat) const override;
  double least_share(const ir::Instruction& instruction) const override;
  std::unique_ptr<const Costs> under(std::shared_ptr<const Loads> loads) const override;
  std::string identity() const override;

  const Hardware& hardware() const { return hardware_; }
  const Layout& layout() const { return layout_; }
  const Routing& routing() const { return routing_; }
  std::string describe() const;  // "p3dn-v100, declared: 16 ranks on 2 hosts"

 private:
  bool network_measured(ir::Axes group = {}) const {
    return measured_ && measured_->network.measured() && measured_->knows(group);
  }
  CoreCost core(double latency_ms, double ms_per_mb) const;
  Layout layout_of(const ir::Instruction& instruction) const;  // of the ranks that it goes over
  double transfer_ms(double bytes, const ir::Instruction& instruction) const;
  // Rows of the instruction's experts and messages.
  RoundLoad load_of(const ir::Instruction& instruction) const;
  // As declared. spread: fullest, fullest_host.
  double sent_ms(const ir::Instruction& instruction, double bytes, Spread spread = {}) const;
  Hardware hardware_;
  Layout layout_;
  std::optional<Profile> measured_;
  Routing routing_;
  int stage_ = 0;
};

// The costs of ranks on unlike machines: each is that of the machine on which it takes longest. All-to-alls keep the
// ranks at one pace, so a step takes as long as on the slowest of them. Those of a pipeline stage are of its own
// machines.
class SlowestCosts final : public Costs {
 public:
  // One machine for all hosts, or one for each, all of the same layout.
  explicit SlowestCosts(std::vector<HardwareCosts> machines) : machines_(std::move(machines)) {}

  std::optional<double> compute_ms(std::string_view op_key) const override;
  std::optional<double> op_ms(const ir::Program& program, const ir::Instruction& instruction) const override;
  double all_to_all_ms(double bytes, ir::Axes group = {}) const override;
  double all_reduce_ms(double bytes, ir::Axes group = {}) const override;
  std::int64_t ranks_on_host(ir::Axes group) const override { return machines_.front().ranks_on_host(group); }
  std::optional<std::string> unknown_messages(const ir::Instruction& instruction) const override {
    return machines_.front().unknown_messages(instruction);
  }
  double message_ms(double bytes, const ir::Instruction& instruction) const override;
  OpCost all_to_all(const ir::Program& program, const ir::Instruction& instruction) const override;
  OpCost transfer(const ir::Program& program, const ir::Instruction& instruction) const override;
  double reduce_ms(double bytes, const ir::Instruction& instruction) const override;
  CoreCost all_to_all_core() const override;
  CoreCost all_reduce_core() const override;
  double launch_ms() const override;
  Interference interference() const override;
  std::optional<std::int64_t> free_bytes() const override;  // the least of all machines
  std::string identity() const override;
  double rounds(const ir::Instruction& repeat) const override { return machines_.front().rounds(repeat); }
  double least_share(const ir::Instruction& at) const override { return machines_.front().least_share(at); }
  std::unique_ptr<const Costs> under(std::shared_ptr<const Loads> loads) const override;
  std::shared_ptr<const Costs> of_stage(int stage) const override;

 private:
  std::vector<HardwareCosts> machines_;
};

}  // namespace lancet::cost
