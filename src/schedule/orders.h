// Orders of a program's instructions by list scheduling.
#pragma once
#include <cstdint>
#include <vector>

#include "lancet/schedule/candidate.h"
#include "list_schedule.h"
#include "reorder.h"

namespace lancet::schedule {

// Orders all instructions of a program, or the instructions [begin, end) only; the others keep their positions.
class Orders {
 public:
  Orders(ir::Program program, std::vector<cost::OpCost> op_costs, std::size_t begin, std::size_t end);
  Orders(ir::Program program, std::vector<cost::OpCost> op_costs);

  struct Found {
    double makespan = 0;          // without the slowdown of streams that run at once
    std::int64_t peak_bytes = 0;  // of the arena's tensors that are alive at once
    Order order;
  };
  Found find(const ListOptions& options) const;
  // The program in that order.
  ir::Program program(const Order& order) const { return permuted(program_, order); }
  std::vector<cost::OpCost> op_costs(const Order& order) const { return permuted(op_costs_, order); }
  Dependencies needed(const Order& order) const;  // the dependencies of program(order)

 private:
  ir::Program program_;
  std::vector<cost::OpCost> op_costs_;
  std::size_t begin_;
  Dependencies dependencies_;
  std::vector<Job> jobs_;
  std::vector<std::int64_t> block_bytes_;
};

}  // namespace lancet::schedule
