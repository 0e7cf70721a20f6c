// What instructions and communication cost, as the planner asks it (Lancet, sections 3 and 5.1). Answers come from a
// measured profile (profile.h) or from a declared machine (hardware.h); nothing is guessed in code.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/ir/program.h"

namespace lancet::cost {

// What the cost of a local instruction is kept under: the op with the types and attributes that decide its time, as in
// a Program's text: "linear(f32[8,256,256], f32[768,256], f32[768])", "expert_linear(...) {tokens=2048}". The same for
// equal instructions of different layers and for parts of one size.
std::string op_key(const ir::Program& program, const ir::Instruction& instruction);

// Whether the time of an instruction is kept under its op_key: the compute stream, but for views, and the copies that the
// all-to-alls of one rank are.
bool is_local(const ir::Program& program, const ir::Instruction& instruction);

// The ranks that an instruction of the expert stream exchanges with, itself included, as its types say.
std::int64_t all_to_all_ranks(const ir::Program& program, const ir::Instruction& instruction);

// Bytes that one rank sends to all others together in an instruction of the expert stream, with tokens spread evenly
// over the experts and none dropped (rule 2: filled slots only); bytes of the vector, of the reduce stream; else 0.
double bytes_sent(const ir::Program& program, const ir::Instruction& instruction);

// The build of everything that decides op times: a hash of the kernels' sources and compiler options, 16 digits.
std::string_view kernel_build();

// How fast work goes on beside work of other streams; 1: as fast as alone.
struct Interference {
  double network_beside_compute = 1;  // communication while the compute stream is busy
  double network_beside_network = 0.5;   // each of two communication streams that are busy at once
};

// Compute-stream time that a message takes, by its bytes_sent.
struct CoreCost {
  double per_message_ms = 0, per_mb_ms = 0;  // a MB is 10^6 bytes
  double ms(double bytes) const { return bytes > 0 ? per_message_ms + per_mb_ms * bytes * 1e-6 : 0; }
  friend bool operator==(const CoreCost&, const CoreCost&) = default;
};

// An instruction's time with the device and the wire to itself.
struct OpCost {
  double ms = 0;
  double core_ms = 0;  // of communication: how much compute-stream time moving its bytes takes; spread over its ms
};

// How tokens travel between GPUs that reach each other's memory (comm.device_all_to_all): by messages, whose sizes the
// host must know, or by kernels that write into the peers' windows.
enum class AllToAllWays { faster, counted, windows };

class Costs {
 public:
  virtual ~Costs() = default;
  virtual std::optional<double> compute_ms(std::string_view op_key) const = 0;  // nothing: not known
  // Of an instruction: what is kept under its op_key, unless the costs follow from its work (hardware.h).
  virtual std::optional<double> op_ms(const ir::Program& program, const ir::Instruction& instruction) const {
    return compute_ms(op_key(program, instruction));
  }
  virtual double all_to_all_ms(double bytes) const = 0;
  virtual double all_reduce_ms(double bytes) const = 0;
  // Of an instruction of the expert stream between several ranks, the way that it takes (takes_window). peers: the ranks
  // that it exchanges with, itself included, where they are fewer than its types say (a group of ranks); 0: as they
  // say.
  OpCost exchange(const ir::Program& program, const ir::Instruction& instruction, std::int64_t peers) const;
  // As messages: its bytes_sent in an all-to-all.
  virtual OpCost counted_all_to_all(const ir::Program& program, const ir::Instruction& instruction,
                                std::int64_t peers) const;
  // Through windows; nothing: not known, or an exchange of counts, which are messages always.
  virtual std::optional<OpCost> window_all_to_all(const ir::Program&, const ir::Instruction&) const { return {}; }
  // Which of the two, where both are known.
  virtual AllToAllWays exchanges() const { return AllToAllWays::faster; }
  virtual CoreCost all_to_all_core() const = 0;
  virtual CoreCost all_reduce_core() const = 0;
  virtual double launch_ms() const = 0;  // from the end of what a stream waits for to its start
  virtual Interference interference() const = 0;
  // What a plan's header calls them: a hash of all they say. Empty: they have no name.
  virtual std::string identity() const { return {}; }
};

// Whether exchange() is window_all_to_all(): that is asked for, or it takes no longer.
bool takes_window(const Costs& costs, const ir::Program& program, const ir::Instruction& instruction);

// The load of every instruction. Views (ops without work: slices, joins) are free. The all-to-all of one rank is a
// copy, so it costs what compute_ms says of its key, or all_to_all_ms(0) where that says nothing. Error
// (ExitCode::config): the costs do not hold an op; the message names the first such key and how many there are.
Result<std::vector<OpCost>> op_costs(const Costs& costs, const ir::Program& program);

}  // namespace lancet::cost
