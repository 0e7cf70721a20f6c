// The jobs of a list schedule of one or several steps, some of whose instructions are cut in tiles at no cost.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "lancet/cost/costs.h"
#include "lancet/ir/program.h"
#include "orders.h"

namespace lancet::schedule {

// Dependencies that hold tile by tile under a cut, one bit each.
using IdealCuts = std::uint32_t;
namespace ideal {
// The rows of an all-to-all to the experts, by the rank that they come from, own rows first, and the product that reads
// them.
inline constexpr IdealCuts source_rows = 1;
inline constexpr IdealCuts columns = 2;      // an experts' product and the all-to-all that sends its result
inline constexpr IdealCuts contracting = 4;  // the features of an all-to-all, and the product that reads them
inline constexpr IdealCuts experts = 8;      // the experts and their all-to-alls, by slots or by peers
inline constexpr IdealCuts batch_forward = 16, batch_backward = 32;  // all that has a row along the batch
// An all-gather and the product that reads it, own shard first; a product and its reduce-scatter, own shard last.
inline constexpr IdealCuts ring_shards = 64;
inline constexpr IdealCuts all = 127;
}  // namespace ideal

// What crosses the border between two steps. gathers: the all-gathers of updated weights, which must end before the
// next step reads these. open: all, as far as weights and states are updated before they are read.
enum class Border : std::uint8_t { closed, gathers, open };

struct IdealOptions {
  IdealCuts cuts = 0;
  // The step runs as two halves of the batch, which meet in the sums of gradients and in the updates only.
  bool halves = false;
  int steps = 1;  // one after the other; more than 1 only if the border is not closed
  Border border = Border::closed;
};

struct IdealJobs {
  std::vector<Job> jobs;
  std::vector<std::int64_t> block_bytes;
};

class IdealStepJobs {
 public:
  // Of an instruction with a dependency that holds tile by tile, and of an all-reduce, which can be cut in chunks.
  static constexpr int tiles = 16;

  IdealStepJobs(const ir::Program& program, std::span<const cost::OpCost> op_costs);
  IdealJobs make(const IdealOptions& options) const;

 private:
  // A dependency on an earlier instruction.
  struct Edge {
    std::size_t maker = 0;
    IdealCuts cuts = 0;  // those under which the tiles of the reader follow the tiles of the maker
    // The share of the work beside a message that needs none of it, because it is this rank's own: at the begin of the
    // reader or, if the reader is the message, at the end of the maker. Under local_cuts alone.
    double local = 0;
    bool local_last = false;
  };
  class Builder;
  void find_edges();
  void find_batch();
  void find_crossings();

  const ir::Program& program_;
  std::span<const cost::OpCost> op_costs_;
  const Blocks blocks_;
  std::vector<std::vector<std::size_t>> users_;  // by block: the instructions that touch it, the first one makes it
  std::vector<bool> is_halved_;                  // by block: half of it belongs to each half of the batch
  std::vector<std::vector<Edge>> edges_;         // by reader
  std::vector<bool> of_batch_;                   // works on tokens: half of it belongs to each half of the batch
  std::vector<bool> is_gather_;                  // completes updated weights
  std::vector<bool> is_last_;                    // nothing but gathers of the same step waits for it
  std::vector<bool> feeds_network_;              // an all-reduce waits for it
  // By instruction: those of the step before that write a parameter or a state that it reads or writes.
  std::vector<std::vector<std::size_t>> crossings_;
};

}  // namespace lancet::schedule
