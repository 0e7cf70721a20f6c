// Collectives and local shards on several ranks: each rank's operand, and the result that it expects, bit for bit.
#pragma once
#include <string>
#include <vector>

#include "doubles/inproc.h"
#include "ops/references/harness.h"

namespace lancet::test {

struct CollectiveCase {
  std::string op;
  ir::Attributes attributes;
  std::vector<GuardedTensor> operands, expected;  // by rank
};

// Every dimension, with 1 to 3 blocks and odd extents, in f32 and bf16. The numbers are of very different magnitude, so
// that another order of summation gives other bits.
std::vector<CollectiveCase> collective_cases(int ranks);

// Runs the case on ranks that are threads. run_on(op, operand, attributes, communicator) runs the op on one of them.
// Returns the first fault.
template <class BindOn>
Status run_collective(const CollectiveCase& test, const BindOn& run_on) {
  return comm::run_inproc(int(test.operands.size()), [&](comm::Communicator& world) -> Status {
    const auto rank = std::size_t(world.rank());
    const Outcome outcome = run_on(ops::op(test.op), test.operands[rank], test.attributes, world);
    const std::string where = fmt::format("{} on rank {} of {}: {}: ", test.op, rank, test.operands.size(),
                                          ir::to_string(test.operands[rank].type()));
    if (!outcome.faults.empty()) return internal_error(where + outcome.faults[0]);
    if (outcome.results[0].type() != test.expected[rank].type())
      return internal_error(where + ir::to_string(outcome.results[0].type()));
    if (!outcome.results[0].same_bytes(test.expected[rank])) return internal_error(where + "other values");
    return {};
  });
}

}  // namespace lancet::test
