// A declared machine: what a file of data-sheet and published numbers says that ops and communication cost, where
// nothing was measured. Ops by rooflines over their work; all-to-all and all-reduce over links within a node and NICs
// between nodes. Sources of the numbers stand beside them in the file; formulas stand here.
#pragma once
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lancet/cost/costs.h"
#include "lancet/cost/profile.h"

namespace lancet::cost {

// How much of the peak a product of n x n x n elements reaches.
struct Efficiency {
  double n = 0, share = 0;
};

struct Hardware {
  std::string name;  // of the file, without its ending
  std::string what;

  struct Device {
    double memory_gib = 0, reserved_gib = 0;  // reserved: contexts, libraries, communication buffers
    double memory_gb_per_s = 0, memory_efficiency = 0;
    double fp32_tflops = 0, bf16_tflops = 0;                   // of products
    double vector_tflops = 0;                                  // of everything else
    double attention_efficiency = 0;                           // of the products' peak
    double launch_us = 0;                                      // that an op takes besides its work
    std::vector<Efficiency> fp32_efficiency, bf16_efficiency;  // n ascending
  } device;
  struct Node {
    double devices = 0;
    double link_gb_per_s = 0, link_efficiency = 0;  // of one device to the others, one way
    double latency_us = 0;                          // of an exchange within the node
  } node;
  struct Network {
    double nics = 0, nic_gbit_per_s = 0, efficiency = 0;  // NICs of a node, which its devices share
    double latency_us = 0;                                // of an exchange between nodes
    double hop_us = 0;                                    // of one step of a reduction tree over nodes
    double message_us = 0;                                // of a device's each further message to another node
  } network;
  struct Overlap {
    double core_share = 0, core_ms_per_mb = 0;             // of the device's computation, that communication takes
    double network_beside_compute = 0, network_beside_network = 0;  // Interference
    double signal_us = 0;                                  // from one stream's end to another's start
  } overlap;
  std::string identity;  // 16 digits: a hash of all it says

  // How so many ranks lie on nodes: full ones first.
  int nodes(int ranks) const;
};

// Ranks on hosts, each with the same number of ranks (the last may have fewer).
struct Layout {
  int ranks = 1, hosts = 1;
  int on_host() const { return (ranks + hosts - 1) / hosts; }
};

// How tokens spread over the experts, and what is sent and multiplied of the buffers. An expert's load, over the mean,
// is x u^(x-1) at quantile u of the experts: its mean is 1 and its largest x, for every x. What is beyond the capacity
// is dropped. Experts lie so that each node of several ranks has its share of the full ones.
struct Routing {
  double imbalance = 1;    // x, from 1 on; 1: even
  double capacity = 1;     // slots of an expert, over the mean: the capacity factor
  bool padded = false;     // whole buffers travel and are multiplied, as in the baselines of Lancet's evaluation
  double fullest() const;  // of the fullest expert, over the mean, after drops
  double kept() const;     // of the tokens
};

// What decides an all-to-all besides its bytes.
struct Exchange {
  double fullest = 1;  // what the rank of the fullest experts receives, over the mean
  double share = 1;    // of the other ranks that get a message: less than 1 in a group of peers
};

// Milliseconds of an op with the device to itself: launch, and the slower of memory and arithmetic. A product of m x n
// x k is as efficient as a cube of as many multiply-adds; products of experts are one an expert.
double op_ms(const Hardware& hardware, const ir::Program& program, const ir::Instruction& instruction);

// bytes: what one rank sends to all others together. The faster of two ways: every rank sends to every other (its
// messages to other nodes one after the other, message_us each), or in two steps: first within the node, so that
// each device holds what its peers of the same number on other nodes want, then one message a node. The NICs of a
// node are shared by its ranks. Links and NICs work side by side in the first way, one after the other in the second.
// All wait for the rank that receives most; of NICs only where a node is one rank.
double all_to_all_ms(const Hardware& hardware, const Layout& layout, double bytes, const Exchange& exchange = {});
// bytes: the vector. Every byte passes the slower of links and NICs twice, less what stays where it is; latency of a
// tree over the nodes, there and back.
double all_reduce_ms(const Hardware& hardware, const Layout& layout, double bytes);

// NAME (configs/hardware/NAME.json) or a path, in the current folder or among the files that come with the program
// (shipped_files.h). Config errors name the file and the field: no such hardware (with the names that there are and the
// places), a number that is missing, has no source or is out of range, an unknown field.
Result<Hardware> read_hardware(const std::string& name_or_path);
Result<Hardware> parse_hardware(std::string_view text, std::string_view origin);

// What a declared machine costs. `measured`, where there is one, goes before it: its op times, and its communication
// where it is of the same layout.
class HardwareCosts final : public Costs {
 public:
  HardwareCosts(Hardware hardware, Layout layout, std::optional<Profile> measured = {}, Routing routing = {});

  std::optional<double> compute_ms(std::string_view op_key) const override;  // measured ones only
  std::optional<double> op_ms(const ir::Program& program, const ir::Instruction& instruction) const override;
  double all_to_all_ms(double bytes) const override;
  double all_reduce_ms(double bytes) const override;
  // With routing and groups of peers, unless communication was measured.
  OpCost counted_all_to_all(const ir::Program& program, const ir::Instruction& instruction,
                        std::int64_t peers) const override;
  // Measured ones only: no source declares what kernels that write into the peers' memory take.
  std::optional<OpCost> window_all_to_all(const ir::Program& program, const ir::Instruction& instruction) const override;
  AllToAllWays exchanges() const override;
  CoreCost all_to_all_core() const override;
  CoreCost all_reduce_core() const override;
  double launch_ms() const override;
  Interference interference() const override;
  std::string identity() const override;

  const Hardware& hardware() const { return hardware_; }
  const Layout& layout() const { return layout_; }
  std::string describe() const;  // "p3dn-v100, declared: 16 ranks on 2 hosts"
  // Whether so many bytes fit a device besides what is reserved.
  bool fits(std::int64_t bytes) const;

 private:
  bool network_measured() const { return measured_ && measured_->wire.measured(); }
  CoreCost core(double latency_ms, double ms_per_mb) const;
  Hardware hardware_;
  Layout layout_;
  std::optional<Profile> measured_;
  Routing routing_;
};

}  // namespace lancet::cost
