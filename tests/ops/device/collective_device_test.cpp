// The device kernels of collectives, emulated on the host, on ranks that are threads: the bits of the CPU's.
#include <catch2/catch.hpp>

#include "ops/references/collective_cases.h"
#include "ops/references/flat_shard_cases.h"
#include "run_emulated.h"

using namespace lancet;
using namespace lancet::test;

namespace {

// Sends the memory of the host's stream, which is the host's, by a communicator of the host.
class HostMemoryCommunicator final : public comm::DeviceCommunicator {
 public:
  explicit HostMemoryCommunicator(comm::Communicator& host) : host_(host) {}
  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }
  std::string transport() const override { return "host memory"; }
  Status send_receive(backend::Stream&, std::span<const comm::Segment> sends,
                      std::span<const comm::Segment> receives) override {
    return host_.send_receive(sends, receives);
  }
  Status all_reduce_sum(backend::Stream&, std::span<float> values) override { return host_.all_reduce_sum(values); }
  Status check() override { return {}; }
  void abort(const std::string& why) override { host_.abort(why); }

 private:
  comm::Communicator& host_;
};

}  // namespace

TEST_CASE("device kernels of flat shards give every rank the values and bits that the CPU's do") {
  const RunOp run_op = [](const ops::OpDef& op, const std::vector<GuardedTensor>& operands,
                          const ir::Attributes& attributes, comm::Communicator& world) {
    const ops::DeviceKernel* kernel = find_emulated_kernel(op.name);
    HostMemoryCommunicator on_device(world);
    HostDevice device;
    HostStream stream;
    return run(op, operands, attributes,
               {kernel->bind, kernel->workspace, 1, comm::group_of(on_device), &device, &stream});
  };
  for (const int ranks : {1, 2, 3}) {
    on_ranks(ranks, [&](comm::Communicator& comm) { return check_scattered(run_op, comm, false); });
    on_ranks(ranks, [&](comm::Communicator& comm) { return check_scattered(run_op, comm, true); });
    on_ranks(ranks, [&](comm::Communicator& comm) { return check_gathered<float>(run_op, comm); });
    on_ranks(ranks, [&](comm::Communicator& comm) { return check_gathered<bf16>(run_op, comm); });
    if (ranks > 1) on_ranks(ranks, [&](comm::Communicator& comm) { return check_rounded_all_reduce(run_op, comm); });
  }
}

TEST_CASE("device collectives give every rank the bits of the CPU's") {
  for (const int ranks : {1, 2, 3})
    for (const CollectiveCase& test : collective_cases(ranks)) {
      const Status status = run_collective(test, [](const ops::OpDef& op, const GuardedTensor& operand,
                                                    const ir::Attributes& attributes, comm::Communicator& world) {
        const ops::DeviceKernel* kernel = find_emulated_kernel(op.name);
        HostMemoryCommunicator on_device(world);
        HostDevice device;
        HostStream stream;
        return run(op, {operand}, attributes,
                   {kernel->bind, kernel->workspace, 1, comm::group_of(on_device), &device, &stream});
      });
      INFO((status.ok() ? "" : status.error().message));
      CHECK(status.ok());
    }
}
