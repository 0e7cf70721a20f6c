// Orders of a program's instructions by list scheduling.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

#include "lancet/schedule/candidate.h"
#include "list_schedule.h"
#include "reorder.h"

namespace lancet::schedule {

// A range [begin, end) of instructions.
using Span = std::pair<std::size_t, std::size_t>;

// The arena's tensors as blocks of a list schedule.
struct Blocks {
  explicit Blocks(const ir::Program& program);
  std::vector<std::vector<std::int32_t>> of;  // by instruction: the blocks that it touches
  std::vector<std::int64_t> bytes;            // by block
};

// Orders all instructions of a program, which outlives this, or those of each span among themselves; the others keep
// their positions. Spans are ascending and disjoint.
class Orders {
 public:
  Orders(const ir::Program& program, std::vector<cost::OpCost> op_costs, const std::vector<Span>& spans);
  Orders(const ir::Program& program, std::vector<cost::OpCost> op_costs);

  struct Found {
    double makespan = 0;          // of the spans together, without the slowdown of streams that run at once
    std::int64_t peak_bytes = 0;  // of the spans: the arena's tensors that are alive at once
    Order order;
  };
  Found find(const ListOptions& options) const;
  // The simulated makespan of program(order).
  double makespan(const Order& order, const cost::Costs& costs) const {
    return makespan_in_order(program_, order, dependencies_, op_costs_, costs.interference(), costs.launch_ms());
  }
  // The program in that order.
  ir::Program program(const Order& order) const { return permuted(program_, order); }
  std::vector<cost::OpCost> op_costs(const Order& order) const { return permuted(op_costs_, order); }
  // The dependencies of program(order).
  Dependencies needed(const Order& order) const { return renumbered(dependencies_, order); }

 private:
  const ir::Program& program_;
  std::vector<cost::OpCost> op_costs_;
  Dependencies dependencies_;
  struct OfSpan {
    std::size_t begin;
    std::vector<Job> jobs;
    std::vector<std::int32_t> before, after;  // blocks that are alive at its ends
  };
  OfSpan of_span(const Span& span, const Blocks& blocks) const;

  std::vector<OfSpan> spans_;
  std::vector<std::int64_t> block_bytes_;
};

}  // namespace lancet::schedule
